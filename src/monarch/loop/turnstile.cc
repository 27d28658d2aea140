#include "monarch/loop/turnstile.h"

#include "monarch/loop/futex.h"

namespace monarch {

void Turnstile::enter() {
  Place place;
  {
    std::lock_guard lock(mutex_);
    if (free_ > 0) {
      --free_;
      return;
    }
    (first_ == nullptr ? first_ : last_->next) = &place;
    last_ = &place;
    ++waiting_;
  }
  while (place.called.load(std::memory_order_acquire) == 0) futex_wait(place.called, 0, -1, /*shared=*/false);
}

void Turnstile::leave() {
  std::lock_guard lock(mutex_);
  Place* next = first_;
  if (next == nullptr) {
    ++free_;
    return;
  }
  first_ = next->next;
  --waiting_;
  // The place is on the stack of its thread, which goes on as soon as it is called, and is woken by its address alone.
  next->called.store(1, std::memory_order_release);
  futex_wake(next->called, 1, /*shared=*/false);
}

int Turnstile::waiting() {
  std::lock_guard lock(mutex_);
  return waiting_;
}

}  // namespace monarch
