#include "monarch/base/clock.h"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "monarch/base/arch.h"

namespace monarch {

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

int64_t wall_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

std::string utc_text(int64_t wall_ns) {
  using namespace std::chrono;  // NOLINT: calendars are not readable otherwise
  const sys_time<milliseconds> at(floor<milliseconds>(nanoseconds(wall_ns)));
  const auto day = floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  std::string text = "0000-00-00T00:00:00.000Z";
  const auto put = [&text](size_t last, int64_t value) {
    for (size_t i = last; value != 0; value /= 10) text[i--] = static_cast<char>('0' + value % 10);
  };
  put(3, std::clamp(static_cast<int>(date.year()), 0, 9999));
  put(6, static_cast<unsigned>(date.month()));
  put(9, static_cast<unsigned>(date.day()));
  put(12, time.hours().count());
  put(15, time.minutes().count());
  put(18, time.seconds().count());
  put(22, time.subseconds().count());
  return text;
}

uint64_t cpu_ticks() { return arch::ticks(); }

uint64_t cpu_ticks_per_us() { return arch::ticks_per_us(); }

}  // namespace monarch
