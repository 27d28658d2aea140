#include "monarch/actor/pending_call.h"

#include <algorithm>
#include <utility>

namespace monarch {

PendingCall::PendingCall(std::shared_ptr<const Members> members)
    : members_(std::move(members)), size_(static_cast<uint32_t>(members_->ids.size())) {
  if (size_ != 1) {
    replies_.resize(size_);
    order_.reserve(size_);
  }
}

Message* PendingCall::reply(uint32_t rank) const {
  std::lock_guard lock(mutex_);
  if (size_ == 1) return single_.get();
  return is_in_other(rank) ? in_other_.get() : replies_[rank].get();
}

std::vector<uint32_t> PendingCall::missing() const {
  std::vector<uint32_t> found;
  std::lock_guard lock(mutex_);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (!has(rank)) found.push_back(rank);
  }
  return found;
}

MessagePtr PendingCall::take(uint32_t rank) {
  std::lock_guard lock(mutex_);
  return std::move(size_ == 1 ? single_ : replies_[rank]);
}

uint32_t PendingCall::arrival(uint32_t i) const {
  std::lock_guard lock(mutex_);
  return size_ == 1 ? 0 : order_[i];
}

int64_t PendingCall::lowest_error() const { return first_error_.load(std::memory_order_acquire); }

// mutex_ held. False: it has one.
bool PendingCall::place(Answer& answer) {
  if (answer.rank >= size_ || has(answer.rank)) return false;
  if (answer.reply) {
    const int64_t lowest = first_error_.load(std::memory_order_relaxed);
    const bool is_error = answer.reply->header.kind != FrameKind::kReply;
    if (is_error && (lowest < 0 || answer.rank < lowest)) first_error_.store(answer.rank, std::memory_order_release);
    (size_ == 1 ? single_ : replies_[answer.rank]) = std::move(answer.reply);
  } else {
    FrameHeader header;
    header.kind = FrameKind::kReply;
    header.flags = kFlagReduce;
    MessagePtr& whole = size_ == 1 ? single_ : in_other_;
    if (!whole) whole = Message::make(header, {}, 0);
    if (size_ != 1) {
      if (in_others_.empty()) in_others_.resize(size_);
      in_others_[answer.rank] = true;
    }
  }
  if (size_ != 1) order_.push_back(answer.rank);
  received_.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

// mutex_ held. Of a call that has failed nobody looks at values, of a count there are none, and what a host has combined of
// its own comes once.
bool PendingCall::overlaps(std::span<const Answer> answers) const {
  const auto is_in_other = [](const Answer& answer) { return answer.reply == nullptr; };
  const auto in_others = std::ranges::count_if(answers, is_in_other);
  if (first_error_.load(std::memory_order_relaxed) >= 0 || in_others == 0 || in_others == std::ssize(answers)) return false;
  const auto is_there = [this](const Answer& answer) { return answer.rank < size_ && has(answer.rank); };
  const auto there = std::ranges::count_if(answers, is_there);
  if (there == 0 || there == std::ssize(answers)) return false;
  const auto host_of = [this](const Answer& answer) {
    return answer.rank < size_ ? host_number(owing().ids[answer.rank].node) : HostNumber{0};
  };
  return std::ranges::adjacent_find(answers, std::ranges::not_equal_to(), host_of) != answers.end();
}

bool PendingCall::fill(std::span<Answer> answers, Driver& driver, bool* refused) {
  std::vector<Observer> due;
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    if (refused != nullptr && overlaps(answers)) {
      *refused = true;
      return false;
    }
    bool any = false;
    for (Answer& answer : answers) any = place(answer) || any;
    if (!any) return false;
    last = received_.load(std::memory_order_relaxed) == size_;
    for (const Waiting& each : waiters_) {
      if (reached(each.arrivals)) driver.notify(*each.waiter);
    }
    const auto is_due = [this](const Observer& each) { return reached(each.arrivals); };
    if (std::ranges::all_of(observers_, is_due)) {
      due.swap(observers_);  // mostly, and then nothing is allocated here
    } else {
      auto still = std::stable_partition(observers_.begin(), observers_.end(),
                                         [&](const Observer& each) { return !is_due(each); });
      due.assign(std::make_move_iterator(still), std::make_move_iterator(observers_.end()));
      observers_.erase(still, observers_.end());
    }
  }
  for (Observer& observer : due) observer.run();
  return last;
}

void PendingCall::abandon() {
  for (Observer& observer : std::exchange(observers_, {})) observer.run();
}

void PendingCall::add_waiter(Waiter& waiter, uint32_t arrivals) {
  std::lock_guard lock(mutex_);
  waiters_.push_back({&waiter, arrivals});
}

void PendingCall::remove_waiter(Waiter& waiter) {
  std::lock_guard lock(mutex_);
  std::erase_if(waiters_, [&waiter](const Waiting& each) { return each.waiter == &waiter; });
}

uint64_t PendingCall::observe(uint32_t arrivals, std::function<void()> observer) {
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    number = ++observers_seen_;
    if (!reached(arrivals)) {
      observers_.push_back({number, arrivals, std::move(observer)});
      return number;
    }
  }
  observer();
  return number;
}

void PendingCall::forget_observer(uint64_t observer) {
  Observer last;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(observers_, observer, &Observer::number);
  if (found == observers_.end()) return;
  last = std::move(*found);
  observers_.erase(found);
}

}  // namespace monarch
