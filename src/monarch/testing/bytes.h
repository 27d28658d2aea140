// Bytes that tests send and look for. A loop over each of them would take a test without optimization, or under a
// sanitizer, longer than what it tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace monarch::testing {

// Repeats itself after 251 bytes: what is misplaced by any block, line or page is seen.
inline constexpr uint64_t kPatternPeriod = 251;
inline std::byte pattern_at(uint64_t at, uint64_t seed) { return static_cast<std::byte>((at * 7 + seed) % kPatternPeriod); }

// From its byte `first` on.
inline std::vector<std::byte> pattern(uint64_t size, uint64_t seed, uint64_t first = 0) {
  std::vector<std::byte> all(size);
  for (uint64_t i = 0; i < std::min(kPatternPeriod, size); ++i) all[i] = pattern_at(first + i, seed);
  for (uint64_t done = kPatternPeriod; done < size; done *= 2) {
    std::memcpy(all.data() + done, all.data(), std::min(done, size - done));
  }
  return all;
}

inline void put(std::byte* at, std::span<const std::byte> bytes) { std::memcpy(at, bytes.data(), bytes.size()); }

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace monarch::testing
