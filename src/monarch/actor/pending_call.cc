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
  return size_ == 1 ? single_.get() : replies_[rank].get();
}

std::vector<uint32_t> PendingCall::missing() const {
  std::vector<uint32_t> found;
  std::lock_guard lock(mutex_);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if ((size_ == 1 ? single_ : replies_[rank]) == nullptr) found.push_back(rank);
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

bool PendingCall::fill(uint32_t rank, MessagePtr reply, Driver& driver) {
  if (rank >= size_) return false;
  std::vector<Observer> due;
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    MessagePtr& slot = size_ == 1 ? single_ : replies_[rank];
    if (slot) return false;
    const bool error = reply->header.kind != FrameKind::kReply;
    slot = std::move(reply);
    if (size_ != 1) order_.push_back(rank);
    const int64_t lowest = first_error_.load(std::memory_order_relaxed);
    if (error && (lowest < 0 || rank < lowest)) first_error_.store(rank, std::memory_order_release);
    last = received_.load(std::memory_order_relaxed) + 1 == size_;
    received_.fetch_add(1, std::memory_order_seq_cst);
    for (Waiter* waiter : waiters_) driver.notify(*waiter);
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

void PendingCall::add_waiter(Waiter& waiter) {
  std::lock_guard lock(mutex_);
  waiters_.push_back(&waiter);
}

void PendingCall::remove_waiter(Waiter& waiter) {
  std::lock_guard lock(mutex_);
  std::erase(waiters_, &waiter);
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
