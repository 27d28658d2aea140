// Who has taken the place of what has ended: another process, which has been started for it, or the same actor, made anew.
// A handle names who was there first; whoever sends looks up here who is there now. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/wire/failure.h"

namespace monarch {

class Successions {
 public:
  // How often some of a mesh of actors has been made anew; FrameHeader has room for this much.
  static constexpr uint32_t kEpochMax = (1u << 20) - 1;
  struct Epoch {
    ActorIndex first = 0;  // of the mesh; the others have the `count` - 1 next ones, if they are not all the same
    uint64_t count = 1;
    uint32_t epoch = 0;
  };
  // What others are told: a kRestarted frame.
  struct Notice {
    std::vector<std::pair<NodeId, NodeId>> processes;  // one that has ended, and who is there in its place
    std::vector<Epoch> meshes;
    std::vector<Failure> why{};  // of what each process has died, in their order; empty: that is not said

    bool empty() const { return processes.empty() && meshes.empty(); }
    std::string encoded() const;
    static Result<Notice> decode(ByteSpan bytes);
  };

  // One relaxed load, for what is asked with every call.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Returns what of it is news. Of two successors of a process the first one stays, of two epochs the higher.
  Notice apply(const Notice& notice);
  // Itself, if nobody has taken its place.
  NodeId latest(NodeId node) const;
  // How many there have been in its place.
  uint32_t count_of(NodeId node) const;
  // Null: as they are.
  std::shared_ptr<const Members> latest(const Members& members) const;
  uint32_t epoch_of(ActorIndex index) const;
  // All that is known, for somebody who has not been told.
  Notice all() const;

 private:
  NodeId latest_locked(NodeId node) const;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;  // a leaf
  std::unordered_map<NodeId, NodeId> next_;
  std::unordered_map<NodeId, NodeId> latest_;  // the same, to the end
  std::map<ActorIndex, Epoch> epochs_;  // by the last index of the mesh
};

}  // namespace monarch
