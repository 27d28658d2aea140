#pragma once

#include <cstdint>
#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

// The actors that a mesh view is made of, by rank. Immutable; shared by the view and the calls that are under way on
// it.
struct Members {
  std::vector<ActorId> ids;
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
