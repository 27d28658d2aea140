#include "monarch/testing/sim_process.h"

#include <algorithm>
#include <utility>

#include "monarch/base/host_name.h"

namespace monarch::testing {

namespace {
// As host/host.cc and host/runtime.cc have them.
constexpr int64_t kOrphanGraceNs = 3'000'000'000;
constexpr int64_t kOrphanLimitNs = 1'000'000'000;
constexpr int64_t kStopDrainNs = 1'000'000'000;

Outgoing request_of(FrameKind kind, std::string_view text) {
  Outgoing request{FrameHeader{}, as_byte_span(text.data(), text.size()), {}};
  request.header.kind = kind;
  return request;
}
}  // namespace

// ---- SimProcess ----

SimProcess::SimProcess(SimMachine& machine, NodeId id) : machine_(machine), id_(id), last_words_(*new LastWords()) {}

bool SimProcess::is_alive() const { return machine_.world_.alive(id_); }
Driver& SimProcess::driver() { return machine_.world_.driver(); }
Timers& SimProcess::timers() { return machine_.world_.timers_of(id_); }

void SimProcess::wire(Node::Hooks& hooks) {
  hooks.on_control = [this](Link& link, const MessagePtr& message) { on_control(link, *message); };
  hooks.on_link_lost = [this](NodeId peer, const Error& why) {
    if (is_alive()) deaths_->link_lost(peer, why);
    return true;
  };
  hooks.on_way_lost = [this](NodeId lost, FailurePtr why) {
    if (is_alive()) deaths_->way_lost(lost, std::move(why));
  };
  hooks.on_observed = [this](const Members& members) { AnyRuntime::note_observed(members); };
  hooks.on_restarted = [this](NodeId from, const Successions::Notice& notice) { deaths_->restarted(from, notice); };
}

void SimProcess::begin(Node& node, NodeId parent, NodeId owner) {
  node_ = &node;
  parent_ = parent;
  owner_ = owner;
  host_ = machine_.world_.host_of(id_);
  node.activity().use(last_words_);
  deaths_ = std::make_unique<DeathWatch>(timers(), node, death_hooks());
  if (parent == 0) return;
  const bool by_script = parent == machine_.script_->id();
  deaths_->set_parent(parent, Failure(Failure::Kind::kOwnerEnded, by_script ? "the script of this simulation"
                                                                             : "the process that owned this one"));
}

DeathWatch::Hooks SimProcess::death_hooks() {
  DeathWatch::Hooks hooks;
  hooks.kill = [this](NodeId child) {
    if (SimProcess* found = machine_.find(child)) machine_.kill(*found);
  };
  hooks.on_buried = [this](NodeId node) { note(node, &Child::buried); };
  hooks.stop_orphans = [this](const std::vector<NodeId>& nodes) {
    stop(nodes, "the process that owned this one has ended", kOrphanGraceNs, [] {});
  };
  hooks.end_self = [this](const std::string& reason) {
    request_stop(reason, 0);
    timers().after(kOrphanLimitNs, [this] { machine_.end(*this, {true, 1, 0}); });
  };
  hooks.last_lines = [](NodeId, uint32_t, const std::function<void(std::string)>& done) { done(""); };
  hooks.is_guest = hooks.is_foreign = [](NodeId) { return false; };
  return hooks;
}

Result<std::vector<NodeId>> SimProcess::spawn(const LaunchOrder& order, const LaunchDefaults&, NodeId owner) {
  if (owner == 0) owner = id_;
  std::vector<NodeId> nodes;
  for (const LaunchRequest& request : order.launches) nodes.push_back(machine_.start(*this, owner, order, request).id());
  if (owner != id_ && node_->is_down(owner)) {
    timers().post([this, nodes] { stop(nodes, "the process that owned this one has ended", kOrphanGraceNs, [] {}); });
  }
  return nodes;
}

void SimProcess::stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
                      std::function<void()> done) {
  timers().post([this, nodes, reason, grace_ns, done = std::move(done)]() mutable {
    const Outgoing request = request_of(FrameKind::kStopNode, reason);
    bool any = false;
    for (const NodeId node : nodes) {
      const auto found = children_.find(node);
      if (found == children_.end() || !deaths_->stop_asked(node, reason)) continue;
      any = true;
      const auto link = node_->route(node);
      if (!link) continue;
      link->send_control(request);
      if (found->second.owner == id_ || node_->is_down(found->second.owner)) link->send(request);
    }
    waiting_.push_back({nodes, std::move(done)});
    if (any) {
      timers().after(grace_ns, [this, nodes] {
        for (const NodeId node : nodes) {
          if (SimProcess* found = machine_.find(node)) machine_.kill(*found);
        }
      });
    }
    check_waiting();
  });
}

void SimProcess::release(const std::vector<NodeId>& nodes, const std::string& reason) {
  const Outgoing request = request_of(FrameKind::kStopNode, reason);
  for (const NodeId node : nodes) static_cast<void>(node_->send(node, request));  // who has ended needs no word
}

void SimProcess::stop_children(const std::string& reason, int64_t grace_ns) {
  std::vector<NodeId> nodes;
  for (const auto& [node, child] : children_) nodes.push_back(node);
  bool done = false;
  stop(nodes, reason, grace_ns, [&done] { done = true; });
  Waiter waiter;
  const auto ready = [](const void* context) { return *static_cast<const bool*>(context); };
  while (driver().wait(waiter, ready, &done, kNoDeadline) == WaitResult::kInterrupted) {
    if (!machine_.stage().is_released() && machine_.stage().broken() == SimStage::Broken::kNo) continue;
    waiting_.clear();  // `done` goes
    return;
  }
}

void SimProcess::report_rest() {
  deaths_->report_rest();
  node_->report_failures();
}

void SimProcess::on_control(Link& link, const Message& message) {
  if (!is_alive()) return;
  switch (message.header.kind) {
    case FrameKind::kStopNode:
      if (message.from == parent_ || message.from == owner_) request_stop(std::string(message.text()), kStopDrainNs);
      return;
    case FrameKind::kNodeDown:
      return on_node_down(link.peer(), message);
    case FrameKind::kHosts:
      return deaths_->on_hosts(link.peer(), message.header.dest);
    case FrameKind::kWhyDown:
      return deaths_->answer_inquiry(link, message.header.dest);
    default:
      return;
  }
}

void SimProcess::on_node_down(NodeId from, const Message& notice) {
  const NodeId gone = notice.header.dest;
  if (notice.body.empty()) return deaths_->observed(from, gone);
  auto failure = Failure::decode(notice.body);
  if (!failure) return;
  failure->node = gone;
  deaths_->noticed(from, gone, std::make_shared<Failure>(std::move(*failure)));
}

void SimProcess::request_stop(const std::string& reason, int64_t limit_ns) {
  node_->note_ending();
  if (!asked_to_stop_ && limit_ns != 0) {
    asked_to_stop_ = true;
    timers().after(limit_ns, [this, reason] { request_stop(reason, 0); });
    return;
  }
  if (!std::exchange(stopping_, true)) machine_.events_.asked_to_stop(*this, reason);
}

void SimProcess::note(NodeId child, bool Child::*what) {
  const auto found = children_.find(child);
  if (found == children_.end()) return;
  found->second.*what = true;
  if (!found->second.buried || !found->second.ended) return;
  children_.erase(found);
  check_waiting();
}

void SimProcess::check_waiting() {
  std::vector<std::function<void()>> done;
  std::erase_if(waiting_, [&](Waiting& waiting) {
    const auto left = [this](NodeId node) { return children_.contains(node); };
    if (std::any_of(waiting.nodes.begin(), waiting.nodes.end(), left)) return false;
    done.push_back(std::move(waiting.done));
    return true;
  });
  for (auto& run : done) run();
}

// ---- SimMachine ----

SimMachine::SimMachine(uint64_t seed, SimWorld::Faults faults, int64_t patience_ns, Driver& driver, Events events)
    : events_(std::move(events)), world_(seed, faults, this, &driver) {
  script_ = &add(0, 0);
  stage_ = std::make_unique<SimStage>(world_, script_->id(), patience_ns, events_.interrupted);
  world_.driver().wait_on(*stage_);
}

SimMachine::~SimMachine() { close(); }

SimProcess* SimMachine::find(NodeId id) {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : found->second.get();
}

std::vector<SimProcess*> SimMachine::living() {
  std::vector<SimProcess*> found;
  for (SimProcess* each : order_) {
    if (each != script_ && each->is_alive()) found.push_back(each);
  }
  return found;
}

// The world makes the node, and asks on the way what that is to call.
void SimMachine::wire(NodeId node, Node::Hooks& hooks) {
  SimProcess& made = *(processes_[node] = std::make_unique<SimProcess>(*this, node));
  order_.push_back(&made);
  made.wire(hooks);
  events_.wired(made, hooks);
}

SimProcess& SimMachine::add(NodeId parent, NodeId owner) {
  const NodeId id = parent == 0 ? world_.add_node(0) : world_.add_child(parent);
  SimProcess& made = *find(id);
  if (parent == 0) script_ = &made;
  made.pid_ = next_pid_++;
  made.begin(world_.node(id), parent, owner);
  return made;
}

SimProcess& SimMachine::start(SimProcess& starter, NodeId owner, const LaunchOrder& order, const LaunchRequest& request) {
  SimProcess& made = add(starter.id(), owner);
  made.mesh_ = request.output.mesh;
  made.rank_ = request.output.rank;
  made.payload_ = order.payload;
  if (order.are_hosts) {
    made.agent_ = std::make_shared<Agent>(made);
    made.agent_->offer({});
    made.node_->add_cell(Agent::id_of(made.id()).index, made.agent_);
  }
  starter.children_[made.id()] = {owner, false, false};
  Failure who;
  who.label = request.label;
  who.mesh = request.output.mesh;
  who.rank = request.output.rank;
  who.coordinates = request.coordinates;
  who.host = host_name();
  starter.deaths_->add_child(made.id(), owner, std::move(who), 0);
  starter.deaths_->started(made.id(), made.pid_);
  events_.started(made);
  return made;
}

void SimMachine::end(SimProcess& process, const ExitStatus& status) {
  if (!process.is_alive()) return;
  process.status_ = status;
  world_.kill(process.id());
}

void SimMachine::killed(NodeId node) {
  SimProcess& gone = *find(node);
  if (!gone.status_.known) gone.status_ = {true, 0, 9};
  gone.status_.endpoints = read_endpoints(gone.last_words_);
  stage_->kill(node);
  events_.ended(gone, gone.status_);
  // The kernel ends what it has started, and that what it has started in turn.
  for (SimProcess* child : order_) {
    if (child->parent() == node && child->is_alive()) world_.after(0, [this, child] { kill(*child); });
  }
}

void SimMachine::told_of_end(NodeId parent, NodeId child, bool exited) {
  SimProcess& told = *find(parent);
  const ExitStatus& status = find(child)->status_;
  if (!exited) return told.deaths_->dying(child, status);
  told.deaths_->exited(child, status);
  told.note(child, &SimProcess::Child::ended);
}

void SimMachine::close() { world_.end(); }

}  // namespace monarch::testing
