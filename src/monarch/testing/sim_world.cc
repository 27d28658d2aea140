#include "monarch/testing/sim_world.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace monarch::testing {

// ---- Links ----

bool SimLink::send(const Outgoing& outgoing) {
  if (closed()) return false;
  if (record_size_of(outgoing, {}) > kWholeMax) return transmit_bytes(outgoing, 0);
  transmit(data_, false, Message::copy_of(outgoing, here_));
  return true;
}

bool SimLink::send_rest(const Outgoing& outgoing, std::shared_ptr<const void>, uint64_t begun) {
  return !closed() && transmit_bytes(outgoing, begun);
}

bool SimLink::send_control(const Outgoing& outgoing) {
  if (closed()) return false;
  transmit(control_, true, Message::copy_of(outgoing, here_));
  return true;
}

bool SimLink::transmit_bytes(const Outgoing& outgoing, uint64_t begun) {
  std::vector<std::byte> record = encode_to_vector(outgoing);
  MONARCH_CHECK(begun < record.size());
  record.erase(record.begin(), record.begin() + static_cast<std::ptrdiff_t>(begun));
  data_.large[data_.sent] = std::move(record);
  transmit(data_, false, nullptr);
  return true;
}

// Null: a large one, of which the lane has the bytes.
void SimLink::transmit(Lane& lane, bool control, MessagePtr whole) {
  auto message = std::make_shared<MessagePtr>(std::move(whole));  // shared: std::function must be copyable
  const uint64_t number = lane.sent++;
  const int64_t arrival = std::max<int64_t>(world_.now_ns() + world_.delay_ns(),
                                            static_cast<int64_t>(lane.next_arrival_ns));
  lane.next_arrival_ns = static_cast<uint64_t>(arrival);
  auto arrive = [self = shared_from_this(), &lane, control, number, message] {
    auto other = self->other_.lock();
    if (!other || other->told_ || number >= lane.allowed) return;
    lane.arrived = number + 1;
    if (!*message) *message = other->read(lane.large.extract(number).mapped());
    if (control) {
      other->sink_.on_control(*other, std::move(*message));
    } else {
      other->sink_.on_frame(*other, std::move(*message));
    }
  };
  world_.at(arrival, [&world = world_, to = peer(), arrive = std::move(arrive)]() mutable {
    world.when_running(to, std::move(arrive));
  });
}

// Null: there is more to come.
MessagePtr SimLink::read(ByteSpan bytes) {
  if (!reader_) reader_ = std::make_unique<RecordAssembler>(ArenaParts::kRefused);
  while (!bytes.empty()) {
    const std::span<std::byte> room = reader_->buffer();
    const size_t count = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), count);
    MONARCH_CHECK(reader_->advance(count, peer()));
    bytes = bytes.subspan(count);
  }
  return reader_->take();
}

std::unique_ptr<RecordAssembler> SimLink::take_begun() {
  told_ = true;
  if (auto other = other_.lock()) {
    const auto next = other->data_.large.find(other->data_.arrived);
    if (next != other->data_.large.end()) {
      const ByteSpan bytes(next->second);
      static_cast<void>(read(bytes.first(world_.random(bytes.size()))));
    }
    other->data_.large.clear();
  }
  return reader_ && reader_->begun() != 0 ? std::move(reader_) : nullptr;
}

bool SimLink::go_on_with(std::unique_ptr<RecordAssembler> begun) {
  if (reader_ && reader_->begun() != 0) return false;
  reader_ = std::move(begun);
  return true;
}

// The other side is known to be dead: it says no more, but what it said still arrives.
void SimLink::peer_died(const Error& why) {
  const int64_t last =
      other_.expired() ? 0 : static_cast<int64_t>(std::max(other_.lock()->data_.next_arrival_ns,
                                                           other_.lock()->control_.next_arrival_ns));
  hear_end_at(last, why);
}

void SimLink::hear_end_at(int64_t time_ns, const Error& why) {
  world_.at(time_ns, [self = shared_from_this(), why] {
    self->world_.when_running(self->here_, [self, why] { self->hear_end(why); });
  });
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
  // It closes itself then, which the other side sees if it has not seen an end of its own.
  if (auto other = other_.lock()) other->peer_died(Error{ErrorCode::kClosed, "the peer closed the connection"});
}

// ---- Time and chance ----

SimWorld::SimWorld(uint64_t seed, Faults faults, SimResidents* residents, Driver* driver)
    : faults_(faults), residents_(residents), state_(seed),
      own_driver_(driver == nullptr ? std::make_unique<OwnDriver>() : nullptr),
      driver_(driver == nullptr ? &own_driver_->driver : driver) {}

SimWorld::~SimWorld() { end(); }

void SimWorld::end() {
  for (auto& end : ends_) end->told_ = true;
  for (auto& [id, entry] : nodes_) entry.node->close_links();
  for (auto& [id, entry] : nodes_) entry.sessions->end();
  queue_.clear();
  timers_.clear();
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

Timers::TimerId SimWorld::after(int64_t delay_ns, std::function<void()> task) {
  const TimerId id = next_order_;
  timers_[id] = std::max(now_ns_ + delay_ns, now_ns_);
  at(now_ns_ + delay_ns, std::move(task));
  return id;
}

void SimWorld::cancel(TimerId id) {
  auto found = timers_.find(id);
  if (found == timers_.end()) return;
  queue_.erase({found->second, id});
  timers_.erase(found);
}

void SimWorld::after_in(NodeId id, int64_t delay_ns, std::function<void()> task) {
  after(delay_ns, [this, id, task = std::move(task)]() mutable {
    when_running(id, [this, id, task = std::move(task)] {
      if (alive(id)) task();
    });
  });
}

bool SimWorld::step() {
  if (queue_.empty()) return false;
  auto first = queue_.begin();
  timers_.erase(first->first.second);
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

NodeId SimWorld::add_node_on(int host, NodeId parent, NodeId owner) {
  const NodeId id = random(UINT64_MAX) >> 1 | 1;
  Node::Hooks hooks;
  hooks.dial = [this, id](NodeId to) { return dial(id, to); };
  hooks.on_control = [this, id](Link& link, const MessagePtr& message) { on_control(id, link, *message); };
  hooks.on_link_lost = [this, id](NodeId peer, const Error& why) { return on_link_lost(id, peer, why); };
  if (owners_.on_mesh_failure) {
    hooks.on_mesh_failure = [this, id](MeshFailure failure) { owners_.on_mesh_failure(id, std::move(failure)); };
  }
  if (owners_.on_restart_wanted) {
    hooks.on_restart_wanted = [this, id](std::vector<MeshFailure> failures) {
      owners_.on_restart_wanted(id, std::move(failures));
    };
  }
  hooks.on_restarted = [this, id](NodeId from, const Successions::Notice& notice) { restarted(id, from, notice); };
  hooks.on_way_lost = [this, id](NodeId lost, FailurePtr why) {
    if (alive(id)) feed(id, {.kind = Deaths::EventKind::kWayLost, .node = lost, .failure = std::move(why)});
  };
  if (residents_ != nullptr) residents_->wire(id, hooks);
  SimNode& entry = nodes_[id];
  entry.timers = std::make_unique<NodeTimers>(*this, id);
  entry.deaths = std::make_unique<Deaths>(id);
  entry.host = host;
  entry.node = std::make_unique<Node>(id, *driver_, *entry.timers, std::move(hooks));
  Sessions::Events events;
  events.on_accepted = [this, id](std::shared_ptr<Link> link, bool) { node(id).add_link(std::move(link)); };
  events.is_down = [this, id](NodeId peer) { return node(id).is_down(peer); };
  entry.sessions = Sessions::make(*entry.timers, sim_random_, *entry.node, std::move(events));
  if (parent != 0) join(id, parent, owner == 0 ? parent : owner);
  return id;
}

// It is linked to its parent for life. Those above know who has started it.
void SimWorld::join(NodeId child, NodeId parent, NodeId owner) {
  nodes_.at(child).parent = parent;
  if (residents_ != nullptr) return static_cast<void>(node(parent).route(child));
  deaths(child).set_parent(parent, Failure(Failure::Kind::kOwnerEnded, "its parent"));
  deaths(parent).add_child(child, owner, {}, 0);
  const auto add_hosted = [&](NodeId above, NodeId below) {
    Deaths::Actions actions;
    deaths(above).add_hosted(child, below, now_ns_, actions);
    act(above, actions);
  };
  for (NodeId below = parent; below != 0; below = nodes_.at(below).parent) {
    const SimNode& entry = nodes_.at(below);
    if (entry.parent != 0) add_hosted(entry.parent, below);
    if (entry.script != 0) add_hosted(entry.script, below);
  }
  static_cast<void>(node(child).route(parent));
}

void SimWorld::attach(NodeId script, NodeId host) {
  attached_ = true;
  nodes_.at(host).script = script;
  deaths(script).add_neighbour(host, false);
  deaths(host).add_neighbour(script, true);
  Deaths::Actions actions;
  for (const auto& [id, entry] : nodes_) {
    if (entry.parent == host) deaths(script).add_hosted(id, host, now_ns_, actions);
  }
  act(script, actions);
  static_cast<void>(node(script).route(host));
}

Timers::TimerId SimWorld::NodeTimers::after(int64_t delay_ns, std::function<void()> task) {
  const TimerId timer = world.next_order_;
  return world.after(delay_ns, [this, timer, task = std::move(task)] { world.on_timer(id, timer, task); });
}

// Of a process that is stopped it waits as the timer that it is: it may still be cancelled.
void SimWorld::on_timer(NodeId id, TimerId timer, const std::function<void()>& task) {
  if (!alive(id)) return;
  if (!stopped(id)) return task();
  const int64_t later_ns = nodes_.at(id).stopped_until_ns + 1;  // what has come meanwhile is first
  timers_[timer] = later_ns;
  queue_.emplace(std::make_pair(later_ns, timer), [this, id, timer, task] { on_timer(id, timer, task); });
}

void SimWorld::stop(NodeId id, int64_t length_ns) {
  if (!alive(id)) return;
  SimNode& entry = nodes_.at(id);
  if (now_ns_ + length_ns <= entry.stopped_until_ns) return;
  entry.stopped_until_ns = now_ns_ + length_ns;
  at(entry.stopped_until_ns + 1, [this, id] { go_on(id); });
}

void SimWorld::go_on(NodeId id) {
  if (stopped(id)) return;  // for longer, by now
  for (auto& task : std::exchange(nodes_.at(id).waiting, {})) when_running(id, std::move(task));
}

// Now, or when it goes on.
void SimWorld::when_running(NodeId id, std::function<void()> task) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || (!stopped(id) && found->second.waiting.empty())) return task();
  found->second.waiting.push_back(std::move(task));
}

Node& SimWorld::node(NodeId id) { return *nodes_.at(id).node; }
bool SimWorld::alive(NodeId id) const { return nodes_.contains(id) && nodes_.at(id).alive; }

std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> SimWorld::connect(NodeId a, LinkSink& sink_a, NodeId b,
                                                                                LinkSink& sink_b) {
  auto pair = std::make_pair(std::make_shared<SimLink>(*this, a, b, sink_a),
                             std::make_shared<SimLink>(*this, b, a, sink_b));
  pair.first->other_ = pair.second;
  pair.second->other_ = pair.first;
  pair.first->session_ = pair.second->session_ = ends_.size() + 1;
  ends_.push_back(pair.first);
  ends_.push_back(pair.second);
  return pair;
}

std::shared_ptr<Link> SimWorld::dial(NodeId from, NodeId to) {
  if (!nodes_.contains(to)) return nullptr;
  if (!same_host(from, to)) {
    return nodes_.at(from).sessions->dial(to, faults_.lease_ns,
                                          [this, from, to](LinkSink& sink) { return dial_carrier(from, to, sink); });
  }
  const auto ends = connect(from, node(from), to, node(to));
  return connect_later(from, to, ends, [this, to, end = ends.second] { node(to).add_link(end); });
}

std::shared_ptr<Link> SimWorld::dial_carrier(NodeId from, NodeId to, LinkSink& sink) {
  std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> ends;
  nodes_.at(to).sessions->accepted(from, false, faults_.lease_ns, [&](LinkSink& far_sink) {
    ends = connect(from, sink, to, far_sink);
    return ends.second;
  });
  return connect_later(from, to, ends, [] {});
}

// The far end joins its node before the first frame can arrive there, at a moment of its own.
std::shared_ptr<Link> SimWorld::connect_later(NodeId from, NodeId to, const std::pair<std::shared_ptr<SimLink>,
                                              std::shared_ptr<SimLink>>& ends, std::function<void()> join) {
  const auto& [near_end, far_end] = ends;
  const bool reached = alive(to) && !is_parted(from, to) && !short_.contains(from);
  far_end->told_ = !reached;
  if (short_.erase(from) != 0) {
    near_end->hear_end_at(now_ns_ + delay_ns(), Error{ErrorCode::kUnavailable, "out of file descriptors"});
    return near_end;
  }
  if (is_parted(from, to)) {
    near_end->hear_end_at(now_ns_ + delay_ns(), Error{ErrorCode::kClosed, "nothing gets through"});
    return near_end;
  }
  if (!alive(to)) {
    // Between hosts that is its host's word; on one host it is the end anyway.
    const ErrorCode code = same_host(from, to) ? ErrorCode::kClosed : ErrorCode::kRefused;
    near_end->hear_end_at(now_ns_ + delay_ns(), Error{code, "the process cannot be reached"});
    severed_[std::minmax(from, to)] = true;
    return near_end;
  }
  const int64_t accepted = now_ns_ + delay_ns();
  near_end->data_.next_arrival_ns = near_end->control_.next_arrival_ns = static_cast<uint64_t>(accepted);
  after_in(to, accepted - now_ns_, std::move(join));
  return near_end;
}

bool SimWorld::is_parted(NodeId a, NodeId b) const {
  auto found = parted_until_.find(std::minmax(host_of(a), host_of(b)));
  return found != parted_until_.end() && now_ns_ < found->second;
}

void SimWorld::part(int host_a, int host_b, int64_t length_ns) {
  if (host_a == host_b) return;
  int64_t& until_ns = parted_until_[std::minmax(host_a, host_b)];
  until_ns = std::max(until_ns, now_ns_ + length_ns);
  const auto ends = ends_;
  for (const auto& end : ends) {
    if (end->closed() || host_of(end->here_) != host_a || host_of(end->peer()) != host_b) continue;
    break_link(end, Error{ErrorCode::kClosed, "nothing gets through"});
  }
  if (length_ns < faults_.lease_ns) return;
  for (const auto& [a, at_a] : nodes_) {
    for (const auto& [b, at_b] : nodes_) {
      const bool told = attached_ && at_a.host != at_b.host && (at_b.host == host_a || at_b.host == host_b);
      if (told || (at_a.host == host_a && at_b.host == host_b)) severed_[std::minmax(a, b)] = true;
    }
  }
}

bool SimWorld::on_link_lost(NodeId at_node, NodeId peer, const Error& why) {
  if (!alive(at_node)) return true;  // nobody is there to care
  feed(at_node, {.kind = Deaths::EventKind::kLinkLost, .node = peer, .text = why.message});
  return true;
}

// What every process does with news of a death: the decision is that of the product.
void SimWorld::feed(NodeId at_node, const Deaths::Event& event) {
  Deaths::Actions actions;
  nodes_.at(at_node).deaths->handle(now_ns_, event, actions);
  act(at_node, actions);
}

void SimWorld::act(NodeId at_node, Deaths::Actions actions) {
  const auto has_link = [&](NodeId peer) {
    const auto is_open = [peer](const auto& link) { return link->peer() == peer && !link->closed(); };
    return std::ranges::any_of(node(at_node).links(), is_open);
  };
  for (size_t i = 0; i < actions.size(); ++i) {  // as DeathWatch::run()
    const NodeId ended = actions[i].node;
    if (actions[i].kind != Deaths::ActionKind::kEndLinks || has_link(ended)) continue;
    deaths(at_node).handle(now_ns_, {.kind = Deaths::EventKind::kNoLinks, .node = ended}, actions);
  }
  std::vector<Node::Down> declared;
  for (const Deaths::Action& action : actions) {
    if (action.kind == Deaths::ActionKind::kDeclare) declared.push_back({action.node, action.failure});
  }
  node(at_node).nodes_down(std::move(declared));
  for (const Deaths::Action& action : actions) act(at_node, action);
  const int64_t next_ns = deaths(at_node).next_ns();
  if (next_ns == INT64_MAX) return;
  after_in(at_node, next_ns - now_ns_, [this, at_node] {
    Deaths::Actions due;
    deaths(at_node).tick(now_ns_, due);
    if (!due.empty()) act(at_node, due);
  });
}

void SimWorld::act(NodeId at_node, const Deaths::Action& action) {
  switch (action.kind) {
    case Deaths::ActionKind::kDeclare:  // with the others, in act()
      return;
    case Deaths::ActionKind::kEndLinks:
      return end_links(at_node, action);
    case Deaths::ActionKind::kCloseLinks:
      return close_links(at_node, action.node);
    case Deaths::ActionKind::kTellAll:
    case Deaths::ActionKind::kTellTree:
      return tell(at_node, action);
    case Deaths::ActionKind::kKill:
    case Deaths::ActionKind::kStopOrphan:
      return at(now_ns_, [this, gone = action.node] { kill(gone); });
    case Deaths::ActionKind::kEndSelf:
      return at(now_ns_, [this, at_node] { kill(at_node); });
    case Deaths::ActionKind::kInquire:
      return inquire(at_node, action.node);
    case Deaths::ActionKind::kLetGo:
      return static_cast<void>(node(at_node).let_go(action.node, *action.failure));
    case Deaths::ActionKind::kAskLines:  // nobody here asks for lines
    case Deaths::ActionKind::kReport:
      return;
  }
}

void SimWorld::close_links(NodeId at_node, NodeId gone) {
  after(0, [this, at_node, gone] {  // we may be inside a callback of one of them
    for (const auto& link : node(at_node).links()) {
      if (link->peer() == gone) link->close();
    }
  });
}

void SimWorld::tell(NodeId at_node, const Deaths::Action& action) {
  const std::string body = action.failure->encoded();
  Outgoing notice{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
  notice.header.kind = FrameKind::kNodeDown;
  notice.header.dest = action.node;
  for (const auto& link : node(at_node).links()) {
    const NodeId peer = link->peer();
    const bool everybody = action.kind == Deaths::ActionKind::kTellAll;
    if (everybody || (peer != action.from && peer != action.node && deaths(at_node).is_told(peer))) {
      link->send_control(notice);
    }
  }
}

void SimWorld::inquire(NodeId at_node, NodeId gone) {
  const NodeId parent = nodes_.at(at_node).parent;
  const auto link = parent == 0 ? nullptr : node(at_node).route(parent);
  if (!link) return;
  Outgoing question{FrameHeader{}, {}, {}};
  question.header.kind = FrameKind::kWhyDown;
  question.header.dest = gone;
  link->send_control(question);
}

void SimWorld::on_control(NodeId at_node, Link& link, const Message& message) {
  if (!alive(at_node)) return;
  const NodeId gone = message.header.dest;
  if (message.header.kind == FrameKind::kNodeDown) {
    auto record = Failure::decode(message.body);
    if (!record) return;
    record->node = gone;
    feed(at_node, {.kind = Deaths::EventKind::kNoticed, .node = gone, .from = link.peer(),
                   .failure = std::make_shared<Failure>(std::move(*record))});
  } else if (message.header.kind == FrameKind::kWhyDown) {
    const FailurePtr why = deaths(at_node).why_down(gone);
    if (!why) return inquire(at_node, gone);
    const std::string body = why->encoded();
    Outgoing answer{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
    answer.header.kind = FrameKind::kNodeDown;
    answer.header.dest = gone;
    link.send_control(answer);
  }
}

// As DeathWatch::restarted().
void SimWorld::restarted(NodeId at_node, NodeId from, Successions::Notice notice) {
  const bool own = from == at_node;
  if (!own) {
    notice = deaths(at_node).believed(from, notice);
    if (!node(at_node).take_up(notice)) return;
    for (const auto& [ended, next] : notice.processes) {
      if (deaths(at_node).is_child(ended)) feed(at_node, {.kind = Deaths::EventKind::kReplaced, .node = ended});
    }
  }
  const std::string body = notice.encoded();
  Outgoing frame{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
  frame.header.kind = FrameKind::kRestarted;
  for (const auto& link : node(at_node).links()) {
    if (link->peer() == from || (!own && !deaths(at_node).is_told(link->peer()))) continue;
    static_cast<void>(node(at_node).send_to_peer(*link, frame));
  }
}

void SimWorld::end_links(NodeId at_node, const Deaths::Action& action) {
  bool linked = false;
  for (const auto& link : node(at_node).links()) {
    if (link->peer() != action.node || link->closed()) continue;
    linked = true;
    link->peer_died(Error{ErrorCode::kClosed, action.failure->headline()});
  }
  if (!linked) feed(at_node, {.kind = Deaths::EventKind::kNoLinks, .node = action.node});
}

// Who has started it learns how it ends and how it ended, each at a moment of its own, before or after the end of its link.
void SimWorld::tell_parent_of(NodeId gone) {
  const NodeId parent = nodes_.at(gone).parent;
  if (parent == 0) return;
  const auto tell = [&](Deaths::EventKind kind, int64_t delay_ns) {
    after_in(parent, delay_ns, [this, parent, gone, kind] {
      if (residents_ != nullptr) return residents_->told_of_end(parent, gone, kind == Deaths::EventKind::kExited);
      feed(parent, {.kind = kind, .node = gone, .status = {true, 0, 9}});
    });
  };
  const auto moment = [&] { return static_cast<int64_t>(random(static_cast<uint64_t>(faults_.notice_max_ns) + 1)); };
  const int64_t exited_ns = moment();
  if (chance(75)) tell(Deaths::EventKind::kDying, std::min(moment(), exited_ns));
  tell(Deaths::EventKind::kExited, exited_ns);
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

void SimWorld::kill(NodeId id, std::string_view) {
  SimNode& victim = nodes_.at(id);
  if (!std::exchange(victim.alive, false)) return;
  if (residents_ != nullptr) residents_->killed(id);
  victim.stopped_until_ns = -1;
  victim.waiting.clear();
  tell_parent_of(id);
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
  if (any && same_host(a, b)) severed_[std::minmax(a, b)] = true;
  return any;
}

bool SimWorld::severed(NodeId a, NodeId b) const { return severed_.contains(std::minmax(a, b)); }

// ---- Seeds ----

std::vector<uint64_t> sim_seeds(int full, int brief) {
  if (const char* one = std::getenv("MONARCH_SIM_SEED")) return {std::strtoull(one, nullptr, 10)};
  int count = rounds(full, brief);
  if (const char* many = std::getenv("MONARCH_SIM_SEEDS")) count = std::atoi(many);
  const char* from = std::getenv("MONARCH_SIM_FIRST");
  const uint64_t first = from != nullptr ? std::strtoull(from, nullptr, 10) : 1;
  std::vector<uint64_t> seeds;
  for (int i = 0; i < count; ++i) seeds.push_back(first + static_cast<uint64_t>(i));
  return seeds;
}

std::string reproduction(uint64_t seed, const std::string& binary, const std::string& test) {
  return "reproduce: MONARCH_SIM_SEED=" + std::to_string(seed) + " " + binary + " --gtest_filter=" + test;
}

}  // namespace monarch::testing
