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
  if (header.kind != FrameKind::kRequest || header.rank > kReducerMax || header.token == 0) return;
  if (host_number(origin) == host_number(here_)) return;
  Call call{static_cast<Reducer>(header.rank), 0, timers_.now_ns(), {}};
  if (call.is_gather() && targets.size() == 1) return;
  call.owed.reserve(targets.size());
  for (const CastTarget& target : targets) {
    if (host_number(target.node) != host_number(here_) || target.node == here_) return;
    call.owed.push_back({target.rank, target.node, target.dest});
  }
  std::ranges::sort(call.owed, {}, &Owed::rank);
  if (std::ranges::adjacent_find(call.owed, {}, &Owed::rank) != call.owed.end()) return;
  std::lock_guard lock(mutex_);
  if (stopped_ || !has_room()) return;
  call.number = ++begun_;
  calls_.try_emplace({origin, header.token}, std::move(call));
  any_.store(true, std::memory_order_relaxed);
}

bool Reductions::has_room() {
  if (calls_.size() < kCallsMax) return true;
  if (timers_.now_ns() < full_until_ns_) return false;
  const auto oldest = std::ranges::min_element(calls_, {}, [](const auto& each) { return each.second.number; });
  full_until_ns_ = oldest->second.begun_ns + kOldNs;
  if (timers_.now_ns() < full_until_ns_) return false;
  pass_on(oldest);
  return true;
}

bool Reductions::take(const Answer& frame) {
  if (!any()) return false;
  const FrameRoute route = frame->route();
  std::lock_guard lock(mutex_);
  const auto of = is_answer(frame->header.kind) ? calls_.find({route.destination, frame->header.dest}) : calls_.end();
  if (of != calls_.end() && hold(of->second, route.destination, route.origin, frame)) {
    if (of->second.held == of->second.owed.size()) finish(of);
    return true;
  }
  if (of != calls_.end()) pass_on(of);
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

void Reductions::finish(Calls::iterator of) {
  const NodeId origin = of->first.first;
  for (auto other = calls_.lower_bound({origin, 0}); other != calls_.end() && other->first.first == origin;) {
    const auto each = other++;
    if (each != of && each->second.held > 0 && was_answered_before(each->second, of->second)) let_go(each);
  }
  if (of->second.is_gather() || !send_together(of->first, of->second)) return pass_on(of);
  drop(of);
}

// Whether an actor has answered `other`, and that is held, before it answered `call`.
bool Reductions::was_answered_before(const Call& other, const Call& call) {
  std::unordered_map<ActorId, uint64_t> numbers;  // of `call`, if they are needed
  for (size_t i = 0; i < other.owed.size(); ++i) {
    const Owed& each = other.owed[i];
    if (!each.answer) continue;
    uint64_t number = 0;
    if (i < call.owed.size() && call.owed[i].is_of(each)) {  // mostly both are to the same mesh
      number = call.owed[i].number;
    } else {
      if (numbers.empty()) {
        for (const Owed& answered : call.owed) numbers[{answered.node, answered.actor}] = answered.number;
      }
      const auto found = numbers.find({each.node, each.actor});
      if (found != numbers.end()) number = found->second;
    }
    if (each.number < number) return true;
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
  if (call.is_gather() && call.held > 1 && send_together(key, call)) return;
  for (const Owed& each : call.owed) {
    if (each.answer) hooks_.pass_on(each.answer);
  }
}

void Reductions::pass_on(Calls::iterator of) {
  send_held(of->first, of->second);
  drop(of);
}

// As pass_on(), but those of a gather that have not answered are awaited further on.
void Reductions::let_go(Calls::iterator of) {
  if (!of->second.is_gather()) return pass_on(of);
  send_held(of->first, of->second);
  forget_held(of->first, of->second);
  std::erase_if(of->second.owed, [](const Owed& each) { return each.answer != nullptr; });
}

// All that is held of that node for that origin.
void Reductions::pass_on_of(NodeId node, NodeId origin) {
  if (!held_of_.contains({node, origin})) return;
  for (auto next = calls_.lower_bound({origin, 0}); next != calls_.end() && next->first.first == origin;) {
    const auto call = next++;
    const auto is_held = [node](const Owed& each) { return each.node == node && each.answer; };
    if (std::ranges::any_of(call->second.owed, is_held)) let_go(call);
  }
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

Reductions::Calls::iterator Reductions::drop(Calls::iterator of) {
  forget_held(of->first, of->second);
  const auto next = calls_.erase(of);
  any_.store(!calls_.empty(), std::memory_order_relaxed);
  return next;
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
  if (const auto of = calls_.find({origin, token}); of != calls_.end()) pass_on(of);
}

void Reductions::node_down(NodeId node) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    if (call->first.first == node) {
      drop(call);
    } else if (std::ranges::find(call->second.owed, node, &Owed::node) != call->second.owed.end()) {
      pass_on(call);
    }
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
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    if (call->second.held == 0) continue;
    const int64_t until_ns = call->second.since_ns + call->second.hold_ns();
    until_ns <= timers_.now_ns() ? let_go(call) : arm(until_ns);
  }
}

void Reductions::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  calls_.clear();
  held_of_.clear();
  bytes_ = 0;
  any_.store(false, std::memory_order_relaxed);
  if (timer_ != 0) timers_.cancel(std::exchange(timer_, 0));
}

size_t Reductions::calls() const {
  std::lock_guard lock(mutex_);
  return calls_.size();
}

}  // namespace monarch
