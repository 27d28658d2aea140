#include "monarch/host/death_watch.h"

#include <new>
#include <utility>

#include "monarch/base/log.h"

namespace monarch {

namespace {

Outgoing notice_of(FrameKind kind, NodeId node, const std::string& body) {
  Outgoing notice{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
  notice.header.kind = kind;
  notice.header.dest = node;
  return notice;
}

}  // namespace

DeathWatch::DeathWatch(Timers& timers, Node& node, Hooks hooks)
    : timers_(timers), node_(node), hooks_(std::move(hooks)), deaths_(node.id()) {}

// ---- Who is who ----

void DeathWatch::set_parent(NodeId parent, Failure why) {
  std::lock_guard lock(mutex_);
  parent_ = parent;
  deaths_.set_parent(parent, std::move(why));
}

void DeathWatch::add_child(NodeId node, NodeId owner, Failure who, uint32_t last_lines) {
  {
    std::lock_guard lock(mutex_);
    deaths_.add_child(node, owner, std::move(who), last_lines);
  }
  on_hosts(node_.id(), node);
}

void DeathWatch::add_neighbour(NodeId node, bool believed) {
  std::lock_guard lock(mutex_);
  deaths_.add_neighbour(node, believed);
}

void DeathWatch::add_hosted(const std::vector<NodeId>& nodes, NodeId host) {
  Deaths::Actions actions;
  {
    std::lock_guard lock(mutex_);
    for (NodeId node : nodes) deaths_.add_hosted(node, host, timers_.now_ns(), actions);
    arm();
  }
  run(std::move(actions));
}

void DeathWatch::on_hosts(NodeId from, NodeId node) {
  if (from != node_.id()) {
    if (!is_child(from)) return;
    add_hosted({node}, from);
  }
  if (parent_ == 0) return;
  if (const auto link = node_.route(parent_)) link->send_control(notice_of(FrameKind::kHosts, node, ""));
}

bool DeathWatch::stop_asked(NodeId node, const std::string& reason) {
  std::lock_guard lock(mutex_);
  return deaths_.stop_asked(node, reason);
}

void DeathWatch::end_as_host(const std::string& because) {
  {
    std::lock_guard lock(mutex_);
    deaths_.end_as_host(because);
  }
  Failure why(Failure::Kind::kExited, "");
  why.status.because = because;
  const std::string body = why.encoded();
  if (const auto link = node_.route(parent_)) link->send_control(notice_of(FrameKind::kNodeDown, node_.id(), body));
}

bool DeathWatch::is_child(NodeId node) const {
  std::lock_guard lock(mutex_);
  return deaths_.is_child(node);
}

int64_t DeathWatch::pid_of(NodeId node) const {
  std::lock_guard lock(mutex_);
  return deaths_.pid_of(node);
}

int64_t DeathWatch::pid_here(NodeId node) const {
  return host_number(node) == host_number(node_.id()) ? pid_of(node) : -1;
}

std::optional<Failure> DeathWatch::who_is(NodeId child) const {
  std::lock_guard lock(mutex_);
  return deaths_.who_is(child);
}

NodeId DeathWatch::host_of(NodeId node) const {
  std::lock_guard lock(mutex_);
  return deaths_.host_of(node);
}

NodeId DeathWatch::who_knows(NodeId node) const {
  const NodeId script = hooks_.script_of(node);
  std::lock_guard lock(mutex_);
  const NodeId host = deaths_.host_of(node);
  return host != 0 ? host : script != 0 ? script : parent_;
}

FailurePtr DeathWatch::why_down(NodeId node) const {
  std::lock_guard lock(mutex_);
  return deaths_.why_down(node);
}

// ---- What happens ----

void DeathWatch::started(NodeId node, int64_t pid) {
  std::lock_guard lock(mutex_);
  deaths_.started(node, pid);
}

void DeathWatch::dying(NodeId node, const ExitStatus& status) {
  feed({.kind = Deaths::EventKind::kDying, .node = node, .status = status});
}

void DeathWatch::exited(NodeId node, const ExitStatus& status) {
  feed({.kind = Deaths::EventKind::kExited, .node = node, .status = status});
}

void DeathWatch::not_started(NodeId node, const std::string& why) {
  feed({.kind = Deaths::EventKind::kNotStarted, .node = node, .text = why});
}

void DeathWatch::link_lost(NodeId node, const Error& why) {
  feed({.kind = Deaths::EventKind::kLinkLost, .node = node, .text = why.message});
}

void DeathWatch::out_of_reach(NodeId gateway, Failure failure) {
  failure.node = gateway;
  feed({.kind = Deaths::EventKind::kOutOfReach, .node = gateway, .failure = std::make_shared<Failure>(std::move(failure))});
}

void DeathWatch::reached(NodeId gateway) { feed({.kind = Deaths::EventKind::kReached, .node = gateway}); }

void DeathWatch::way_lost(NodeId node, FailurePtr failure) {
  feed({.kind = Deaths::EventKind::kWayLost, .node = node, .failure = std::move(failure)});
}

void DeathWatch::noticed(NodeId from, NodeId node, FailurePtr failure) {
  if (from == node) {  // it does not live to say that it is dead, but may say why it will be
    std::lock_guard lock(mutex_);
    return deaths_.ends_as_host(node, failure->status.because);
  }
  feed({.kind = Deaths::EventKind::kNoticed, .node = node, .from = from, .failure = std::move(failure)});
}

void DeathWatch::known(NodeId node, Failure failure) {
  failure.node = node;
  feed({.kind = Deaths::EventKind::kNoticed, .node = node, .from = node_.id(),
        .failure = std::make_shared<Failure>(std::move(failure))});
}

void DeathWatch::feed(const Deaths::Event& event) {
  Deaths::Actions actions;
  {
    std::lock_guard lock(mutex_);
    deaths_.handle(timers_.now_ns(), event, actions);
    arm();
  }
  run(std::move(actions));
}

void DeathWatch::tick() {
  Deaths::Actions actions;
  {
    std::lock_guard lock(mutex_);
    armed_ns_ = INT64_MAX;
    deaths_.tick(timers_.now_ns(), actions);
    arm();
  }
  run(std::move(actions));
}

// A tick too many does nothing, so an earlier timer is not taken back.
void DeathWatch::arm() {
  const int64_t next_ns = deaths_.next_ns();
  if (next_ns >= armed_ns_) return;
  armed_ns_ = next_ns;
  timers_.after(std::max<int64_t>(next_ns - timers_.now_ns(), 0), [this] { tick(); });
}

void DeathWatch::inquire(NodeId node) {
  if (parent_ == 0) return;
  if (const auto link = node_.route(parent_)) link->send_control(notice_of(FrameKind::kWhyDown, node, ""));
}

// What is not known here, those above may know; their word comes to everybody below.
void DeathWatch::answer_inquiry(Link& link, NodeId node) {
  if (!is_child(link.peer())) return;
  FailurePtr why;
  {
    std::lock_guard lock(mutex_);
    why = deaths_.why_down(node);
  }
  if (!why) return inquire(node);
  link.send_control(notice_of(FrameKind::kNodeDown, node, why->encoded()));
}

// ---- What is to be done ----

void DeathWatch::run(Deaths::Actions actions) {
  if (actions.empty()) return;
  // What has no link is down by now, with its host if that is among them, before anybody is told.
  for (size_t i = 0; i < actions.size(); ++i) {
    const NodeId node = actions[i].node;
    if (actions[i].kind != Deaths::ActionKind::kEndLinks || !open_links(node).empty()) continue;
    std::lock_guard lock(mutex_);
    deaths_.handle(timers_.now_ns(), {.kind = Deaths::EventKind::kNoLinks, .node = node}, actions);
    arm();
  }
  std::vector<Node::Down> declared;
  for (const Deaths::Action& action : actions) {
    if (action.kind == Deaths::ActionKind::kDeclare) declared.push_back({action.node, action.failure});
  }
  node_.nodes_down(std::move(declared));
  for (const Deaths::Action& action : actions) {
    const bool is_told = action.kind != Deaths::ActionKind::kLetGo || node_.let_go(action.node, *action.failure);
    if (is_told) tell(action);  // else nobody behind this gateway had anything to say to that host
  }
  timers_.post([this, actions = std::move(actions)] {
    std::vector<NodeId> orphans;
    for (const Deaths::Action& action : actions) {
      if (action.kind == Deaths::ActionKind::kStopOrphan) orphans.push_back(action.node);
      act(action);
    }
    if (!orphans.empty()) hooks_.stop_orphans(orphans);
  });
}

// Others wait for the word, and a way through the reactor would cost them a tenth of a millisecond.
void DeathWatch::tell(const Deaths::Action& action) {
  if (action.kind == Deaths::ActionKind::kTellAll) {
    const std::string body = action.failure->encoded();
    // Of a host that is ending: its parent knows what it is called, and tells the others.
    const bool is_for_parent = action.failure->of_host && action.failure->label.empty() && parent_ != 0;
    for (const auto& link : node_.links()) {
      if (is_for_parent && link->peer() != parent_) continue;
      link->send_control(notice_of(FrameKind::kNodeDown, action.node, body));
    }
  }
  if (action.kind == Deaths::ActionKind::kLetGo) {  // those who send through this gateway, and who decides who is dead
    const std::string body = action.failure->encoded();
    for (const auto& link : node_.links()) {
      const bool wanted = link->peer() == parent_ || host_number(link->peer()) == host_number(node_.id());
      if (wanted) link->send_control(notice_of(FrameKind::kOutOfReach, action.node, body));
    }
  }
  // What becomes of another job's nodes is for this process alone: others there are told by their own.
  if (action.kind == Deaths::ActionKind::kTellTree && !hooks_.is_foreign(action.node)) {
    tell_tree(action.node, action.from, action.failure->encoded());
  }
}

void DeathWatch::act(const Deaths::Action& action) {
  switch (action.kind) {
    case Deaths::ActionKind::kEndLinks:
      return end_links(action);
    case Deaths::ActionKind::kCloseLinks:
      for (const auto& link : node_.links()) {
        if (link->peer() == action.node) link->close();
      }
      return hooks_.on_buried(action.node);
    case Deaths::ActionKind::kKill:
      return hooks_.kill(action.node);
    case Deaths::ActionKind::kAskLines:
      return ask_lines(action);
    case Deaths::ActionKind::kEndSelf:
      return hooks_.end_self(action.failure->headline());
    case Deaths::ActionKind::kReport:
      return log_line(action.failure->headline());
    case Deaths::ActionKind::kInquire:
      return inquire(action.node);
    case Deaths::ActionKind::kDeclare:
      return tell_observers(action);
    case Deaths::ActionKind::kTellAll:
    case Deaths::ActionKind::kTellTree:
    case Deaths::ActionKind::kStopOrphan:
    case Deaths::ActionKind::kLetGo:
      return;
  }
}

void DeathWatch::add_observer(Observer observer) {
  auto kept = std::make_shared<const Observer>(std::move(observer));
  std::lock_guard lock(mutex_);
  observers_.push_back(std::move(kept));
}

// Without the lock, so that they may ask who is who, and add others.
void DeathWatch::tell_observers(const Deaths::Action& action) {
  std::unique_lock lock(mutex_);
  const auto observers = observers_;
  lock.unlock();
  for (const auto& observer : observers) (*observer)(action.node, *action.failure);
}

// What it left is delivered by each link before that says that it is over.
void DeathWatch::end_links(const Deaths::Action& action) {
  const auto links = open_links(action.node);
  for (const auto& link : links) link->peer_died(Error{ErrorCode::kClosed, action.failure->headline()});
  if (links.empty()) feed({.kind = Deaths::EventKind::kNoLinks, .node = action.node});
}

std::vector<std::shared_ptr<Link>> DeathWatch::open_links(NodeId node) const {
  std::vector<std::shared_ptr<Link>> links = node_.links();
  std::erase_if(links, [node](const auto& link) { return link->peer() != node || link->closed(); });
  return links;
}

void DeathWatch::ask_lines(const Deaths::Action& action) {
  hooks_.last_lines(action.node, action.lines, [this, node = action.node](std::string text) {
    feed({.kind = Deaths::EventKind::kLastLines, .node = node, .text = std::move(text)});
  });
}

bool DeathWatch::is_told(NodeId peer) const {
  {
    std::lock_guard lock(mutex_);
    if (deaths_.is_told(peer)) return true;
  }
  return hooks_.is_guest(peer);
}

// The tree of parents and children, and neighbours, since anybody may hold a handle to that node; and the guests of a
// script.
void DeathWatch::tell_tree(NodeId node, NodeId except, const std::string& body) {
  for (const auto& link : node_.links()) {
    const NodeId peer = link->peer();
    if (peer == except || peer == node || !is_told(peer)) continue;
    link->send_control(notice_of(FrameKind::kNodeDown, node, body));
  }
}

// As with deaths: those are believed who know of everybody, and who has started a process. Behind the data, so that what is
// sent afterwards finds who is there now.
void DeathWatch::restarted(NodeId from, Successions::Notice notice) {
  const bool own = from == node_.id();
  if (!own) {
    {
      std::lock_guard lock(mutex_);
      notice = deaths_.believed(from, notice);
    }
    if (!node_.take_up(notice)) return;
    for (const auto& [ended, next] : notice.processes) {  // who is dead to its owner may live: never half of a death
      if (is_child(ended)) feed({.kind = Deaths::EventKind::kReplaced, .node = ended});
    }
  }
  const std::string body = notice.encoded();
  for (const auto& link : node_.links()) {
    const NodeId peer = link->peer();
    if (peer == from || (!own && !is_told(peer))) continue;
    try {
      static_cast<void>(node_.send_to_peer(*link, notice_of(FrameKind::kRestarted, 0, body)));  // else it is over
    } catch (const std::bad_alloc&) {
      log_line("there is no memory to say who has been made anew: some calls will find those that have ended");
    }
  }
}

void DeathWatch::observed(NodeId from, NodeId node) {
  NodeId host = 0;
  bool child = false;
  {
    std::lock_guard lock(mutex_);
    if (!deaths_.observed(node, timers_.now_ns())) return;
    child = deaths_.is_child(node);
    const FailurePtr why = deaths_.why_down(node);
    host = deaths_.host_of(node);
    if (host != 0 && !deaths_.why_down(host) && !(why && why->of_host)) host = 0;
  }
  if (!child) tell_tree(node, from, "");
  if (host != 0) observed(node_.id(), host);
}

void DeathWatch::report_rest() {
  Deaths::Actions actions;
  {
    std::lock_guard lock(mutex_);
    deaths_.report_rest(actions);
  }
  for (const Deaths::Action& action : actions) log_line(action.failure->headline());
}

}  // namespace monarch
