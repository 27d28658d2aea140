#include "monarch/actor/calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "monarch/actor/pending_call.h"
#include "monarch/wire/value.h"

namespace monarch {

namespace {
FrameHeader reply_header(FrameKind kind, uint64_t token, uint32_t rank) {
  FrameHeader header;
  header.kind = kind;
  header.dest = token;
  header.rank = rank;
  return header;
}

std::string expired_text(size_t ranks, const std::vector<uint32_t>& missing) {
  constexpr size_t kNamedMax = 16;
  std::string text = "the deadline of this call has passed";
  if (ranks <= 1) return text;
  text += "; of " + std::to_string(ranks) + " ranks these had not answered: ";
  for (size_t i = 0; i < std::min(missing.size(), kNamedMax); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  }
  if (missing.size() > kNamedMax) text += " and " + std::to_string(missing.size() - kNamedMax) + " more";
  return text;
}
}  // namespace

MessagePtr make_error(uint64_t token, uint32_t rank, ErrorKind kind, std::string_view text) {
  ValueWriter error;
  begin_error(error, kind, 1);
  error.str(text);
  const ByteSpan body = error.written();
  return Message::make(reply_header(FrameKind::kReplyError, token, rank),
                       {reinterpret_cast<const char*>(body.data()), body.size()});
}

MessagePtr make_failure(uint64_t token, uint32_t rank, const Failure& why) {
  return Message::make(reply_header(FrameKind::kReplyFailed, token, rank), why.encoded());
}

Failure failure_of(const Message& message) {
  auto failure = Failure::decode(message.body);
  return failure ? std::move(*failure) : Failure("a failure that cannot be read: " + failure.error().message);
}

std::string reply_text(const Message& reply) {
  return reply.header.kind == FrameKind::kReplyFailed ? failure_of(reply).text() : std::string(reply.text());
}

Calls::Calls(Driver& driver, Timers& timers, Hooks hooks)
    : driver_(driver),
      clock_(timers),
      hooks_(std::move(hooks)),
      timers_(timers),
      deadlines_(timers, [this](uint64_t token) { on_timer(token); }) {}

Calls::~Calls() {
  if (look_timer_ != 0) timers_.cancel(look_timer_);
}

uint64_t Calls::open(std::shared_ptr<PendingCall> call, int64_t deadline_ns) {
  const bool is_long = deadline_ns != 0 && hooks_.on_overdue && deadline_ns - clock_.now_ns() >= kLongNs;
  const int64_t timer_ns = is_long ? deadline_ns - kOverdueNs : deadline_ns;
  std::unique_lock lock(mutex_);
  uint32_t index;
  if (free_slots_.empty()) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[index].call = std::move(call);
  slots_[index].deadline_ns = deadline_ns;
  slots_[index].timer_ns = timer_ns;
  const uint64_t token = uint64_t{slots_[index].generation} << 32 | index;
  slots_[index].call->set_token(token);
  if (!looks_ && hooks_.on_look) arm_look();
  lock.unlock();
  if (timer_ns != 0) deadlines_.add(timer_ns, token);
  return token;
}

void Calls::begin_looks() {
  std::lock_guard lock(mutex_);
  if (!looks_ && hooks_.on_look) arm_look();
}

// mutex_ held. A timer for all calls, which stays when they have ended until its time: an ordinary call pays a test for it.
void Calls::arm_look() {
  looks_ = true;
  look_timer_ = timers_.after(kLookNs, [this] { look(); });
}

void Calls::look() {
  std::vector<std::shared_ptr<PendingCall>> old;
  bool any = false;
  {
    std::lock_guard lock(mutex_);
    seen_.resize(slots_.size());
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      const uint64_t token = slots_[i].call ? uint64_t{slots_[i].generation} << 32 | i : 0;
      if (token != 0 && seen_[i] == token) old.push_back(slots_[i].call);
      seen_[i] = token;
      any = any || token != 0;
    }
  }
  const bool wanted = hooks_.on_look(old);
  std::lock_guard lock(mutex_);
  looks_ = false;
  look_timer_ = 0;
  if (any || wanted) arm_look();
}

Calls::Slot Calls::find(uint64_t token) {
  const uint32_t index = static_cast<uint32_t>(token);
  std::lock_guard lock(mutex_);
  return index < slots_.size() && slots_[index].generation == token >> 32 ? slots_[index] : Slot();
}

void Calls::on_timer(uint64_t token) {
  std::shared_ptr<PendingCall> overdue;
  {
    std::lock_guard lock(mutex_);
    const uint32_t index = static_cast<uint32_t>(token);
    if (index >= slots_.size() || slots_[index].generation != token >> 32) return;
    Slot& slot = slots_[index];
    if (slot.timer_ns < slot.deadline_ns) {
      overdue = slot.call;
      slot.timer_ns = slot.deadline_ns;
      deadlines_.add(slot.timer_ns, token);
    }
  }
  overdue ? hooks_.on_overdue(overdue) : expire(token);
}

void Calls::expire(uint64_t token) {
  const std::shared_ptr<PendingCall> call = find(token).call;
  if (!call) return;
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < call->size(); ++rank) {
    if (call->reply(rank) == nullptr) missing.push_back(rank);
  }
  const std::string text = expired_text(call->size(), missing);
  for (const uint32_t rank : missing) fill(token, *call, rank, make_error(token, rank, ErrorKind::kDeadline, text));
}

void Calls::end(uint64_t token, const std::function<MessagePtr(uint32_t rank)>& make) {
  const std::shared_ptr<PendingCall> call = find(token).call;
  if (!call) return;
  for (uint32_t rank = 0; rank < call->size(); ++rank) {
    if (call->reply(rank) == nullptr) fill(token, *call, rank, make(rank));
  }
}

void Calls::answer(uint64_t token, uint32_t rank, MessagePtr reply) {
  const Slot slot = find(token);
  if (!slot.call) return;  // a late answer
  // So is this, though the timer is later still. What a deadline has made fail elsewhere must not come before it does here.
  if (slot.deadline_ns != 0 && clock_.now_ns() >= slot.deadline_ns) return expire(token);
  fill(token, *slot.call, rank, std::move(reply));
}

void Calls::fill(uint64_t token, PendingCall& call, uint32_t rank, MessagePtr reply) {
  if (!call.fill(rank, std::move(reply), driver_)) return;
  std::shared_ptr<PendingCall> ended;  // destroyed outside the lock
  const uint32_t index = static_cast<uint32_t>(token);
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[index];
  if (slot.generation != token >> 32) return;
  if (slot.timer_ns != 0) deadlines_.remove(std::exchange(slot.timer_ns, 0), token);
  slot.deadline_ns = 0;
  ended = std::move(slot.call);
  if (++slot.generation == 0) slot.generation = 1;
  free_slots_.push_back(index);
}

bool Calls::is_owed(const std::function<bool(const ActorId&)>& owing) {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_) {
      if (slot.call) calls.push_back(slot.call);
    }
  }
  for (const auto& call : calls) {
    const auto& ids = call->owing().ids;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (owing(ids[rank]) && call->reply(rank) == nullptr) return true;
    }
  }
  return false;
}

void Calls::fail_owed(const std::function<bool(NodeId)>& owed_by, const Failure& why) {
  struct Owed {
    uint64_t token;
    std::shared_ptr<PendingCall> call;
  };
  std::vector<Owed> owed;
  {
    std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].call) owed.push_back({uint64_t{slots_[i].generation} << 32 | i, slots_[i].call});
    }
  }
  for (const Owed& entry : owed) {
    const auto& ids = entry.call->owing().ids;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (owed_by(ids[rank].node)) answer(entry.token, rank, make_failure(entry.token, rank, why));
    }
  }
}

}  // namespace monarch
