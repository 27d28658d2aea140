#pragma once

#include <cstdint>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/base/remembered.h"
#include "monarch/wire/tree_cast.h"

namespace monarch {

// Members by the hosts that they are on, as one node sends to them through a tree (node_tree.cc). Immutable.
struct MembersByHost {
  std::vector<uint32_t> here;       // ranks on the sender's own host
  std::vector<TreeHost> hosts;      // the others, by number; without sessions
  std::vector<CastTarget> targets;  // those of the first host first
};

// The actors that a mesh view is made of, by rank. Immutable; shared by the view and the calls that are under way on
// it.
struct Members {
  std::vector<ActorId> ids;
  Remembered<MembersByHost> by_host{};  // by Routes::changes(), at which all of them were reached
  Remembered<Members> latest{};         // by Successions::changes(): who is there now; null: these
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
