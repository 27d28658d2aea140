// Time enters through an interface; this file is the only reader of the clock in src/.
#pragma once

#include <cstdint>
#include <string>

namespace monarch {

inline constexpr int64_t kNoDeadline = INT64_MAX;

// Monotonic nanoseconds since an arbitrary start.
int64_t monotonic_ns();

// Nanoseconds since 1970, as this machine's clock says; that may be set, forwards and backwards. For people's eyes only.
int64_t wall_ns();

// Of that, in UTC: "2026-01-31T12:00:00.123Z". As texts they are in the order of their times.
std::string utc_text(int64_t wall_ns);

// A counter of the processor, read in a third of the time that monotonic_ns() takes, and how many of them make about a
// microsecond: for "not more often than about every so many", where nothing depends on how often.
uint64_t cpu_ticks();
uint64_t cpu_ticks_per_us();

// For what is to happen about every so many microseconds at most, where nothing depends on how often. One thread's.
class NowAndThen {
 public:
  explicit NowAndThen(uint64_t every_us) : every_ticks_(every_us * cpu_ticks_per_us()) {}
  // Whether it is time; then it has been.
  bool due() {
    const uint64_t now_ticks = cpu_ticks();
    if (now_ticks - last_ticks_ < every_ticks_) return false;
    last_ticks_ = now_ticks;
    return true;
  }

 private:
  const uint64_t every_ticks_;
  uint64_t last_ticks_ = 0;
};

// What timed decisions are given instead of the clock, so that the simulator can drive them.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() = 0;
  virtual int64_t wall_ns() { return monarch::wall_ns(); }
};

class SystemClock final : public Clock {
 public:
  int64_t now_ns() override { return monotonic_ns(); }
};

}  // namespace monarch
