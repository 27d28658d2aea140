// How long a thread spins for what it waits for before it sleeps (docs/design/011).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace monarch {

// What it costs to wake a sleeping thread, as this process has seen it. Any thread.
class WakeUpCost {
 public:
  int64_t ns() const { return average_ns_.load(std::memory_order_relaxed); }

  // `took_ns`: from the call that wakes until the woken thread runs.
  void note(int64_t took_ns) {
    const int64_t average_ns = ns();  // of two threads that note at once, one may be lost
    const int64_t bounded_ns = std::clamp(took_ns, int64_t{0}, kMaxNs);
    average_ns_.store(average_ns + (bounded_ns - average_ns) / 8, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kMaxNs = 200'000;  // longer: the thread had no core, which says nothing of wake-ups
  std::atomic<int64_t> average_ns_{20'000};
};

// The waits of one thread.
class WaitHistory {
 public:
  constexpr explicit WaitHistory(const WakeUpCost& wake_up) : wake_up_(wake_up) {}

  // A spin of two wake-ups is never far from the best choice, if waits tend to end within it. What is waited for comes
  // sooner when the other side need not be woken, so waits that are a little longer count too.
  int64_t spin_ns() const {
    const int64_t spin_ns = std::clamp(2 * wake_up_.ns(), kSpinMinNs, kSpinMaxNs);
    return recent_ns_ < spin_ns + spin_ns / 2 ? spin_ns : kShortSpinNs;
  }

  // `slept`: the wait ended with a wake-up, which is not what had to be waited for.
  void note(int64_t waited_ns, bool slept) {
    const int64_t net_ns = std::clamp(waited_ns - (slept ? wake_up_.ns() : 0), int64_t{0}, kLongWaitNs);
    recent_ns_ += (net_ns - recent_ns_) / 4;
  }

  static constexpr int64_t kSpinMinNs = 50'000;
  static constexpr int64_t kSpinMaxNs = 120'000;
  static constexpr int64_t kShortSpinNs = 3'000;

 private:
  static constexpr int64_t kLongWaitNs = 1'000'000;  // a longer wait counts as this
  const WakeUpCost& wake_up_;
  int64_t recent_ns_ = 2 * kSpinMaxNs;  // moving average; a new thread has yet to show that it spins well
};

}  // namespace monarch
