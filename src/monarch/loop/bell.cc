#include "monarch/loop/bell.h"

#include <sys/eventfd.h>

#include "monarch/base/clock.h"
#include "monarch/loop/futex.h"

// What the order of memory rests on here, in terms of the C++ model (and so on x86 and on aarch64 alike); S is the one
// order of all seq_cst operations and fences.
//
// 1. The bit against the state. The sender sets the bit, then reads the state; the receiver sets the state, then (fence)
//    reads the bits. The sender's two are seq_cst, the receiver's store and fence are too. If the sender does not see the
//    sleep, its read stands before the store in S, so the bit stands before the fence: any_ready() sees it.
// 2. A bit that stands already. The sender sets it no second time. The bit was not cleared yet when it was read, so the
//    sender's first fence stands before the clearing exchange in S, and that before the fence which follows it in
//    Driver::poll_ready(): the poll after that fence sees what was published before the first one.
// 3. How many rings there are. The store to Driver::pollable_limit_ comes before anybody can ring the new one. A receiver
//    that read it before it set the state could miss the ring's bit; hence any_ready() reads it, after its fence.
// 4. The swap to kRung against the call. Whoever sees kRung has set its own bit before it looked; it makes the call itself.
//    Whoever sees kAwake after a winner's second swap comes after that winner's call, or after the receiver has woken, and
//    in both cases the receiver looks at the bits after it has been woken.
namespace monarch {

namespace {

// Makes the call for a sleep that `state` tells of.
void wake(BellPage& page, uint32_t state, int event_fd) {
  if ((state & kBellSleeper) == kParked) {
    futex_wake(page.state, 1, /*shared=*/true);
  } else {
    eventfd_write(event_fd, 1);
  }
}

}  // namespace

bool ring_bell(BellPage& page, uint32_t index, int event_fd) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint64_t>& word = page.ready[index / 64];
  const uint64_t bit = uint64_t{1} << (index % 64);
  if ((word.load(std::memory_order_relaxed) & bit) == 0) word.fetch_or(bit, std::memory_order_seq_cst);
  return wake_bell(page, event_fd);
}

bool wake_bell(BellPage& page, int event_fd) {
  uint32_t state = page.state.load(std::memory_order_seq_cst);
  for (;;) {
    if (state == kAwake) return false;
    if ((state & kRung) != 0) {  // somebody else has won, and may have been stopped before its call
      wake(page, state, event_fd);
      return true;
    }
    // Without kRung in the word a call could come before the receiver sleeps, and be lost.
    if (page.state.compare_exchange_strong(state, state | kRung, std::memory_order_seq_cst)) break;
  }
  if ((state & kBellSleeper) == kParked) page.rung_ns.store(monotonic_ns(), std::memory_order_relaxed);
  wake(page, state, event_fd);
  state |= kRung;  // unless the receiver has woken, and perhaps sleeps again
  page.state.compare_exchange_strong(state, kAwake, std::memory_order_seq_cst, std::memory_order_relaxed);
  return true;
}

bool any_ready(const BellPage& page, const std::atomic<uint32_t>& rings) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t words = (rings.load(std::memory_order_acquire) + 63) / 64;
  for (uint32_t word = 0; word < words; ++word) {
    if (page.ready[word].load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

}  // namespace monarch
