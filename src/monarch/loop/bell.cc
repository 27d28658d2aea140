#include "monarch/loop/bell.h"

#include <sys/eventfd.h>

#include "monarch/base/clock.h"
#include "monarch/loop/futex.h"

namespace monarch {

bool ring_bell(BellPage& page, uint32_t index, int event_fd) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint64_t>& word = page.ready[index / 64];
  const uint64_t bit = uint64_t{1} << (index % 64);
  if ((word.load(std::memory_order_relaxed) & bit) == 0) word.fetch_or(bit, std::memory_order_seq_cst);
  return wake_bell(page, event_fd);
}

bool wake_bell(BellPage& page, int event_fd) {
  uint32_t state = page.state.load(std::memory_order_seq_cst);
  if (state == kAwake) return false;
  if (!page.state.compare_exchange_strong(state, kAwake, std::memory_order_seq_cst)) return false;
  if (state == kParked) {
    page.rung_ns.store(monotonic_ns(), std::memory_order_relaxed);
    futex_wake(page.state, 1, /*shared=*/true);
  } else {
    eventfd_write(event_fd, 1);
  }
  return true;
}

bool any_ready(const BellPage& page, uint32_t rings) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (uint32_t word = 0; word < (rings + 63) / 64; ++word) {
    if (page.ready[word].load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

}  // namespace monarch
