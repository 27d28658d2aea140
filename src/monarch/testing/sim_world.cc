#include "monarch/testing/sim_world.h"

#include <algorithm>
#include <cstdlib>

namespace monarch::testing {

// ---- Links ----

bool SimLink::send(const Outgoing& outgoing) { return transmit(data_, false, outgoing); }
bool SimLink::send_control(const Outgoing& outgoing) { return transmit(control_, true, outgoing); }

bool SimLink::transmit(Lane& lane, bool control, const Outgoing& outgoing) {
  if (closed()) return false;
  // shared: std::function must be copyable
  auto message = std::make_shared<MessagePtr>(Message::copy_of(outgoing, here_));
  const uint64_t number = lane.sent++;
  const int64_t arrival = std::max<int64_t>(world_.now_ns() + world_.delay_ns(),
                                            static_cast<int64_t>(lane.next_arrival_ns));
  lane.next_arrival_ns = static_cast<uint64_t>(arrival);
  world_.at(arrival, [self = shared_from_this(), &lane, control, number, message] {
    auto other = self->other_.lock();
    if (!other || other->told_ || number >= lane.allowed) return;
    if (control) {
      other->sink_.on_control(*other, std::move(*message));
    } else {
      other->sink_.on_frame(*other, std::move(*message));
    }
  });
  return true;
}

// The other side is known to be dead: it says no more, but what it said still arrives.
void SimLink::peer_died(const Error& why) {
  const int64_t last =
      other_.expired() ? 0 : static_cast<int64_t>(std::max(other_.lock()->data_.next_arrival_ns,
                                                           other_.lock()->control_.next_arrival_ns));
  world_.at(std::max(world_.now_ns(), last), [self = shared_from_this(), why] { self->hear_end(why); });
}

void SimLink::close() {
  if (closed_.exchange(true)) {
    told_ = true;
    return;
  }
  told_ = true;
  if (auto other = other_.lock()) other->peer_died(Error{ErrorCode::kClosed, "the peer closed the connection"});
}

void SimLink::hear_end(const Error& why) {
  if (std::exchange(told_, true)) return;
  closed_ = true;
  sink_.on_closed(*this, why);
}

// ---- Time and chance ----

SimWorld::SimWorld(uint64_t seed, Faults faults)
    : faults_(faults), state_(seed), bell_(OwnBell::make().value()),
      driver_(std::make_unique<Driver>(reactor_, bell_.bell(), bell_.event_fd.get())) {}

SimWorld::~SimWorld() { end(); }

void SimWorld::end() {
  for (auto& end : ends_) end->told_ = true;
  for (auto& [id, entry] : nodes_) entry.node->close_links();
  queue_.clear();
}

uint64_t SimWorld::random(uint64_t below) {  // splitmix64
  state_ += 0x9E3779B97F4A7C15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return below == 0 ? 0 : z % below;
}

void SimWorld::at(int64_t time_ns, std::function<void()> task) {
  queue_.emplace(std::make_pair(std::max(time_ns, now_ns_), next_order_++), std::move(task));
}

bool SimWorld::step() {
  if (queue_.empty()) return false;
  auto first = queue_.begin();
  now_ns_ = first->first.first;
  std::function<void()> task = std::move(first->second);
  queue_.erase(first);
  ++events_;
  task();
  return true;
}

bool SimWorld::run(uint64_t events_max) {
  for (uint64_t i = 0; i < events_max; ++i) {
    if (!step()) return true;
  }
  return queue_.empty();
}

// ---- Nodes ----

NodeId SimWorld::add_node() {
  const NodeId id = random(UINT64_MAX) | 1;
  Node::Hooks hooks;
  hooks.dial = [this, id](NodeId to) { return dial(id, to); };
  hooks.on_link_lost = [this, id](NodeId peer, const Error& why) { return on_link_lost(id, peer, why); };
  hooks.after = [this, id](int64_t delay, std::function<void()> task) {
    after(delay, [this, id, task = std::move(task)] {
      if (alive(id)) task();
    });
  };
  nodes_[id].node = std::make_unique<Node>(id, *driver_, std::move(hooks));
  return id;
}

Node& SimWorld::node(NodeId id) { return *nodes_.at(id).node; }
bool SimWorld::alive(NodeId id) const { return nodes_.contains(id) && nodes_.at(id).alive; }

std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> SimWorld::connect(NodeId a, LinkSink& sink_a, NodeId b,
                                                                                LinkSink& sink_b) {
  auto pair = std::make_pair(std::make_shared<SimLink>(*this, a, b, sink_a),
                             std::make_shared<SimLink>(*this, b, a, sink_b));
  pair.first->other_ = pair.second;
  pair.second->other_ = pair.first;
  ends_.push_back(pair.first);
  ends_.push_back(pair.second);
  return pair;
}

// The far end joins its node before the first frame can arrive there, at a moment of its own.
std::shared_ptr<Link> SimWorld::dial(NodeId from, NodeId to) {
  if (!nodes_.contains(to)) return nullptr;
  auto [near_end, far_end] = connect(from, node(from), to, node(to));
  if (!alive(to)) {
    after(delay_ns(), [end = near_end] { end->hear_end(Error{ErrorCode::kClosed, "the process cannot be reached"}); });
    severed_[std::minmax(from, to)] = true;
    return near_end;
  }
  const int64_t accepted = now_ns_ + delay_ns();
  near_end->data_.next_arrival_ns = near_end->control_.next_arrival_ns = static_cast<uint64_t>(accepted);
  at(accepted, [this, to, end = far_end] {
    if (alive(to)) node(to).add_link(end);
  });
  return near_end;
}

bool SimWorld::on_link_lost(NodeId at_node, NodeId peer, const Error&) {
  if (!alive(at_node)) return true;  // nobody is there to care
  if (faults_.notice_max_ns == 0 || chance(30)) return false;
  after(static_cast<int64_t>(random(static_cast<uint64_t>(faults_.notice_max_ns))), [this, at_node, peer] {
    const SimNode& gone = nodes_.at(peer);
    if (alive(at_node)) node(at_node).node_down(peer, gone.alive ? "lost the connection" : gone.reason);
  });
  return true;
}

void SimWorld::break_link(const std::shared_ptr<SimLink>& end, const Error& why) {
  auto other = end->other_.lock();
  for (SimLink* sender : {end.get(), other.get()}) {
    if (sender == nullptr) continue;
    // How many of those under way had arrived already does not matter: the prefix only gets shorter from the end.
    for (SimLink::Lane* lane : {&sender->data_, &sender->control_}) {
      lane->allowed = std::min(lane->allowed, lane->sent - random(std::min<uint64_t>(lane->sent, 8) + 1));
    }
    sender->closed_ = true;
  }
  for (const auto& hearer : {end, other}) {
    if (hearer) hearer->peer_died(why);
  }
}

void SimWorld::kill(NodeId id, const std::string& reason) {
  SimNode& victim = nodes_.at(id);
  if (!std::exchange(victim.alive, false)) return;
  victim.reason = reason;
  for (auto& [other, entry] : nodes_) {
    if (other != id) severed_[std::minmax(id, other)] = true;
  }
  const auto ends = ends_;
  for (const auto& end : ends) {
    if (end->here_ != id) continue;
    end->told_ = true;  // it hears nothing more, its end included
    break_link(end, Error{ErrorCode::kClosed, "the peer closed the connection"});
  }
}

bool SimWorld::cut(NodeId a, NodeId b) {
  bool any = false;
  const auto ends = ends_;
  for (const auto& end : ends) {
    if (end->here_ != a || end->peer() != b || end->closed()) continue;
    any = true;
    break_link(end, Error{ErrorCode::kClosed, "the connection broke"});
  }
  if (any) severed_[std::minmax(a, b)] = true;
  return any;
}

bool SimWorld::severed(NodeId a, NodeId b) const { return severed_.contains(std::minmax(a, b)); }

// ---- Seeds ----

std::vector<uint64_t> sim_seeds(int full, int brief) {
  if (const char* one = std::getenv("MONARCH_SIM_SEED")) return {std::strtoull(one, nullptr, 10)};
  int count = rounds(full, brief);
  if (const char* many = std::getenv("MONARCH_SIM_SEEDS")) count = std::atoi(many);
  std::vector<uint64_t> seeds;
  for (int i = 1; i <= count; ++i) seeds.push_back(static_cast<uint64_t>(i));
  return seeds;
}

std::string reproduction(uint64_t seed, const std::string& binary, const std::string& test) {
  return "reproduce: MONARCH_SIM_SEED=" + std::to_string(seed) + " " + binary + " --gtest_filter=" + test;
}

}  // namespace monarch::testing
