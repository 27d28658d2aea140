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
    return recent_ns_ < spin_ns + spin_ns / 2 ? spin_ns : 0;
  }

  // `slept`: the wait ended with a wake-up, which is not what had to be waited for.
  void note(int64_t waited_ns, bool slept) {
    const int64_t net_ns = std::clamp(waited_ns - (slept ? wake_up_.ns() : 0), int64_t{0}, kLongWaitNs);
    recent_ns_ += (net_ns - recent_ns_) / 4;
  }

  // Most are not over within the shortest tick of a driver.
  bool are_long() const { return recent_ns_ > kLongWaitNs / 4 * 3; }

  static constexpr int64_t kSpinMinNs = 50'000;
  static constexpr int64_t kSpinMaxNs = 120'000;

 private:
  static constexpr int64_t kLongWaitNs = 1'000'000;  // a longer wait counts as this
  const WakeUpCost& wake_up_;
  int64_t recent_ns_ = 2 * kSpinMaxNs;  // moving average; a new thread has yet to show that it spins well

  friend class Spin;
  bool crowded_ = false;  // others want the core that the thread runs on: so its last yield has shown
};

// A spin before a sleep. Others that want the core get it, at once when it is known that there are any; what they take
// of the time is not spun, and not waited for (docs/design/012).
class Spin {
 public:
  explicit Spin(WaitHistory& history) : history_(history) {}

  bool begun() const { return start_ns_ != 0; }
  void begin(int64_t now_ns) {
    start_ns_ = now_ns;
    until_ns_ = now_ns + history_.spin_ns();
    lent_ns_ = 0;
  }
  bool is_over(int64_t now_ns) const { return now_ns >= until_ns_; }
  // After the `rounds`th look in vain: read the clock, let others have the core?
  bool wants_clock(int rounds) const { return history_.crowded_ || rounds % kRoundsPerClock == 0; }
  bool yields(int rounds) const { return history_.crowded_ || rounds % kRoundsPerYield == 0; }
  void yielded(int64_t before_ns, int64_t after_ns) {
    const int64_t took_ns = after_ns - before_ns;
    history_.crowded_ = took_ns > kYieldAloneNs;
    if (!history_.crowded_) return;
    lent_ns_ += took_ns;
    until_ns_ = took_ns > kLentLongNs ? before_ns : until_ns_ + took_ns;
  }
  // What was waited for has come, or a sleep is over. Returns how long that took in all.
  int64_t end(int64_t now_ns, bool slept) {
    const int64_t waited_ns = now_ns - start_ns_;
    history_.note(waited_ns - lent_ns_, slept);
    start_ns_ = 0;
    return waited_ns;
  }

  // A yield that nobody takes up costs 0.3 to 1 us; a switch to another process and back at least 3.
  static constexpr int64_t kYieldAloneNs = 1'500;
  // Who keeps the core for so long computes. The scheduler runs a thread that is woken before it, not one that yields.
  static constexpr int64_t kLentLongNs = 400'000;

 private:
  static constexpr int kRoundsPerClock = 16;
  static constexpr int kRoundsPerYield = 64;
  WaitHistory& history_;
  int64_t start_ns_ = 0;
  int64_t until_ns_ = 0;
  int64_t lent_ns_ = 0;
};

}  // namespace monarch
