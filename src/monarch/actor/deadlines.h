// Which calls end when: one timer for all of them, so that a call that ends in time costs nothing later.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

namespace monarch {

class Deadlines {
 public:
  // Runs a task once, `delay_ns` from now; it must not be run after this is gone.
  using After = std::function<void(int64_t delay_ns, std::function<void()>)>;

  // `expired(token)` runs on the thread of `after`, without a lock held.
  Deadlines(After after, std::function<void(uint64_t)> expired)
      : after_(std::move(after)), expired_(std::move(expired)) {}

  // Any thread. Deadlines are on the monotonic clock (base/clock.h).
  void add(int64_t deadline_ns, uint64_t token);
  void remove(int64_t deadline_ns, uint64_t token);

 private:
  void arm(int64_t deadline_ns);
  void on_timer(int64_t armed_for_ns);

  const After after_;
  const std::function<void(uint64_t)> expired_;
  std::mutex mutex_;
  std::set<std::pair<int64_t, uint64_t>> pending_;
  int64_t armed_for_ns_ = 0;  // the earliest timer that is under way; 0: none
};

}  // namespace monarch
