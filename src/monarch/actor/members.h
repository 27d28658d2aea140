#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

// When somebody has last found all of them reached (Routes::changes()); 0: nobody. It belongs to the object, not to what
// that says: a copy has none. Any thread.
class ReachMark {
 public:
  ReachMark() = default;
  ReachMark(const ReachMark&) {}
  ReachMark& operator=(const ReachMark&) {
    set(0);
    return *this;
  }
  uint64_t get() const { return changes_.load(std::memory_order_relaxed); }
  void set(uint64_t changes) { changes_.store(changes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> changes_{0};
};

// The actors that a mesh view is made of, by rank. Immutable; shared by the view and the calls that are under way on
// it.
struct Members {
  std::vector<ActorId> ids;
  mutable ReachMark reached{};
};

// Of a rank of a mesh, one for each dimension; row-major.
inline std::vector<int64_t> coordinates_of(int64_t rank, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> found(sizes.size());
  for (size_t dim = found.size(); dim-- > 0;) {
    if (sizes[dim] <= 0) return {};
    found[dim] = rank % sizes[dim];
    rank /= sizes[dim];
  }
  return found;
}

}  // namespace monarch
