#include "monarch/host/membership/places.h"

#include <utility>

#include "monarch/base/log.h"

namespace monarch {

namespace {

// For the first connection to a host that has just said that it is there: of all that are attached to at once, one thread
// here makes the proofs, which takes seconds on a busy machine.
constexpr int64_t kFirstConnectionNs = 30'000'000'000;

}  // namespace

std::shared_ptr<Link> Places::dial(NodeId node) {
  const bool asks = node_.id() != script_ && host_number(node) != host_number(node_.id()) && !tcp_.knows_place(node);
  if (!asks) return connector_.dial(node);
  std::shared_ptr<ResumingLink> link = connector_.new_remote(node);
  {
    std::lock_guard lock(mutex_);
    parked_[node] = link;
  }
  timers_.post([this, node] {
    Outgoing question{FrameHeader{}, {}, {}};
    question.header.kind = FrameKind::kWhereIs;
    question.header.dest = node;
    const auto script = node_.route(script_);
    if (script == nullptr || !script->send_control(question)) answered(node, "");
  });
  return link;
}

std::shared_ptr<Link> Places::expect(NodeId gateway) {
  std::shared_ptr<ResumingLink> link = connector_.new_remote(gateway, kFirstConnectionNs);
  std::lock_guard lock(mutex_);
  parked_[gateway] = link;
  return link;
}

std::shared_ptr<ResumingLink> Places::take_parked(NodeId gateway) {
  std::lock_guard lock(mutex_);
  auto found = parked_.find(gateway);
  if (found == parked_.end()) return nullptr;
  auto link = std::move(found->second);
  parked_.erase(found);
  return link;
}

Status Places::placed(NodeId gateway, const TcpAddress& address) {
  if (auto set = tcp_.set_place(gateway, address); !set) return set;
  if (const auto link = take_parked(gateway)) link->begin();
  std::vector<NodeId> askers;
  {
    std::lock_guard lock(mutex_);
    if (auto found = askers_.find(gateway); found != askers_.end()) askers = std::move(found->second);
    askers_.erase(gateway);
  }
  for (const NodeId asker : askers) {
    if (const auto link = node_.route(asker)) tell(*link, gateway, address.to_text());
  }
  return Ok{};
}

// Those who have asked hear of the death itself.
void Places::gone(NodeId gateway) {
  tcp_.forget_place(gateway);
  static_cast<void>(take_parked(gateway));
  std::lock_guard lock(mutex_);
  askers_.erase(gateway);
}

void Places::asked(Link& link, NodeId gateway) {
  if (const auto place = tcp_.known_place(gateway)) return tell(link, gateway, place->to_text());
  {
    std::lock_guard lock(mutex_);
    if (parked_.contains(gateway)) return askers_[gateway].push_back(link.peer());
  }
  tell(link, gateway, "");
}

void Places::tell(Link& link, NodeId gateway, const std::string& place) {
  Outgoing answer{FrameHeader{}, as_byte_span(place.data(), place.size()), {}};
  answer.header.kind = FrameKind::kPlace;
  answer.header.dest = gateway;
  static_cast<void>(link.send_control(answer));  // else nobody is there to hear it
}

void Places::answered(NodeId gateway, const std::string& place) {
  const auto link = take_parked(gateway);
  if (!link) return;
  auto address = TcpAddress::parse(place);
  if (!place.empty() && address && tcp_.set_place(gateway, *address)) return link->begin();
  link->peer_died(Error{ErrorCode::kRefused, "the script of the job knows of no such host any more"});
}

}  // namespace monarch
