#include "monarch/actor/deaths.h"

#include <algorithm>
#include <utility>

namespace monarch {

namespace {

using Role = Deaths::Role;
using State = Deaths::State;
using EventKind = Deaths::EventKind;

// What a transition does, besides changing the state.
enum Effect : uint16_t {
  kNothing = 0,
  kDrain = 1,      // deliver what it left
  kNote = 2,       // the event says why it ended
  kSpread = 4,     // and others are to know it at once
  kAsk = 8,        // its last lines, if they are wanted
  kWait = 16,      // for a time that its role says
  kCut = 32,       // it lives on without its link: kill it, unless it has been asked to end and has time for that
  kBury = 64,      // declare it
  kInquire = 128,  // our parent may know why: the word may have passed before this process was there
  kForgo = 256,    // what is under way with it is lost, and nothing else
};

constexpr size_t kLineBytesMax = 1000;  // of a last line

// One order for every run of a seed.
std::vector<NodeId> sorted(const std::unordered_set<NodeId>& nodes) {
  std::vector<NodeId> list(nodes.begin(), nodes.end());
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace

struct Deaths::Transition {
  Role role;
  State from;
  EventKind event;
  State to;
  uint16_t effects;
  const char* why;
};

// What is not in the table changes nothing: news that comes twice, or late.
const Deaths::Transition* Deaths::find_transition(Role role, State state, EventKind event) {
  static constexpr Transition kTable[] = {
      // A process that this one has started: it knows best, by the exit status. That can be read before the process has
      // ended; then its end is no news.
      {Role::kChild, State::kUp, EventKind::kDying, State::kEnded, kNote | kDrain,
       "It says no more, though its sockets may be open for a while."},
      {Role::kChild, State::kUnlinked, EventKind::kDying, State::kTelling, kNote | kAsk,
       "Everything it had sent has come before the end of its link."},
      {Role::kChild, State::kUp, EventKind::kExited, State::kEnded, kNote | kDrain,
       "What it had published before its end is still delivered."},
      {Role::kChild, State::kUp, EventKind::kLinkLost, State::kUnlinked, kWait,
       "The end of a socket says nothing about why; the exit status will."},
      {Role::kChild, State::kUp, EventKind::kNotStarted, State::kDown, kNote | kBury, "It never was."},
      {Role::kChild, State::kUnlinked, EventKind::kNotStarted, State::kDown, kNote | kBury, "It never was."},
      {Role::kChild, State::kUnlinked, EventKind::kExited, State::kTelling, kNote | kAsk,
       "Everything it had sent has come before the end of its link."},
      {Role::kChild, State::kUnlinked, EventKind::kTimeUp, State::kUnlinked, kCut,
       "On one host a closed link is a death, and never half of one."},
      {Role::kChild, State::kUp, EventKind::kReplaced, State::kUp, kCut,
       "Its link to its owner has ended, and its place is taken."},
      {Role::kChild, State::kUnlinked, EventKind::kReplaced, State::kUnlinked, kCut, "Neither link is left."},
      {Role::kChild, State::kUp, EventKind::kWayLost, State::kDown, kNote | kBury,
       "It is on another host, where nobody says any more how it has ended."},
      {Role::kChild, State::kUnlinked, EventKind::kWayLost, State::kDown, kNote | kBury,
       "As above, and what it had sent has come."},
      {Role::kChild, State::kEnded, EventKind::kLinkLost, State::kTelling, kAsk, "Now all that it had sent is here."},
      {Role::kChild, State::kEnded, EventKind::kNoLinks, State::kTelling, kAsk, "It had no link, so nothing is to come."},
      {Role::kChild, State::kTelling, EventKind::kLastLines, State::kDown, kBury, "Everything is known."},
      {Role::kChild, State::kTelling, EventKind::kTimeUp, State::kDown, kBury,
       "Who keeps the lines is slow: a death does not wait for people's comfort."},

      // Somebody else's: whoever started it says how it ended.
      {Role::kStranger, State::kUp, EventKind::kNoticed, State::kEnded, kNote | kSpread | kDrain,
       "What it had published on a link to us is still delivered."},
      {Role::kStranger, State::kUp, EventKind::kLinkLost, State::kUnlinked, kWait | kInquire,
       "Its host knows why, and its word is on the way, or came before this process was there."},
      {Role::kStranger, State::kUnlinked, EventKind::kNoticed, State::kDown, kNote | kSpread | kBury,
       "The word has come, behind all that the node had sent."},
      {Role::kStranger, State::kUnlinked, EventKind::kTimeUp, State::kDown, kNote | kBury,
       "Nobody knows, or who knows is gone too: the end of the link is all that will be known."},
      {Role::kStranger, State::kUp, EventKind::kWayLost, State::kDown, kNote | kSpread | kBury,
       "There is no link whose end could be waited for, and who was on the way is the only one here that can know. Others "
       "may wait for it who are not told by who was on the way: what they have sent is not there yet."},
      {Role::kStranger, State::kUnlinked, EventKind::kWayLost, State::kDown, kNote | kSpread | kBury,
       "Neither way leads to it any more."},
      {Role::kStranger, State::kEnded, EventKind::kLinkLost, State::kDown, kBury, "Now all that it had sent is here."},
      {Role::kStranger, State::kEnded, EventKind::kNoLinks, State::kDown, kBury, "Nothing is to come."},

      // The gateway of a third host. That two hosts do not reach each other is nobody's death: the script, who reaches
      // both, says who is dead.
      {Role::kStranger, State::kUp, EventKind::kOutOfReach, State::kOutOfReach, kNote | kWait | kInquire,
       "If it is dead, the script's word is on the way, and is the better cause."},
      {Role::kStranger, State::kOutOfReach, EventKind::kNoticed, State::kDown, kNote | kSpread | kBury,
       "It is dead, and there is no link on which anything could come."},
      {Role::kStranger, State::kOutOfReach, EventKind::kTimeUp, State::kUp, kForgo,
       "Nobody says that it is dead: the next message makes a new session."},
      {Role::kStranger, State::kOutOfReach, EventKind::kReached, State::kUp, kForgo,
       "It lives. What was under way is lost all the same, since it was on the session that is over."},
      {Role::kStranger, State::kEnded, EventKind::kOutOfReach, State::kDown, kBury, "Now all that it had sent is here."},

      // That on whose behalf this process is there.
      {Role::kParent, State::kUp, EventKind::kLinkLost, State::kDown, kNote | kBury,
       "With it goes the reason for this process; there is nobody left to say more."},
  };
  for (const Transition& entry : kTable) {
    if (entry.role == role && entry.from == state && entry.event == event) return &entry;
  }
  return nullptr;
}

// ---- Who is who ----

void Deaths::set_parent(NodeId parent, Failure why) {
  parent_ = parent;
  Known& entry = known(parent);
  entry.role = Role::kParent;
  entry.who = std::make_unique<Failure>(std::move(why));
}

void Deaths::add_child(NodeId node, NodeId owner, Failure who, uint32_t last_lines) {
  Known& entry = known(node);
  entry.role = Role::kChild;
  entry.owner = owner;
  entry.who = std::make_unique<Failure>(std::move(who));
  entry.who->node = node;
  entry.last_lines = last_lines;
  if (owner != self_) owned_[owner].insert(node);
}

void Deaths::started(NodeId node, int64_t pid) {
  if (auto found = nodes_.find(node); found != nodes_.end() && found->second.who) found->second.who->pid = pid;
}

void Deaths::add_hosted(NodeId node, NodeId host, int64_t now_ns, Actions& actions) {
  Known& entry = known(node);
  if (entry.role != Role::kStranger || entry.host != 0 || entry.state == State::kDown) return;
  entry.host = host;
  hosted_[host].insert(node);
  if (const FailurePtr why = why_down(host)) lose_with_host(now_ns, node, *why, actions);
}

void Deaths::add_neighbour(NodeId node, bool believed) {
  if (node == self_) return;
  Known& entry = known(node);
  entry.neighbour = true;
  entry.believed = entry.believed || believed;
}

// Nobody is left who could say how it ended.
void Deaths::lose_with_host(int64_t now_ns, NodeId node, const Failure& why, Actions& actions) {
  auto copy = std::make_shared<Failure>(why);
  copy->of_host = true;
  copy->node = node;
  handle(now_ns, {.kind = EventKind::kNoticed, .node = node, .from = self_, .failure = std::move(copy)}, actions);
}

bool Deaths::stop_asked(NodeId node, std::string reason) {
  auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.role != Role::kChild) return false;
  Known& entry = found->second;
  if (entry.state == State::kDown || entry.failure) return false;
  if (entry.stopping.empty()) {
    entry.stopping = reason.empty() ? "stopped" : std::move(reason);
    entry.ends_with_host = !ends_because_.empty();
  }
  return true;
}

void Deaths::ends_as_host(NodeId child, std::string because) {
  auto found = nodes_.find(child);
  if (found != nodes_.end() && found->second.role == Role::kChild) found->second.ends_because = std::move(because);
}

bool Deaths::is_child(NodeId node) const {
  auto found = nodes_.find(node);
  return found != nodes_.end() && found->second.role == Role::kChild;
}

int64_t Deaths::pid_of(NodeId node) const {
  auto found = nodes_.find(node);
  if (found == nodes_.end()) return -1;
  const Known& entry = found->second;
  return entry.who ? entry.who->pid : entry.failure ? entry.failure->pid : -1;
}

std::optional<Failure> Deaths::who_is(NodeId child) const {
  auto found = nodes_.find(child);
  if (found == nodes_.end() || found->second.role != Role::kChild || !found->second.who) return std::nullopt;
  return *found->second.who;
}

NodeId Deaths::host_of(NodeId node) const {
  auto found = nodes_.find(node);
  return found == nodes_.end() ? 0 : found->second.host;
}

bool Deaths::may_speak(NodeId from, NodeId node) const {
  if (node == self_ || node == parent_ || is_child(node)) return false;  // of these, this process knows best
  if (from == self_ || from == parent_) return true;
  if (auto speaker = nodes_.find(from); speaker != nodes_.end() && speaker->second.believed) return true;
  constexpr int kDepthMax = 64;
  NodeId above = host_of(node);
  for (int i = 0; i < kDepthMax && above != 0; ++i) {
    if (above == from) return true;
    above = host_of(above);
  }
  return false;
}

bool Deaths::may_replace(NodeId from, NodeId node) const {
  if (from == self_ || from == parent_) return true;
  const auto speaker = nodes_.find(from);
  if (speaker != nodes_.end() && speaker->second.believed) return true;
  const auto known = nodes_.find(node);
  return (known != nodes_.end() && known->second.owner == from) || may_speak(from, node);
}

Successions::Notice Deaths::believed(NodeId from, const Successions::Notice& notice) const {
  Successions::Notice believed;
  for (size_t i = 0; i < notice.processes.size(); ++i) {
    if (!may_replace(from, notice.processes[i].first)) continue;
    believed.add_process(notice, i);
  }
  for (const Successions::Epoch& mesh : notice.meshes) {
    if (may_have_created(from, mesh.first) || is_told(from)) believed.meshes.push_back(mesh);
  }
  return believed;
}

bool Deaths::is_told(NodeId node) const {
  auto found = nodes_.find(node);
  return found != nodes_.end() && (found->second.role != Role::kStranger || found->second.neighbour);
}

// ---- What happens ----

FailurePtr Deaths::make_failure(NodeId node, const Known& entry, const Event& event) const {
  const bool told = event.kind == EventKind::kNoticed || event.kind == EventKind::kWayLost;
  if (told && event.failure && event.failure->of_host && event.failure->label.empty()) {
    // A host that is ending says so itself, and does not know what it is called here.
    const auto host = nodes_.find(entry.host);
    const Failure* known = host == nodes_.end() ? nullptr : host->second.who.get();
    if (known == nullptr && host != nodes_.end()) known = host->second.failure.get();
    if (known != nullptr) {
      Failure named = *known;
      named.kind = event.failure->kind;
      named.status = event.failure->status;
      named.of_host = true;
      named.node = node;
      return std::make_shared<Failure>(std::move(named));
    }
  }
  // A host that has said why it ends takes the ways to it along.
  const bool has_ended = event.kind == EventKind::kWayLost && entry.role == Role::kChild && !entry.ends_because.empty();
  if ((told && !has_ended) || event.kind == EventKind::kOutOfReach) return event.failure;
  auto made = entry.who ? std::make_shared<Failure>(*entry.who) : std::make_shared<Failure>();
  made->node = node;
  if (entry.role == Role::kParent) return made;
  if (entry.ends_with_host) {
    auto with_host = std::make_shared<Failure>(Failure::Kind::kExited, "");
    with_host->node = node;
    with_host->of_host = true;
    with_host->status.because = ends_because_;
    return with_host;
  }
  if (!entry.stopping.empty() && event.kind != EventKind::kTimeUp) {
    made->kind = Failure::Kind::kStopped;
    made->detail = entry.stopping;
    made->status = event.status;
    return made;
  }
  switch (event.kind) {
    case EventKind::kDying:
    case EventKind::kExited:
    case EventKind::kWayLost:
      made->kind = Failure::Kind::kExited;
      made->status = event.status;
      if (!entry.ends_because.empty()) made->status = {.because = entry.ends_because};
      return made;
    case EventKind::kNotStarted:
      made->kind = Failure::Kind::kNotStarted;
      made->detail = event.text;
      return made;
    default:
      made->kind = Failure::Kind::kLost;
      if (made->detail.empty()) made->detail = "the connection to it has ended";
      return made;
  }
}

void Deaths::set_due(NodeId node, Known& entry, int64_t due_ns) {
  if (entry.due_ns != INT64_MAX) due_.erase({entry.due_ns, node});
  entry.due_ns = due_ns;
  if (due_ns != INT64_MAX) due_.insert({due_ns, node});
}

void Deaths::handle(int64_t now_ns, const Event& event, Actions& actions) {
  const NodeId node = event.node;
  if (node == self_) return;
  if (event.kind == EventKind::kNoticed && !may_speak(event.from, node)) return;
  Known& entry = known(node);
  const Transition* transition = find_transition(entry.role, entry.state, event.kind);
  if (transition == nullptr) return;
  if (event.kind == EventKind::kLinkLost && entry.role == Role::kStranger) {
    entry.who = std::make_unique<Failure>(Failure::Kind::kLost, event.text);
  }
  entry.state = transition->to;
  set_due(node, entry, INT64_MAX);
  const uint16_t effects = transition->effects;
  if (effects & kNote) entry.failure = make_failure(node, entry, event);
  if (effects & kSpread) actions.push_back({ActionKind::kTellTree, node, event.from, 0, entry.failure});
  if (effects & kWait) {
    set_due(node, entry, now_ns + (entry.role == Role::kChild ? limits_.unlinked_ns : limits_.notice_ns));
  }
  if (effects & kInquire) actions.push_back({.kind = ActionKind::kInquire, .node = node});
  if (effects & kForgo) actions.push_back({ActionKind::kLetGo, node, 0, 0, std::exchange(entry.failure, nullptr)});
  if ((effects & kCut) && entry.stopping.empty()) {
    entry.who->cut_off = true;
    actions.push_back({.kind = ActionKind::kKill, .node = node});
  }
  if (effects & kAsk) {
    if (entry.last_lines == 0 || !entry.stopping.empty()) {
      return handle(now_ns, {.kind = EventKind::kLastLines, .node = node}, actions);
    }
    actions.push_back({.kind = ActionKind::kAskLines, .node = node, .lines = entry.last_lines});
    set_due(node, entry, now_ns + limits_.last_lines_ns);
  }
  if (event.kind == EventKind::kLastLines && !event.text.empty()) {
    auto with_lines = std::make_shared<Failure>(*entry.failure);
    with_lines->last_lines = clipped_lines(event.text, entry.last_lines, kLineBytesMax);
    entry.failure = std::move(with_lines);
  }
  if (effects & kBury) take_down(now_ns, node, actions);
  if (effects & kDrain) actions.push_back({ActionKind::kEndLinks, node, 0, 0, entry.failure});
}

void Deaths::take_down(int64_t now_ns, NodeId node, Actions& actions) {
  Known& entry = known(node);
  entry.declared_ns = now_ns;
  const FailurePtr failure = entry.failure;
  actions.push_back({ActionKind::kDeclare, node, 0, 0, failure});
  actions.push_back({.kind = ActionKind::kCloseLinks, .node = node});
  if (entry.role == Role::kParent) actions.push_back({ActionKind::kEndSelf, node, 0, 0, failure});
  if (entry.role == Role::kChild) {
    actions.push_back({ActionKind::kTellAll, node, 0, 0, failure});
    // Who was asked to end ends with 0, or is killed. Anything else is news, but where all of them end.
    const ExitStatus& status = failure->status;
    const bool as_asked = status.code == 0 && (status.signal == 0 || status.signal == 9 || !status.known);
    entry.report = ends_because_.empty() && (entry.stopping.empty() || !as_asked);
    if (entry.report) set_due(node, entry, now_ns + limits_.unobserved_ns);
  }
  if (auto of_owner = owned_.find(entry.owner); of_owner != owned_.end()) of_owner->second.erase(node);
  if (auto under = hosted_.find(entry.host); under != hosted_.end()) {
    under->second.erase(node);
    if (under->second.empty()) hosted_.erase(under);
  }
  entry.who.reset();  // what is remembered of ever so many is small
  entry.stopping = {};
  down_order_.push_back(node);
  if (auto hosted = hosted_.find(node); hosted != hosted_.end()) {
    const std::unordered_set<NodeId> lost = std::move(hosted->second);
    hosted_.erase(hosted);
    int64_t observed_ns = entry.observed_ns;  // who was told of one of these need not be told of it
    for (NodeId other : sorted(lost)) {
      observed_ns = std::max(observed_ns, known(other).observed_ns);
      lose_with_host(now_ns, other, *failure, actions);
    }
    known(node).observed_ns = observed_ns;
  }
  if (auto owned = owned_.find(node); owned != owned_.end()) {
    for (NodeId other : sorted(owned->second)) actions.push_back({.kind = ActionKind::kStopOrphan, .node = other});
    owned_.erase(owned);
  }
  forget_oldest();
}

void Deaths::forget_oldest() {
  while (down_order_.size() > limits_.remembered_max) {
    auto found = nodes_.find(down_order_.front());
    if (found != nodes_.end() && found->second.due_ns != INT64_MAX) return;  // it is to be reported first
    if (found != nodes_.end() && found->second.role != Role::kParent) nodes_.erase(found);
    down_order_.pop_front();
  }
}

void Deaths::tick(int64_t now_ns, Actions& actions) {
  while (!due_.empty() && due_.begin()->first <= now_ns) {
    const NodeId node = due_.begin()->second;
    Known& entry = nodes_.at(node);
    set_due(node, entry, INT64_MAX);
    if (entry.state != State::kDown) {
      handle(now_ns, {.kind = EventKind::kTimeUp, .node = node}, actions);
    } else if (std::exchange(entry.report, false)) {
      // Who is told that a mesh has lost one process need not be told of the others that it loses at the same time.
      if (told_in_time(entry, entry.declared_ns)) continue;
      auto news = std::make_shared<Failure>(*entry.failure);
      if (news->kind == Failure::Kind::kStopped) news->kind = Failure::Kind::kExited;  // but not in the way it was asked to
      actions.push_back({ActionKind::kReport, node, 0, 0, std::move(news)});
    }
  }
  forget_oldest();
}

bool Deaths::observed(NodeId node, int64_t now_ns) {
  auto found = nodes_.find(node);
  if (found == nodes_.end()) return false;
  Known& entry = found->second;
  // Of one that lived then, and has died since, others do not know yet.
  const bool known = told_in_time(entry, entry.state == State::kDown ? entry.declared_ns : now_ns);
  entry.observed_ns = now_ns;
  return !known;
}

bool Deaths::told_in_time(const Known& entry, int64_t death_ns) const {
  return entry.observed_ns != 0 && entry.observed_ns + limits_.unobserved_ns > death_ns;
}

void Deaths::report_rest(Actions& actions) {
  for (auto& [node, entry] : nodes_) {
    if (entry.state == State::kDown && entry.report) set_due(node, entry, INT64_MIN);
  }
  tick(INT64_MIN, actions);
}

FailurePtr Deaths::why_down(NodeId node) const {
  auto found = nodes_.find(node);
  return found != nodes_.end() && found->second.state == State::kDown ? found->second.failure : nullptr;
}

}  // namespace monarch
