// What a node keeps for casts that go through a tree of hosts (docs/design/035): as the gateway of who sends them, and
// as that of who gets them. Node uses it (node_tree.cc); the decisions are in cast_tree.h.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "monarch/actor/cast_tree.h"
#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"

namespace monarch {

class Link;

// From how many other hosts on a cast goes through a tree (by default none does), and how wide that is: what is large is
// passed on to few, since each copy takes time on the way out; what is small to more, since each hop does.
struct CastTreeLimits {
  uint64_t large_bytes = 64 * 1024;
  uint32_t large_hosts = UINT32_MAX, large_fan_out = 2;
  uint32_t small_hosts = UINT32_MAX, small_fan_out = 8;

  bool wants(size_t hosts, uint64_t bytes) const { return hosts >= (bytes >= large_bytes ? large_hosts : small_hosts); }
  uint32_t fan_out(uint64_t bytes) const { return bytes >= large_bytes ? large_fan_out : small_fan_out; }
};

// What comes from one gateway.
struct TreesFrom {
  const Link* link = nullptr;  // on which its frames come; to be compared only
  Mutex mutex{LockRank::kNodeArrivals};  // held while what arrives is delivered: its order is made here
  CastArrivals arrivals;
  uint64_t told = 0;  // that they have been taken
};

struct Trees {
  static constexpr int64_t kLookNs = 500'000'000;  // how often it is looked who is stuck, while something is under way

  CastTreeLimits limits;

  // ---- What this host casts ----
  Mutex mutex{LockRank::kNodeTrees};
  CastOrigin origin;
  CastOrigin::Sends unsent;  // for want of memory; at the next look
  Timers::TimerId timer = 0;
  bool stopped = false;
  std::unordered_set<NodeId> let_go;  // gateways whose session has been given up once, perhaps at one end before the other
  std::atomic<bool> none{false};      // there are such: this node makes no trees any more, since numbers would not match
  std::atomic<bool> any{false};  // origin is not idle; who casts sets it before any later message of its own

  // ---- What comes here ----
  std::mutex from_mutex;  // a leaf
  // Gateways that are up. shared: one may be held for dead while something of it is being delivered.
  std::unordered_map<NodeId, std::shared_ptr<TreesFrom>> from;

  std::shared_ptr<TreesFrom> from_of(NodeId gateway) {
    std::lock_guard lock(from_mutex);
    auto& found = from[gateway];
    if (!found) found = std::make_shared<TreesFrom>();
    return found;
  }
  void forget(NodeId gateway) {
    std::lock_guard lock(from_mutex);
    from.erase(gateway);
  }
  void stop(Timers& timers) {
    std::lock_guard lock(mutex);
    stopped = true;
    if (timer != 0) timers.cancel(timer);
  }
};

}  // namespace monarch
