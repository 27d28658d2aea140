// Who has asked this node to hold back (actor/inflow.h says why and when). Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <unordered_set>

#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"

namespace monarch {

class Flow {
 public:
  // The actor has too much waiting, or room again.
  void set_held(const ActorId& actor, bool held);
  // One that is held is sent nothing one-way. Index 0: all of its node.
  bool is_held(const ActorId& actor) const;
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // The dead hold nobody, nor who is not reached.
  void forget_nodes(const std::function<bool(NodeId)>& gone);

 private:
  mutable Mutex mutex_{LockRank::kNodeFlow};
  std::unordered_set<ActorId> held_;
  std::atomic<bool> any_{false};
};

}  // namespace monarch
