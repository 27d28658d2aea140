#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/wire/tree_cast.h"

namespace monarch {

// Members by the hosts that they are on, as one node sends to them through a tree (node_tree.cc). Immutable.
struct MembersByHost {
  uint64_t changes = 0;           // of Routes, at which all of them were reached
  std::vector<uint32_t> here;     // ranks on the sender's own host
  std::vector<TreeHost> hosts;    // the others, by number; without sessions
  std::vector<CastTarget> targets;  // those of the first host first
};

// The last one that was made. It belongs to the object, not to what that says: a copy has none. Any thread.
class MembersByHostCache {
 public:
  MembersByHostCache() = default;
  MembersByHostCache(const MembersByHostCache&) {}
  MembersByHostCache& operator=(const MembersByHostCache&) {
    set(nullptr);
    return *this;
  }
  // Null: there is none of just then.
  std::shared_ptr<const MembersByHost> get(uint64_t changes) const {
    std::lock_guard lock(mutex_);
    return table_ != nullptr && table_->changes == changes ? table_ : nullptr;
  }
  void set(std::shared_ptr<const MembersByHost> table) {
    std::lock_guard lock(mutex_);
    table_.swap(table);  // the old one goes without the lock
  }

 private:
  mutable std::mutex mutex_;  // a leaf
  std::shared_ptr<const MembersByHost> table_;  // shared: with casts that are under way
};

// The actors that a mesh view is made of, by rank. Immutable; shared by the view and the calls that are under way on
// it.
struct Members {
  std::vector<ActorId> ids;
  mutable MembersByHostCache by_host{};
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
