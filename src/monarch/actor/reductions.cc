#include "monarch/actor/reductions.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>

namespace monarch {

namespace {

bool is_answer(FrameKind kind) {
  return kind == FrameKind::kReply || kind == FrameKind::kReplyError || kind == FrameKind::kReplyFailed;
}

}  // namespace

void Reductions::begin(NodeId origin, const FrameHeader& header, const std::vector<CastTarget>& targets, NodeId parent,
                       std::vector<BranchAnswers> branches) {
  const uint32_t number = header.rank & ~kAnswersByTree;
  const auto reducer = static_cast<Reducer>(number);
  const bool is_known = number != 0 && (number <= kReducerMax || reducer == Reducer::kGather);
  if (header.kind != FrameKind::kRequest || !is_known || header.token == 0) return;
  if (host_number(origin) == host_number(here_)) return;
  Call call{.reducer = reducer, .number = 0, .begun_ns = timers_.now_ns()};
  if ((header.rank & kAnswersByTree) != 0) {
    call.parent = parent;
    call.branches = std::move(branches);
  }
  if (call.is_gather() && targets.size() == 1 && !call.is_in_tree()) return;
  call.owed.reserve(targets.size());
  for (const CastTarget& target : targets) call.owed.push_back({target.rank, target.node, target.dest});
  std::ranges::sort(call.owed, {}, &Owed::rank);
  const auto is_not_of_host = [this](const Owed& each) {
    return host_number(each.node) != host_number(here_) || each.node == here_;
  };
  const bool is_good = std::ranges::none_of(call.owed, is_not_of_host) &&
                       std::ranges::adjacent_find(call.owed, {}, &Owed::rank) == call.owed.end();
  const Key key(origin, header.token);
  std::lock_guard lock(mutex_);
  if (!is_good || stopped_ || !has_room(call.owed.size())) return leave_tree(key, call);
  call.number = ++begun_;
  const size_t owed = call.owed.size();
  if (calls_.try_emplace(key, std::move(call)).second) owed_ += owed;
  any_.store(true, std::memory_order_relaxed);
}

bool Reductions::has_room(size_t owed) {
  if (calls_.size() < kCallsMax && owed_ + owed <= kOwedMax) return true;
  if (calls_.empty() || timers_.now_ns() < full_until_ns_) return false;
  const auto oldest = std::ranges::min_element(calls_, {}, [](const auto& each) { return each.second.number; });
  full_until_ns_ = oldest->second.begun_ns + kOldNs;
  if (timers_.now_ns() < full_until_ns_) return false;
  go_on_and_end(oldest);
  return calls_.size() < kCallsMax && owed_ + owed <= kOwedMax;
}

bool Reductions::take(const Answer& frame) {
  if (!any()) return false;
  const FrameRoute route = frame->route();
  std::lock_guard lock(mutex_);
  const auto of = is_answer(frame->header.kind) ? calls_.find({route.destination, frame->header.dest}) : calls_.end();
  if (of != calls_.end() && hold(of->second, route.destination, route.origin, frame)) {
    if (of->second.is_complete()) go_on({of});
    return true;
  }
  if (of != calls_.end()) go_on_and_end(of);
  pass_on_of(route.origin, route.destination);
  return false;
}

bool Reductions::hold(Call& call, NodeId origin, NodeId node, const Answer& answer) {
  const uint64_t bytes = answer->total_bytes();
  constexpr uint32_t kFlags = kFlagPickle | kFlagArrays | kFlagBodyPart | kFlagRouted;  // as replies.cc takes them
  if (answer->header.kind != FrameKind::kReply || (answer->header.flags & ~kFlags) != 0) return false;
  if (answer->lost_bytes != 0) return false;
  if (bytes > (call.is_gather() ? kGatheredBytesMax : kAnswerBytesMax) || bytes_ + bytes > kBytesMax) return false;
  if (!call.keeps_all() && answer->body.size() > kBodyBytesMax) return false;
  const auto owed = std::ranges::lower_bound(call.owed, answer->header.rank, {}, &Owed::rank);
  if (owed == call.owed.end() || owed->rank != answer->header.rank || owed->node != node || owed->answer) return false;
  ++held_of_[{node, origin}];
  note_held(call, bytes);
  owed->answer = answer;
  owed->number = ++answered_;
  ++call.held;
  return true;
}

// Before it is counted.
void Reductions::note_held(Call& call, uint64_t bytes) {
  if (!call.holds_any()) {
    call.first = answered_ + 1;
    call.since_ns = timers_.now_ns();
    arm(call.since_ns + call.hold_ns());
  }
  call.bytes += bytes;
  bytes_ += bytes;
}

void Reductions::take_branch(const Answer& frame) {
  const Key key(frame->header.sender, frame->header.dest);
  std::lock_guard lock(mutex_);
  const auto of = calls_.find(key);
  const bool is_known = of != calls_.end() && of->second.branch(frame->from) != nullptr;
  if (is_known && hold_branch(of->second, frame)) {
    if (of->second.is_complete()) go_on({of});
    return;
  }
  if (is_known) go_on_and_end(of);  // nothing comes of it any more
  if (!frame->body.empty()) send_branch(key, *frame);
}

bool Reductions::hold_branch(Call& call, const Answer& frame) {
  const uint64_t bytes = frame->total_bytes();
  BranchAnswers* const branch = call.branch(frame->from);
  if (branch->frame || bytes_ + bytes > kBytesMax) return false;
  try {
    auto entries = decode_replies(frame->body, frame->parts.size());
    if (!entries || entries->size() != branch->ranks) return false;
    branch->entries = std::move(*entries);
  } catch (const std::bad_alloc&) {
    return false;
  }
  note_held(call, bytes);
  branch->frame = frame;
  ++call.held_branches;
  return true;
}

// What is held of these goes on, in the order in which it came; and so does what their actors have answered before. Those
// of which all was there have ended then, and those with a reducer have in any case.
void Reductions::go_on(Some calls) {
  add_earlier(calls);
  std::ranges::sort(calls, {}, [](const auto& of) { return of->second.first; });
  bool is_in_order = true;
  for (size_t i = 0; i < calls.size() && is_in_order; ++i) {
    for (size_t j = 0; j < i; ++j) is_in_order = is_in_order && !has_earlier(calls[i]->second, calls[j]->second);
  }
  if (is_in_order) {
    for (const auto& of : calls) send_held(of->first, of->second);
  } else {
    std::map<uint64_t, const Answer*> singly;
    for (const auto& of : calls) {
      for (const Owed& each : of->second.owed) {
        if (each.answer) singly[each.number] = &each.answer;
      }
      for (const BranchAnswers& branch : of->second.branches) {
        if (branch.frame) send_branch(of->first, *branch.frame);
      }
    }
    for (const auto& [number, answer] : singly) hooks_.pass_on(*answer);
    for (const auto& of : calls) leave_tree(of->first, of->second);
  }
  for (const auto& of : calls) {
    Call& call = of->second;
    if (!call.is_gather() || call.held == call.owed.size()) {
      drop(of);
      continue;
    }
    forget_held(of->first, call);
    owed_ -= std::erase_if(call.owed, [](const Owed& each) { return each.answer != nullptr; });
    call.branches.clear();  // what is not whole goes to its caller
    call.held_branches = 0;
  }
  update_any();
}

void Reductions::go_on_and_end(Calls::iterator of) {
  const Key key = of->first;
  if (of->second.holds_any()) go_on({of});
  if (const auto left = calls_.find(key); left != calls_.end()) {
    leave_tree(key, left->second);
    drop(left);
  }
}

// Those of which something is held that an actor has answered before what is held of one of these, and so on.
void Reductions::add_earlier(Some& calls) {
  const NodeId origin = calls.front()->first.first;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (auto other = calls_.lower_bound({origin, 0}); other != calls_.end() && other->first.first == origin; ++other) {
      if (other->second.held == 0 || other->second.waits_for_branches()) continue;
      if (std::ranges::find(calls, other) != calls.end()) continue;
      if (has_earlier(other->second, calls[i]->second)) calls.push_back(other);
    }
  }
}

// Whether an actor has answered `other`, and that is held, before it answered `call`, which is held too.
bool Reductions::has_earlier(const Call& other, const Call& call) {
  std::unordered_map<ActorId, uint64_t> numbers;  // of `call`, if they are needed
  for (size_t i = 0; i < other.owed.size(); ++i) {
    const Owed& each = other.owed[i];
    if (!each.answer) continue;
    if (i < call.owed.size() && call.owed[i].is_of(each)) {  // mostly both are to the same mesh
      if (each.number < call.owed[i].number) return true;
      continue;
    }
    if (numbers.empty()) {
      for (const Owed& answered : call.owed) numbers[{answered.node, answered.actor}] = answered.number;
    }
    const auto found = numbers.find({each.node, each.actor});
    if (found != numbers.end() && each.number < found->second) return true;
  }
  return false;
}

// All of a call, and of the hosts behind this one, to its parent or its caller. False: it is not to go so.
bool Reductions::send_up(const Key& key, const Call& call) {
  try {
    AnswersTogether together;
    if (!together.combine(call.reducer, call.owed, call.branches) || !together.fits()) return false;
    if (!together.is_one_value() && together.bytes() > kSideBySideMax) return false;
    const bool is_top = call.parent == 0;
    Outgoing frame = together.frame(is_top ? FrameKind::kReply : FrameKind::kTreeReply, key.second);
    if (!is_top) frame.header.sender = key.first;
    if (!kept_.add(key, call.parent, call.owed, timers_.now_ns())) return false;
    arm(kept_.unnamed_ns());
    if (is_top ? hooks_.send(key.first, frame) : hooks_.send_up(call.parent, frame)) return true;
    kept_.forget(key);
    return false;
  } catch (const std::bad_alloc&) {
    kept_.forget(key);
    return false;
  }
}

// Those of this host, as one frame to its caller. False: they are not to be combined, which their caller will find as well,
// or there is no memory for it.
bool Reductions::send_together(const Key& key, const Reducer reducer, const std::vector<Owed>& owed) const {
  try {
    AnswersTogether together;
    if (reducer == Reducer::kGather) {
      together.put_side_by_side(owed);
    } else if (!together.combine(reducer, owed, {})) {
      return false;
    }
    return together.fits() && hooks_.send(key.first, together.frame(FrameKind::kReply, key.second));
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Reductions::send_held(const Key& key, Call& call) {
  if (call.is_in_tree() && call.is_complete() && send_up(key, call)) {
    call.parent = 0;
    return;
  }
  const bool is_one_frame = call.is_gather() ? call.held > 1 : call.held == call.owed.size();
  if (!is_one_frame || !send_together(key, call.reducer, call.owed)) {
    for (const Owed& each : call.owed) {
      if (each.answer) hooks_.pass_on(each.answer);
    }
  }
  for (const BranchAnswers& branch : call.branches) {
    if (branch.frame) send_branch(key, *branch.frame);
  }
  leave_tree(key, call);
}

// It is not to wait for this one: an empty kTreeReply.
void Reductions::leave_tree(const Key& key, Call& call) const {
  const NodeId parent = std::exchange(call.parent, 0);
  if (parent == 0) return;
  Outgoing nothing{FrameHeader{}, {}, {}};
  nothing.header.kind = FrameKind::kTreeReply;
  nothing.header.dest = key.second;
  nothing.header.sender = key.first;
  nothing.header.rank = kEveryRank;
  try {
    static_cast<void>(hooks_.send_up(parent, nothing));
  } catch (const std::bad_alloc&) {
    // Then it waits, for as long as it holds anything at most.
  }
}

// As it came, to its caller.
void Reductions::send_branch(const Key& key, const Message& frame) const {
  try {
    std::vector<ByteSpan> parts;
    for (const Part& part : frame.parts) parts.emplace_back(part.data, part.size);
    Outgoing answers{FrameHeader{}, frame.body, parts};
    answers.header.kind = FrameKind::kReply;
    answers.header.dest = key.second;
    answers.header.rank = kEveryRank;
    static_cast<void>(hooks_.send(key.first, answers));
  } catch (const std::bad_alloc&) {
    // Those whose answers they are have them, and its caller will ask.
  }
}

void Reductions::send_kept(const KeptAnswers::Taken& taken) const {
  for (const auto& [key, kept] : taken) {
    if (kept.owed.size() > 1 && send_together(key, Reducer::kGather, kept.owed)) continue;
    for (const Owed& each : kept.owed) hooks_.pass_on(each.answer);
  }
}

void Reductions::seen(NodeId origin, const std::vector<SeenCall>& calls) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  send_kept(kept_.take_missing(origin, calls, timers_.now_ns()));
  update_any();
}

// All that is held of that node for that origin.
void Reductions::pass_on_of(NodeId node, NodeId origin) {
  if (!held_of_.contains({node, origin})) return;
  Some calls;
  for (auto call = calls_.lower_bound({origin, 0}); call != calls_.end() && call->first.first == origin; ++call) {
    const auto is_held = [node](const Owed& each) { return each.node == node && each.answer; };
    if (call->second.held == 0 || call->second.waits_for_branches()) continue;
    if (std::ranges::any_of(call->second.owed, is_held)) calls.push_back(call);
  }
  if (!calls.empty()) go_on(std::move(calls));
}

void Reductions::pass_on_of(NodeId node) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (auto held = held_of_.lower_bound({node, 0}); held != held_of_.end() && held->first.first == node;) {
    const NodeId origin = held->first.second;
    pass_on_of(node, origin);
    held = held_of_.upper_bound({node, origin});
  }
}

void Reductions::drop(Calls::iterator of) {
  forget_held(of->first, of->second);
  owed_ -= of->second.owed.size();
  calls_.erase(of);
  update_any();
}

void Reductions::forget_held(const Key& key, Call& call) {
  for (const Owed& each : call.owed) {
    const auto held = each.answer ? held_of_.find({each.node, key.first}) : held_of_.end();
    if (held != held_of_.end() && --held->second == 0) held_of_.erase(held);
  }
  bytes_ -= std::exchange(call.bytes, 0);
  call.held = 0;
}

void Reductions::give_up(NodeId origin, uint64_t token) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  if (const auto of = calls_.find({origin, token}); of != calls_.end()) go_on_and_end(of);
}

void Reductions::node_down(NodeId node) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  kept_.forget_caller(node);
  send_kept(kept_.take_last_of(node));
  send_kept(kept_.take_given_to(node));
  update_any();
  std::vector<Key> ended;
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    if (call->first.first == node) {
      drop(call);
    } else if (std::ranges::find(call->second.owed, node, &Owed::node) != call->second.owed.end() ||
               call->second.branch(node) != nullptr) {
      ended.push_back(call->first);
    }
  }
  for (const Key& key : ended) {  // another's end may have been that of this
    if (const auto of = calls_.find(key); of != calls_.end()) go_on_and_end(of);
  }
}

void Reductions::let_go(NodeId gateway) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  send_kept(kept_.take_given_to(gateway));
  update_any();
  std::vector<Key> ended;
  for (auto& [key, call] : calls_) {
    if (call.branch(gateway) != nullptr || call.parent == gateway) ended.push_back(key);
  }
  for (const Key& key : ended) {
    if (const auto of = calls_.find(key); of != calls_.end()) go_on_and_end(of);
  }
}

// The timer is at the earliest of the times that it was armed for.
void Reductions::arm(int64_t at_ns) {
  if (timer_ != 0) {
    if (timer_at_ns_ <= at_ns) return;
    timers_.cancel(timer_);
  }
  timer_at_ns_ = at_ns;
  timer_ = timers_.after(std::max<int64_t>(0, at_ns - timers_.now_ns()), [this, turn = ++turn_] { look(turn); });
}

void Reductions::look(uint64_t turn) {
  std::lock_guard lock(mutex_);
  if (turn != turn_) return;
  timer_ = 0;
  std::map<NodeId, Some> due;
  for (auto call = calls_.begin(); call != calls_.end(); ++call) {
    if (call->second.holds_any() && call->second.since_ns + call->second.hold_ns() <= timers_.now_ns()) {
      due[call->first.first].push_back(call);
    }
  }
  for (auto& [origin, calls] : due) go_on(std::move(calls));
  send_kept(kept_.take_unnamed(timers_.now_ns()));
  update_any();
  if (!kept_.empty()) arm(kept_.unnamed_ns());
  for (const auto& [key, call] : calls_) {
    if (call.holds_any()) arm(call.since_ns + call.hold_ns());
  }
}

void Reductions::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  calls_.clear();
  kept_.clear();
  held_of_.clear();
  bytes_ = owed_ = 0;
  any_.store(false, std::memory_order_relaxed);
  if (timer_ != 0) timers_.cancel(std::exchange(timer_, 0));
}

size_t Reductions::kept() const {
  std::lock_guard lock(mutex_);
  return kept_.size();
}

size_t Reductions::calls() const {
  std::lock_guard lock(mutex_);
  return calls_.size();
}

}  // namespace monarch
