#include "monarch/actor/routes.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "monarch/net/link.h"

namespace monarch {

namespace {
constexpr int64_t kNoTime = 0;  // without a lease a peer's moments do not matter

// A session of which the other end has never heard: nothing has come by it.
bool was_dialled_in_vain(const Link& link) { return link.session() != 0 && link.closed() && !link.opened(); }
}  // namespace

bool Routes::add(std::shared_ptr<Link> link) {
  std::vector<std::shared_ptr<Link>> dead;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  if (dead_.contains(link->peer())) return false;
  dead = take_dead_links();
  // The first way to a peer stays the one that is sent on, so that order per sender holds. Two peers that dial each
  // other at the same moment have two links, each used in one direction; and what is sent through a gateway goes on
  // through it.
  auto known = routes_.find(link->peer());
  if (!gateways_.contains(link->peer()) || (known != routes_.end() && known->second.link)) {
    Reach& reach = routes_[link->peer()];
    reach.has_dialled = true;
    if (reach.peer.on(PeerEvent::kLink, kNoTime).action == PeerAction::kUse) reach.link = link;
  }
  all_links_.push_back(std::move(link));
  return true;
}

std::shared_ptr<Link> Routes::find(NodeId node) {
  std::vector<std::shared_ptr<Link>> dead;
  std::lock_guard lock(mutex_);
  // First: a dead node's link may not know it yet, and what is sent on it would wait for ever.
  if (closing_ || dead_.contains(node)) return nullptr;
  auto found = routes_.find(node);
  if (found != routes_.end() && found->second.link) return found->second.link;
  if (const NodeId gateway = gateway_to(node); gateway != 0) {
    node = gateway;
    if (dead_.contains(node)) return nullptr;
    if (found = routes_.find(node); found != routes_.end() && found->second.link) return found->second.link;
  }
  if (!dial_) return nullptr;
  std::shared_ptr<Link> link = dial_(node);
  if (!link) return nullptr;
  dead = take_dead_links();
  Reach& reach = routes_[node];
  reach.peer.on(PeerEvent::kWanted, kNoTime);
  reach.link = link;
  all_links_.push_back(link);
  return link;
}

// Of nodes that come and go nothing must pile up but the word that they are down.
std::vector<std::shared_ptr<Link>> Routes::take_dead_links() {
  mutex_.assert_held();
  std::vector<std::shared_ptr<Link>> dead;
  if (!any_down() && !any_given_up_) return dead;
  std::erase_if(all_links_, [&](std::shared_ptr<Link>& link) {
    if (!link->over()) return false;
    auto route = routes_.find(link->peer());
    const bool is_route = route != routes_.end() && route->second.link == link;
    if (is_route && !dead_.contains(link->peer())) return false;  // what it died of is yet to be told
    if (is_route) {
      routes_.erase(route);
      note_change();
    }
    dead.push_back(std::move(link));
    return true;
  });
  return dead;
}

PeerAction Routes::link_ended(const Link& link, const Error& why) {
  std::shared_ptr<Link> given_up;
  std::lock_guard lock(mutex_);
  auto found = routes_.find(link.peer());
  if (found == routes_.end() || found->second.link.get() != &link) return PeerAction::kReport;
  const bool shortage = why.code == ErrorCode::kUnavailable;
  const PeerAction action = found->second.peer.on(shortage ? PeerEvent::kShortage : PeerEvent::kClosed, kNoTime).action;
  if (action != PeerAction::kGiveUp) return PeerAction::kReport;
  given_up = std::move(found->second.link);  // all_links_ has it until it is over
  any_given_up_ = true;
  note_change();
  return action;
}

std::shared_ptr<Link> Routes::find_direct(NodeId node) const {
  std::lock_guard lock(mutex_);
  const auto found = routes_.find(node);
  return found == routes_.end() ? nullptr : found->second.link;
}

std::vector<std::shared_ptr<Link>> Routes::find_known(const std::vector<NodeId>& nodes) const {
  std::vector<std::shared_ptr<Link>> links(nodes.size());
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < nodes.size() && !closing_; ++i) {
    const auto found = routes_.find(nodes[i]);
    if (found != routes_.end() && !(any_down() && dead_.contains(nodes[i]))) links[i] = found->second.link;
  }
  return links;
}

std::vector<std::shared_ptr<Link>> Routes::let_go(NodeId node) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Link>> links;
  std::copy_if(all_links_.begin(), all_links_.end(), std::back_inserter(links),
               [node](const auto& link) { return link->peer() == node; });
  const auto found = routes_.find(node);
  const bool never_was = found != routes_.end() && found->second.link && was_dialled_in_vain(*found->second.link);
  if (found != routes_.end()) routes_.erase(found);
  any_given_up_ = true;
  note_change();
  const auto opened =
      std::find_if(links.begin(), links.end(), [](const auto& link) { return link->opened() && !link->closed(); });
  if (!never_was || opened == links.end()) return links;
  Reach& reach = routes_[node];
  reach.has_dialled = true;
  reach.peer.on(PeerEvent::kLink, kNoTime);
  reach.link = *opened;
  links.erase(opened);
  return links;
}

std::vector<std::shared_ptr<Link>> Routes::links() const {
  std::lock_guard lock(mutex_);
  return all_links_;
}

std::vector<std::shared_ptr<Link>> Routes::close() {
  std::lock_guard lock(mutex_);
  closing_ = true;
  note_change();
  return all_links_;
}

bool Routes::closing() const {
  std::lock_guard lock(mutex_);
  return closing_;
}

// ---- Through others ----

NodeId Routes::gateway_to(NodeId node) {
  mutex_.assert_held();
  if (auto known = gateways_.find(node); known != gateways_.end()) return known->second.to;
  const NodeId gateway = gateway_of_ ? gateway_of_(node) : 0;
  if (gateway != 0) gateways_.emplace(node, Gateways{gateway, 0});
  return gateway;
}

void Routes::set_gateway(NodeId node, NodeId gateway) {
  std::lock_guard lock(mutex_);
  gateways_.try_emplace(node, Gateways{gateway, 0});
}

bool Routes::hear_through(NodeId node, NodeId gateway) {
  std::lock_guard lock(mutex_);
  auto reach = routes_.find(node);
  const bool has_dialled = reach != routes_.end() && reach->second.has_dialled;
  if (auto known = gateways_.find(node); known != gateways_.end()) {
    Gateways& through = known->second;
    if (through.from == 0 && !has_dialled) through.from = gateway;
    return through.from == gateway || through.to == gateway;
  }
  if (has_dialled || gateways_.size() >= kGatewaysMax) return false;
  gateways_.emplace(node, Gateways{gateway, gateway});
  return true;
}

bool Routes::is_behind(NodeId node, NodeId gateway) const {
  std::lock_guard lock(mutex_);
  auto found = gateways_.find(node);
  return found != gateways_.end() && (found->second.to == gateway || found->second.from == gateway);
}

std::vector<NodeId> Routes::take_behind(NodeId gateway) {
  std::vector<NodeId> behind;
  std::lock_guard lock(mutex_);
  gateways_.erase(gateway);
  std::erase_if(gateways_, [&](const auto& entry) {
    if (entry.second.to != gateway && entry.second.from != gateway) return false;
    behind.push_back(entry.first);
    return true;
  });
  note_change();
  return behind;
}

void Routes::note_forwarded(NodeId a, NodeId b) {
  if (a == b) return;
  std::lock_guard lock(mutex_);
  if (forwarded_.size() >= kGatewaysMax || !forwarded_.emplace(a, b).second) return;
  forwarded_.emplace(b, a);
}

std::vector<NodeId> Routes::take_forwarded(NodeId node) {
  std::vector<NodeId> others;
  std::lock_guard lock(mutex_);
  auto it = forwarded_.lower_bound({node, 0});
  while (it != forwarded_.end() && it->first == node) {
    others.push_back(it->second);
    forwarded_.erase({it->second, node});
    it = forwarded_.erase(it);
  }
  return others;
}

// ---- The dead ----

bool Routes::keep_unsent(const Unsent& message, Failure* why) {
  std::lock_guard lock(mutex_);
  *why = {Failure::Kind::kUnreachable, "the process cannot be reached"};
  if (const FailurePtr reason = why_unreachable_locked(message.dest.node)) {
    *why = *reason;
    return false;
  }
  auto reach = routes_.find(message.dest.node);
  if (closing_ || reach == routes_.end() || unsent_.size() >= kUnsentMax) return false;
  // Whose link has not ended has been given up, or let go, and that is a new one: nothing is going to be declared.
  if (!reach->second.link || !reach->second.link->closed()) return false;
  unsent_.push_back(message);
  return true;
}

std::optional<std::vector<Routes::Unsent>> Routes::mark_down(NodeId node, FailurePtr reason) {
  std::lock_guard lock(mutex_);
  if (dead_.contains(node)) return std::nullopt;
  if (const auto forgotten = dead_.put(node, std::move(reason))) {
    dead_ids_.erase(*forgotten);
    routes_.erase(*forgotten);  // or what is sent to it would end in a link that has ended, and nobody would be told
  }
  dead_ids_.insert(node);
  any_down_.store(true, std::memory_order_relaxed);
  note_change();
  gateways_.erase(node);
  if (auto reach = routes_.find(node); reach != routes_.end()) {
    reach->second.peer.on(PeerEvent::kDeclared, kNoTime);
    if (!reach->second.link) routes_.erase(reach);  // with a link it goes when that is over
  }
  return take_unsent_locked(node);
}

std::vector<Routes::Unsent> Routes::take_unsent(NodeId node) {
  std::lock_guard lock(mutex_);
  return take_unsent_locked(node);
}

std::vector<Routes::Unsent> Routes::take_unsent_locked(NodeId node) {
  mutex_.assert_held();
  auto still = std::stable_partition(unsent_.begin(), unsent_.end(),
                                     [node](const Unsent& entry) { return entry.dest.node != node; });
  std::vector<Unsent> taken(still, unsent_.end());
  unsent_.erase(still, unsent_.end());
  return taken;
}

size_t Routes::unsent() const {
  std::lock_guard lock(mutex_);
  return unsent_.size();
}

FailurePtr Routes::why_down(NodeId node) const {
  std::lock_guard lock(mutex_);
  const FailurePtr* found = dead_.find(node);
  return found == nullptr ? nullptr : *found;
}

FailurePtr Routes::why_unreachable(NodeId node) {
  std::lock_guard lock(mutex_);
  return why_unreachable_locked(node);
}

FailurePtr Routes::why_unreachable_locked(NodeId node) {
  mutex_.assert_held();
  if (const FailurePtr* found = dead_.find(node)) return *found;
  const NodeId gateway = any_down() ? gateway_to(node) : 0;
  const FailurePtr* found = gateway == 0 ? nullptr : dead_.find(gateway);
  if (found == nullptr) return nullptr;
  auto lost = std::make_shared<Failure>(**found);
  lost->of_host = true;
  lost->node = node;
  return lost;
}

bool Routes::creator_is_down(ActorIndex index, std::string* reason) const {
  if (!any_down()) return false;
  std::lock_guard lock(mutex_);
  auto after = dead_ids_.upper_bound(index);
  if (after == dead_ids_.begin()) after = dead_ids_.end();  // counted beyond the last integer, if at all
  if (after == dead_ids_.begin() || !may_have_created(*std::prev(after), index)) return false;
  *reason = (*dead_.find(*std::prev(after)))->text();
  return true;
}

}  // namespace monarch
