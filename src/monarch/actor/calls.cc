#include "monarch/actor/calls.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

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
  // Some of it has passed since it was set.
  const bool is_long = deadline_ns != 0 && hooks_.on_overdue && deadline_ns - clock_.now_ns() >= kLongNs - kOverdueNs / 2;
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
  slots_[index].is_old = false;
  if (index / 64 == open_.size()) open_.push_back(0);
  open_[index / 64] |= uint64_t{1} << index % 64;
  count_.store(slots_.size() - free_slots_.size(), std::memory_order_relaxed);
  const uint64_t token = uint64_t{slots_[index].generation} << 32 | index;
  slots_[index].call->set_token(token);
  if (!looks_ && hooks_.on_look) arm_look(kLookNs);
  lock.unlock();
  if (timer_ns != 0) deadlines_.add(timer_ns, token);
  return token;
}

void Calls::begin_looks() {
  std::lock_guard lock(mutex_);
  if (!looks_ && hooks_.on_look) arm_look(kLookNs);
}

// mutex_ held. What a burst has left behind costs a look at one word for 64 of its calls.
template <typename Visit>
void Calls::visit_open(Visit visit) {
  for (size_t word = 0; word < open_.size(); ++word) {
    for (uint64_t rest = open_[word]; rest != 0; rest &= rest - 1) {
      visit(static_cast<uint32_t>(64 * word) + static_cast<uint32_t>(std::countr_zero(rest)));
    }
  }
}

// mutex_ held. A timer for all calls, which stays when they have ended until its time: an ordinary call pays a test for it.
void Calls::arm_look(int64_t after_ns) {
  looks_ = true;
  look_timer_ = timers_.after(after_ns, [this] { look(); });
}

void Calls::look() {
  const int64_t begin_ns = clock_.now_ns();
  std::vector<std::shared_ptr<PendingCall>> old;
  {
    std::lock_guard lock(mutex_);
    visit_open([&](uint32_t i) {
      if (std::exchange(slots_[i].is_old, true)) old.push_back(slots_[i].call);
    });
  }
  const bool wanted = hooks_.on_look(old);
  old.clear();  // outside the lock
  const int64_t took_ns = clock_.now_ns() - begin_ns;
  std::lock_guard lock(mutex_);
  // A call that was opened meanwhile, in the hook too, has left it to this look to see to the next one.
  looks_ = false;
  look_timer_ = 0;
  const bool any = free_slots_.size() < slots_.size();
  if (any || wanted) arm_look(std::max(kLookNs, kLookRest * took_ns));
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
  const std::vector<uint32_t> missing = call->missing();
  const std::string text = expired_text(call->size(), missing);
  for (const uint32_t rank : missing) fill(token, *call, rank, make_error(token, rank, ErrorKind::kDeadline, text));
}

void Calls::end(uint64_t token, const std::function<MessagePtr(uint32_t rank)>& make) {
  const std::shared_ptr<PendingCall> call = find(token).call;
  if (!call) return;
  for (const uint32_t rank : call->missing()) fill(token, *call, rank, make(rank));
}

bool Calls::answer(uint64_t token, std::span<PendingCall::Answer> answers) {
  const Slot slot = find(token);
  if (!slot.call) return true;  // a late answer
  // So is this, though the timer is later still. What a deadline has made fail elsewhere must not come before it does here.
  if (slot.deadline_ns != 0 && clock_.now_ns() >= slot.deadline_ns) {
    expire(token);
    return true;
  }
  bool refused = false;
  fill(token, *slot.call, answers, &refused);
  return !refused;
}

std::optional<std::vector<uint32_t>> Calls::missing(uint64_t token) {
  const std::shared_ptr<PendingCall> call = find(token).call;
  if (!call) return std::nullopt;
  return call->missing();
}

void Calls::fill(uint64_t token, PendingCall& call, std::span<PendingCall::Answer> answers, bool* refused) {
  if (!call.fill(answers, driver_, refused)) return;
  std::shared_ptr<PendingCall> ended;  // destroyed outside the lock
  const uint32_t index = static_cast<uint32_t>(token);
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[index];
  if (slot.generation != token >> 32) return;
  if (slot.timer_ns != 0) deadlines_.remove(std::exchange(slot.timer_ns, 0), token);
  slot.deadline_ns = 0;
  ended = std::move(slot.call);
  open_[index / 64] &= ~(uint64_t{1} << index % 64);
  if (++slot.generation == 0) slot.generation = 1;
  free_slots_.push_back(index);
  count_.store(slots_.size() - free_slots_.size(), std::memory_order_relaxed);
}

bool Calls::is_owed(const std::function<bool(const ActorId&)>& owing) {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    std::lock_guard lock(mutex_);
    visit_open([&](uint32_t i) { calls.push_back(slots_[i].call); });
  }
  for (const auto& call : calls) {
    const auto& ids = call->owing().ids;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (owing(ids[rank]) && call->reply(rank) == nullptr) return true;
    }
  }
  return false;
}

size_t Calls::size() const {
  std::lock_guard lock(mutex_);
  return slots_.size() - free_slots_.size();
}

void Calls::fail_owed(const std::function<bool(NodeId)>& owed_by, const Failure& why) {
  struct Owed {
    uint64_t token;
    std::shared_ptr<PendingCall> call;
  };
  std::vector<Owed> owed;
  {
    std::lock_guard lock(mutex_);
    visit_open([&](uint32_t i) { owed.push_back({uint64_t{slots_[i].generation} << 32 | i, slots_[i].call}); });
  }
  for (const Owed& entry : owed) {
    const auto& ids = entry.call->owing().ids;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (owed_by(ids[rank].node)) answer(entry.token, rank, make_failure(entry.token, rank, why));
    }
  }
}

}  // namespace monarch
