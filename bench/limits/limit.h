// What the native limit programs share: clock, pinning, statistics, and the JSON line of the suite.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

inline std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

/// Pins the calling thread; a negative cpu leaves it where it is.
inline void pin_thread(int cpu) {
  if (cpu < 0) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<unsigned>(cpu), &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One row of the suite: the median as the value, at most 400 samples, evenly thinned.
inline void print_row(const std::string& row, const std::string& system, const char* unit,
                      const std::vector<double>& samples) {
  std::printf("{\"row\": \"%s\", \"system\": \"%s\", \"unit\": \"%s\", \"value\": %.6f, \"count\": %zu, \"samples\": [",
              row.c_str(), system.c_str(), unit, median_of(samples), samples.size());
  const std::size_t step = std::max<std::size_t>(1, (samples.size() + 399) / 400);
  for (std::size_t i = 0; i < samples.size(); i += step) std::printf("%s%.4f", i ? ", " : "", samples[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}
