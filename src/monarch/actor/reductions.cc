#include "monarch/actor/reductions.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "monarch/wire/replies.h"

namespace monarch {

namespace {

bool is_answer(FrameKind kind) {
  return kind == FrameKind::kReply || kind == FrameKind::kReplyError || kind == FrameKind::kReplyFailed;
}

// What several have answered, as one frame. What is added stays where it is.
struct Together {
  void add(uint32_t rank, uint32_t flags, ByteSpan body, std::span<const Part> more) {
    entries.push_back({rank, flags, static_cast<uint32_t>(1 + more.size()), 0});
    parts.push_back(body);
    for (const Part& part : more) parts.emplace_back(part.data, part.size);
  }
  void add_without_value(uint32_t rank) { entries.push_back({rank, kFlagReduce, 0, 0}); }

  std::vector<ReplyEntry> entries;
  std::vector<ByteSpan> parts;
};

}  // namespace

void Reductions::begin(NodeId origin, const FrameHeader& header, const std::vector<CastTarget>& targets) {
  const auto reducer = static_cast<Reducer>(header.rank);
  const bool is_known = header.rank != 0 && (header.rank <= kReducerMax || reducer == Reducer::kGather);
  if (header.kind != FrameKind::kRequest || !is_known || header.token == 0) return;
  if (host_number(origin) == host_number(here_)) return;
  Call call{reducer, 0, timers_.now_ns(), {}};
  if (call.is_gather() && targets.size() == 1) return;
  call.owed.reserve(targets.size());
  for (const CastTarget& target : targets) {
    if (host_number(target.node) != host_number(here_) || target.node == here_) return;
    call.owed.push_back({target.rank, target.node, target.dest});
  }
  std::ranges::sort(call.owed, {}, &Owed::rank);
  if (std::ranges::adjacent_find(call.owed, {}, &Owed::rank) != call.owed.end()) return;
  std::lock_guard lock(mutex_);
  if (stopped_ || !has_room(call.owed.size())) return;
  call.number = ++begun_;
  const size_t owed = call.owed.size();
  if (calls_.try_emplace({origin, header.token}, std::move(call)).second) owed_ += owed;
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
    if (of->second.held == of->second.owed.size()) go_on({of});
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
  if (call.held == 0) {
    call.first = answered_ + 1;
    call.since_ns = timers_.now_ns();
    arm(call.since_ns + call.hold_ns());
  }
  owed->answer = answer;
  owed->number = ++answered_;
  call.bytes += bytes;
  bytes_ += bytes;
  ++call.held;
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
    }
    for (const auto& [number, answer] : singly) hooks_.pass_on(*answer);
  }
  for (const auto& of : calls) {
    Call& call = of->second;
    if (!call.is_gather() || call.held == call.owed.size()) {
      drop(of);
      continue;
    }
    forget_held(of->first, call);
    owed_ -= std::erase_if(call.owed, [](const Owed& each) { return each.answer != nullptr; });
  }
}

void Reductions::go_on_and_end(Calls::iterator of) {
  const Key key = of->first;
  if (of->second.held > 0) go_on({of});
  if (const auto left = calls_.find(key); left != calls_.end()) drop(left);
}

// Those of which something is held that an actor has answered before what is held of one of these, and so on.
void Reductions::add_earlier(Some& calls) {
  const NodeId origin = calls.front()->first.first;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (auto other = calls_.lower_bound({origin, 0}); other != calls_.end() && other->first.first == origin; ++other) {
      if (other->second.held == 0 || std::ranges::find(calls, other) != calls.end()) continue;
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

// False: they are not to be combined, which their caller will find as well, or there is no memory for it.
bool Reductions::send_together(const Key& key, const Call& call) const {
  try {
    Together together;
    ReducedValue value;
    if (call.keeps_all()) {
      for (const Owed& each : call.owed) {
        if (!each.answer) continue;
        together.add(each.rank, each.answer->header.flags & ~uint32_t{kFlagRouted}, each.answer->body, each.answer->parts);
      }
    } else {
      if (call.reducer != Reducer::kCount) {
        Reduction reduction(call.reducer);
        for (const Owed& each : call.owed) {
          if (!reduction.add({each.rank, each.answer->header.flags, each.answer->body, each.answer->parts})) return false;
        }
        if (!reduction.write(value)) return false;
        together.add(call.owed.front().rank, value.flags, value.body, value.parts);
      }
      for (size_t i = together.entries.size(); i < call.owed.size(); ++i) together.add_without_value(call.owed[i].rank);
    }
    if (together.parts.size() > kPartsMax) return false;
    const std::string body = encode_replies(together.entries);
    Outgoing frame{FrameHeader{}, as_byte_span(body.data(), body.size()), together.parts};
    frame.header.kind = FrameKind::kReply;
    frame.header.dest = key.second;
    frame.header.rank = kEveryRank;
    return hooks_.send(key.first, frame);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Reductions::send_held(const Key& key, const Call& call) const {
  const bool is_one_frame = call.is_gather() ? call.held > 1 : call.held == call.owed.size();
  if (is_one_frame && send_together(key, call)) return;
  for (const Owed& each : call.owed) {
    if (each.answer) hooks_.pass_on(each.answer);
  }
}

// All that is held of that node for that origin.
void Reductions::pass_on_of(NodeId node, NodeId origin) {
  if (!held_of_.contains({node, origin})) return;
  Some calls;
  for (auto call = calls_.lower_bound({origin, 0}); call != calls_.end() && call->first.first == origin; ++call) {
    const auto is_held = [node](const Owed& each) { return each.node == node && each.answer; };
    if (call->second.held > 0 && std::ranges::any_of(call->second.owed, is_held)) calls.push_back(call);
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
  any_.store(!calls_.empty(), std::memory_order_relaxed);
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
  std::vector<Key> ended;
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    if (call->first.first == node) {
      drop(call);
    } else if (std::ranges::find(call->second.owed, node, &Owed::node) != call->second.owed.end()) {
      ended.push_back(call->first);
    }
  }
  for (const Key& key : ended) {  // another's end may have been that of this
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
    if (call->second.held > 0 && call->second.since_ns + call->second.hold_ns() <= timers_.now_ns()) {
      due[call->first.first].push_back(call);
    }
  }
  for (auto& [origin, calls] : due) go_on(std::move(calls));
  for (const auto& [key, call] : calls_) {
    if (call.held > 0) arm(call.since_ns + call.hold_ns());
  }
}

void Reductions::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  calls_.clear();
  held_of_.clear();
  bytes_ = owed_ = 0;
  any_.store(false, std::memory_order_relaxed);
  if (timer_ != 0) timers_.cancel(std::exchange(timer_, 0));
}

size_t Reductions::calls() const {
  std::lock_guard lock(mutex_);
  return calls_.size();
}

}  // namespace monarch
