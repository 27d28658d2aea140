// What a node keeps for casts that go through a tree of hosts (docs/design/035): as the gateway of who sends them, and
// as that of who gets them. Node uses it (node_tree.cc); the decisions are in cast_tree.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/actor/answer_notices.h"
#include "monarch/actor/cast_tree.h"
#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"
#include "monarch/net/link.h"

namespace monarch {

// From how many other hosts on a cast goes through a tree (docs/design/035 says why so many), and how wide that is: what is
// large is passed on to few, since each copy takes time on the way out; what is small to more, since each hop does.
struct CastTreeLimits {
  uint64_t large_bytes = 64 * 1024;
  uint32_t large_hosts = 16, large_fan_out = 2;
  uint32_t small_hosts = 64, small_fan_out = 8;
  uint32_t answer_hosts = 64;  // answers come back through it (docs/design/046)

  // From so many hosts on, whatever the size; "0": never. Null: as above. nullopt: it is no number.
  static std::optional<CastTreeLimits> from(const char* text);

  bool wants(size_t hosts, uint64_t bytes) const { return hosts >= (bytes >= large_bytes ? large_hosts : small_hosts); }
  uint32_t fan_out(uint64_t bytes) const { return bytes >= large_bytes ? large_fan_out : small_fan_out; }
};

// What comes of one session with another gateway.
struct TreesFrom {
  explicit TreesFrom(const std::shared_ptr<Link>& on) : session(on->session()), link(on) {}

  const uint64_t session;
  const std::weak_ptr<Link> link;  // weak: Routes owns it
  Mutex mutex{LockRank::kNodeArrivals};  // held while what arrives is delivered: its order is made here
  CastArrivals arrivals;
  uint64_t told = 0;  // that they have been taken
  bool over = false;  // the session is
};

struct Trees {
  static constexpr int64_t kLookNs = 500'000'000;  // how often it is looked who is stuck, while something is under way

  CastTreeLimits limits;

  // ---- What this host casts ----
  Mutex mutex{LockRank::kNodeTrees};
  CastOrigin origin;
  Timers::TimerId timer = 0;
  bool stopped = false;
  std::atomic<bool> any{false};  // origin is not idle; who casts sets it before any later message of its own

  // ---- What has been called through trees ----
  static constexpr int64_t kAnswersInTimeNs = 2'000'000'000;  // who gives up sooner than that is answered directly
  Mutex notices_mutex{LockRank::kNodeNotices};
  AnswerNotices notices;
  Timers::TimerId notices_timer = 0;
  int64_t notices_timer_ns = 0;  // when that runs
  bool notices_stopped = false;

  // ---- What comes here ----
  std::mutex from_mutex;  // a leaf
  // By gateway, its sessions that are not over: one or two. shared: one may end while something of it is being delivered.
  std::unordered_map<NodeId, std::vector<std::shared_ptr<TreesFrom>>> from;

  // Before anything of it comes, or is sent on it.
  void listen(const std::shared_ptr<Link>& link) {
    if (link->session() == 0) return;
    std::lock_guard lock(from_mutex);
    from[link->peer()].push_back(std::make_shared<TreesFrom>(link));
  }
  // Null: it is over, or none.
  std::shared_ptr<TreesFrom> from_of(NodeId gateway, uint64_t session) {
    std::lock_guard lock(from_mutex);
    const auto found = from.find(gateway);
    if (found == from.end()) return nullptr;
    for (const auto& each : found->second) {
      if (each->session == session) return each;
    }
    return nullptr;
  }
  void forget(NodeId gateway, uint64_t session) {
    std::lock_guard lock(from_mutex);
    const auto found = from.find(gateway);
    if (found == from.end()) return;
    std::erase_if(found->second, [session](const auto& each) { return each->session == session; });
    if (found->second.empty()) from.erase(found);
  }
  void forget(NodeId gateway) {
    std::lock_guard lock(from_mutex);
    from.erase(gateway);
  }
  void note_idle() { any.store(!origin.idle(), std::memory_order_release); }  // mutex held
  void stop(Timers& timers) {
    {
      std::lock_guard lock(mutex);
      stopped = true;
      if (timer != 0) timers.cancel(timer);
    }
    std::lock_guard lock(notices_mutex);
    notices_stopped = true;
    if (notices_timer != 0) timers.cancel(notices_timer);
  }
};

}  // namespace monarch
