#include "monarch/host/call_watch.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/log.h"

namespace monarch {

namespace {

// An actor that stays blocked is looked at again after this, then after twice as long, and so on.
constexpr int64_t kFirstAgainNs = 250'000'000;
constexpr int64_t kLastAgainNs = 8'000'000'000;
// For how long what another process says of its calls holds: some of its looks.
constexpr int64_t kElsewhereNs = 3 * Calls::kLookNs;
constexpr int64_t kMillisecondNs = 1'000'000;
constexpr size_t kLabelsMax = 3;
constexpr size_t kLabelBytesMax = 256;

std::string seconds_text(int64_t ns) {
  const int64_t tenths = (ns + 50'000'000) / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// "rank 3 of procs (pid 17)"
std::string name_of(const Failure& who) {
  const std::string place = who.rank >= 0 ? "rank " + std::to_string(who.rank) + " of " + who.mesh : who.label;
  return place + " (pid " + std::to_string(who.pid) + ")";
}

}  // namespace

CallWatch::CallWatch(Reactor& reactor, Node& node, DeathWatch& deaths, std::function<void(NodeId)> kill)
    : reactor_(reactor), node_(node), deaths_(deaths), kill_(std::move(kill)), deadlocks_(node.id(), *this) {}

// ---- Actors that wait for each other ----

void CallWatch::block(ActorIndex actor, std::shared_ptr<PendingCall> call, int64_t waited_ns) {
  const uint64_t token = call->token();
  {
    std::lock_guard lock(mutex_);
    blocks_[actor] = {std::move(call), reactor_.now_ns() - waited_ns};
  }
  reactor_.post([this, actor, token] { search(actor, token, kFirstAgainNs); });
}

void CallWatch::unblock(ActorIndex actor, const PendingCall& call) {
  Block last;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(actor);
  if (found == blocks_.end() || found->second.call.get() != &call) return;
  last = std::move(found->second);
  blocks_.erase(found);
}

void CallWatch::search(ActorIndex actor, uint64_t token, int64_t next_ns) {
  {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(actor);
    if (found == blocks_.end() || found->second.call->token() != token) return deadlocks_.forget(actor, token);
  }
  run(deadlocks_.search(reactor_.now_ns(), actor));
  reactor_.after(next_ns, [this, actor, token, next_ns] { search(actor, token, std::min(2 * next_ns, kLastAgainNs)); });
}

void CallWatch::run(Deadlocks::Actions actions) {
  for (const Deadlocks::Send& send : actions.sends) {
    const std::string body = send.probe.encoded();
    Outgoing probe{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
    probe.header.kind = FrameKind::kProbe;
    probe.header.dest = send.to.index;
    node_.inquire(send.to.node, probe);
  }
  for (const ActorIndex actor : actions.again) {
    reactor_.after(Deadlocks::kConfirmNs, [this, actor] { run(deadlocks_.search(reactor_.now_ns(), actor)); });
  }
  for (const Deadlocks::GiveUp& call : actions.give_up) node_.end_call(call.token, ErrorKind::kDeadlock, call.text);
}

std::optional<Deadlocks::Blocked> CallWatch::blocked(ActorIndex actor) {
  std::shared_ptr<PendingCall> call;
  Deadlocks::Blocked blocked;
  {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(actor);
    if (found == blocks_.end()) return std::nullopt;
    call = found->second.call;
    blocked.since_ns = found->second.since_ns;
  }
  const std::shared_ptr<Cell> cell = node_.find_cell(actor);
  auto occupied = cell ? cell->occupied(0, 0) : std::nullopt;
  if (!occupied || call->decided()) return std::nullopt;
  blocked.token = call->token();
  for (const uint32_t rank : call->missing()) blocked.owing.push_back(call->owing().ids[rank]);
  blocked.who = std::move(occupied->who);
  blocked.doing = std::move(occupied->doing);
  return blocked;
}

std::optional<Deadlocks::Place::Asked> CallWatch::awaits(NodeId caller, uint64_t token, ActorIndex actor) {
  const std::shared_ptr<Cell> cell = node_.find_cell(actor);
  auto occupied = cell ? cell->occupied(caller, token) : std::nullopt;
  if (!occupied || occupied->called.empty()) return std::nullopt;
  return Asked{std::move(occupied->called), occupied->queued};
}

// ---- Inquiries ----

void CallWatch::on_inquiry(MessagePtr message) {
  reactor_.post([this, message = std::shared_ptr<Message>(std::move(message))] {  // shared: tasks must be copyable
    if (message->header.kind == FrameKind::kSilent) return on_silent(*message);
    auto probe = Probe::decode(message->body);
    if (!probe) return log_line_limited("ignored a probe", probe.error().message);
    if (probe->path.back().actor.node != message->from) return;  // nobody speaks for others
    run(deadlocks_.on_probe(reactor_.now_ns(), message->header.dest, std::move(*probe)));
  });
}

// Somebody waits for a process that this one, or one behind it, has started.
void CallWatch::on_silent(const Message& notice) {
  const NodeId node = notice.header.dest;
  if (node == 0) return log_line_limited("a host says", notice.text());
  Waiting waiting;
  waiting.add(notice.header.method, notice.text());
  waiting.lease_ns = notice.header.rank * kMillisecondNs;
  if (!deaths_.is_child(node)) {
    if (deaths_.who_knows(node) != notice.from) ask_others(node, waiting);
    return;
  }
  const int64_t now_ns = reactor_.now_ns();
  Elsewhere& said = elsewhere_[node][notice.from];
  const bool goes_on = said.said_ns + kElsewhereNs >= now_ns && said.said_ns != 0;
  said = {waiting, goes_on ? said.since_ns : now_ns, now_ns};
  const int64_t pid = deaths_.pid_here(node);
  pid > 0 ? look_at_child(node, static_cast<pid_t>(pid), waiting) : ping(node);
  node_.begin_looks();
}

// ---- Processes ----

void CallWatch::Waiting::add(size_t more, std::string_view label) {
  calls += more;
  if (labels.size() < kLabelsMax && !label.empty() && label.size() <= kLabelBytesMax) labels.emplace(label);
}

std::string CallWatch::Waiting::text(std::string_view what) const {
  std::string text = std::to_string(calls) + (calls == 1 ? " call waits for " : " calls wait for ") + std::string(what);
  for (const std::string& label : labels) text += (label == *labels.begin() ? ": " : ", ") + label;
  return text;
}

std::map<NodeId, CallWatch::Waiting> CallWatch::waited_for(
    const std::vector<std::shared_ptr<PendingCall>>& calls) const {
  std::map<NodeId, Waiting> waited;
  std::vector<NodeId> nodes;  // of one call
  for (const auto& call : calls) {
    if (call->decided()) continue;
    nodes.clear();
    for (const uint32_t rank : call->missing()) nodes.push_back(call->owing().ids[rank].node);
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    const std::string_view label = call->label() ? std::string_view(*call->label()) : "";
    for (const NodeId node : nodes) {
      if (node != node_.id()) waited[node].add(1, label);
    }
  }
  return waited;
}

bool CallWatch::on_look(const std::vector<std::shared_ptr<PendingCall>>& calls) {
  const int64_t now_ns = reactor_.now_ns();
  std::map<NodeId, Waiting> waited = waited_for(calls);
  for (auto it = elsewhere_.begin(); it != elsewhere_.end();) {
    std::erase_if(it->second, [now_ns](const auto& said) { return said.second.said_ns + kElsewhereNs < now_ns; });
    // Who is not halted is looked at when others ask: what they have said before may be over.
    const bool is_looked_at = waited.contains(it->first) || halts_.halted().contains(it->first);
    for (const auto& [_, said] : it->second) {
      if (!is_looked_at || !said.is_fresh(now_ns)) continue;
      Waiting& waiting = waited[it->first];
      waiting.calls += said.waiting.calls;
      for (const std::string& label : said.waiting.labels) waiting.add(0, label);
    }
    it = it->second.empty() ? elsewhere_.erase(it) : std::next(it);
  }
  for (const auto& [node, _] : halts_.halted()) waited.try_emplace(node);  // until they go on
  std::erase_if(mute_, [this](const auto& mute) { return node_.is_down(mute.first); });
  const std::vector<Owned> owned = owned_by_others(calls);
  for (const Owned& call : owned) waited.try_emplace(call.owner);
  std::erase_if(silent_, [&](const auto& asked) {
    return !waited.contains(asked.first) && !elsewhere_.contains(asked.first);
  });
  // Of very many some at a time.
  const size_t count = std::min(waited.size(), kNodesMax);
  if (next_ >= waited.size()) next_ = 0;
  auto it = std::next(waited.begin(), static_cast<std::ptrdiff_t>(next_));
  for (size_t i = 0; i < count; ++i, ++it) {
    if (it == waited.end()) it = waited.begin();
    const NodeId node = it->first;
    const int64_t pid = deaths_.is_child(node) ? deaths_.pid_here(node) : -1;
    if (node_.is_down(node)) {
      forget(node);
    } else if (pid > 0) {
      look_at_child(node, static_cast<pid_t>(pid), it->second);
    } else {
      if (silent_.contains(node)) ask_others(node, it->second);
      ping(node);
    }
  }
  next_ += count;
  end_unowned(owned);
  return !halts_.halted().empty() || !elsewhere_.empty();
}

void CallWatch::look_at_child(NodeId node, pid_t pid, const Waiting& waiting) {
  const bool is_waited_for = waiting.calls > 0 || waits_elsewhere(node);
  const Halts::Sighting sighting = look_at_process(pid, silent_.contains(node), is_waited_for);
  const int64_t now_ns = reactor_.now_ns();
  if (const auto change = halts_.look(now_ns, node, sighting)) {
    {
      std::lock_guard lock(mutex_);
      change->now == Halt::kNone ? void(halted_.erase(node)) : void(halted_[node] = change->now);
    }
    tell(node, *change, waiting);
  }
  const auto halted = halts_.halted().find(node);
  if (halted == halts_.halted().end()) {
    if (sighting.state == 'R') {  // who runs is not halted
      silent_.erase(node);
    } else {
      ping(node);
    }
    return;
  }
  if (halted->second.halt == Halt::kFrozen || halted->second.halt == Halt::kHeld) ping(node);
  const int64_t lease_ns = lease_that_is_over(node, halted->second.waited_ns);
  if (lease_ns != 0) end_lease(node, halted->second.halt, lease_ns);
}

bool CallWatch::waits_elsewhere(NodeId node) const {
  const auto found = elsewhere_.find(node);
  return found != elsewhere_.end() &&
         std::ranges::any_of(found->second, [](const auto& said) { return said.second.waiting.calls > 0; });
}

// 0: none.
int64_t CallWatch::lease_that_is_over(NodeId node, int64_t waited_ns) const {
  const int64_t own_ns = lease_ns_.load(std::memory_order_relaxed);
  if (own_ns != kLeaseOfWhoWaits) return own_ns != 0 && waited_ns >= own_ns ? own_ns : 0;
  const auto found = elsewhere_.find(node);
  if (found == elsewhere_.end()) return 0;
  const int64_t now_ns = reactor_.now_ns();
  for (const auto& [_, said] : found->second) {
    const int64_t lease_ns = said.waiting.lease_ns;
    if (lease_ns != 0 && said.is_fresh(now_ns) && std::min(waited_ns, now_ns - said.since_ns) >= lease_ns) return lease_ns;
  }
  return 0;
}

void CallWatch::ping(NodeId node) {
  silent_.try_emplace(node, reactor_.now_ns());
  Outgoing ping{FrameHeader{}, {}, {}};
  ping.header.kind = FrameKind::kPing;
  node_.inquire(node, ping);
}

// Of a process that this one has not started: who has can look.
void CallWatch::ask_others(NodeId node, const Waiting& waiting) {
  const std::string label = waiting.labels.empty() ? "" : *waiting.labels.begin();
  Outgoing notice{FrameHeader{}, as_byte_span(label.data(), label.size()), {}};
  notice.header.kind = FrameKind::kSilent;
  notice.header.dest = node;
  notice.header.method = static_cast<uint32_t>(waiting.calls);
  const int64_t own_ns = lease_ns_.load(std::memory_order_relaxed);
  const int64_t lease_ns = waiting.lease_ns != 0 ? waiting.lease_ns : std::max<int64_t>(own_ns, 0);
  const int64_t lease_ms = (lease_ns + kMillisecondNs - 1) / kMillisecondNs;
  notice.header.rank = static_cast<uint32_t>(std::min<int64_t>(lease_ms, UINT32_MAX));
  const NodeId who = deaths_.who_knows(node);
  if (who == 0 || who == node) return;
  node_.inquire(who, notice);
  ask_who_looks(who, waiting);
}

void CallWatch::ask_who_looks(NodeId who, const Waiting& waiting) {
  Mute& mute = mute_[who];
  const int64_t now_ns = reactor_.now_ns();
  if (mute.since_ns == 0) mute.since_ns = now_ns;
  if (const auto it = deaths_.who_is(who); it && !mute.told && now_ns - mute.since_ns >= kMuteNs) {
    mute.told = true;
    say(name_of(*it) + " has said nothing for " + seconds_text(now_ns - mute.since_ns) +
        ": it is stopped, busy or out of reach; " + waiting.text("what it has started"));
  }
  Outgoing ping{FrameHeader{}, {}, {}};
  ping.header.kind = FrameKind::kPing;
  node_.inquire(who, ping);
}

void CallWatch::on_pong(NodeId node) {
  silent_.erase(node);
  const auto found = mute_.find(node);
  if (found == mute_.end()) return;
  const Mute mute = found->second;
  mute_.erase(found);
  const auto who = mute.told ? deaths_.who_is(node) : std::nullopt;
  if (who) say(name_of(*who) + " says something again, after " + seconds_text(reactor_.now_ns() - mute.since_ns));
}

void CallWatch::tell(NodeId node, const Halts::Change& change, const Waiting& waiting) {
  const auto who = deaths_.who_is(node);
  if (!who) return;
  if (change.now != Halt::kNone) {
    return say(name_of(*who) + " " + describe(change.now) + (waiting.calls == 0 ? "" : "; " + waiting.text()));
  }
  const std::string time = seconds_text(reactor_.now_ns() - change.since_ns);
  say(name_of(*who) + " goes on, after " + time);
}

void CallWatch::say(const std::string& line) {
  if (script_ == 0) return log_line(line);
  Outgoing notice{FrameHeader{}, as_byte_span(line.data(), line.size()), {}};
  notice.header.kind = FrameKind::kSilent;
  node_.inquire(script_, notice);
}

// As if it had died: nothing of it runs, and nothing will.
void CallWatch::end_lease(NodeId node, Halt halt, int64_t lease_ns) {
  ExitStatus status;
  status.known = true;
  status.signal = SIGKILL;
  const double seconds = static_cast<double>(lease_ns) / 1e9;
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  std::string what = describe(halt);
  if (what.starts_with("is ")) what.replace(0, 2, "was");
  status.because = what + " for longer than " + text + " while calls waited for it (stopped_rank_lease), and was killed";
  deaths_.dying(node, status);
  kill_(node);
  forget(node);
}

void CallWatch::forget(NodeId node) {
  halts_.forget(node);
  std::lock_guard lock(mutex_);
  halted_.erase(node);
}

// ---- Owners ----

// Whoever has made an actor owns it; its process is among those that this one has a link to, or it is not known here.
std::vector<CallWatch::Owned> CallWatch::owned_by_others(const std::vector<std::shared_ptr<PendingCall>>& calls) const {
  std::vector<Owned> owned;
  std::set<NodeId> peers;
  for (const auto& link : node_.links()) peers.insert(link->peer());
  for (const auto& call : calls) {
    if (!call->label() || call->decided() || call->size() == 0) continue;
    const ActorIndex index = call->members().ids[0].index;
    auto owner = peers.upper_bound(index);
    if (owner == peers.begin()) owner = peers.end();  // counted beyond the last integer, if at all
    if (owner == peers.begin() || !may_have_created(*std::prev(owner), index)) continue;
    owned.push_back({*std::prev(owner), call->token(), *call->label()});
  }
  return owned;
}

void CallWatch::end_unowned(const std::vector<Owned>& calls) {
  const int64_t limit_ns = watchdog_ns_.load(std::memory_order_relaxed);
  for (const Owned& call : calls) {
    const auto halted = halts_.halted().find(call.owner);
    const auto silent = silent_.find(call.owner);
    int64_t since_ns = INT64_MAX;
    if (halted != halts_.halted().end()) since_ns = halted->second.since_ns;
    if (silent != silent_.end()) since_ns = std::min(since_ns, silent->second);
    if (since_ns > reactor_.now_ns() - limit_ns) continue;
    const std::string mesh = call.label.substr(0, call.label.rfind('.'));
    node_.end_call(call.token, {Failure::Kind::kNoActor, "timed out reaching controller actor_mesh_controller_" + mesh +
                                                             " for mesh " + mesh +
                                                             ". Assuming controller's proc is dead"});
  }
}

Halt CallWatch::halt_of(NodeId node) const {
  if (node_.is_down(node)) return Halt::kNone;
  if (const int64_t pid = deaths_.is_child(node) ? deaths_.pid_here(node) : -1; pid > 0) {
    const char state = state_of_process(static_cast<pid_t>(pid));
    if (state == 'T' || state == 't') return state == 'T' ? Halt::kStopped : Halt::kTraced;
  }
  std::lock_guard lock(mutex_);
  const auto found = halted_.find(node);
  return found == halted_.end() ? Halt::kNone : found->second;
}

}  // namespace monarch
