// Who has taken the place of what has ended: another process, which has been started for it, or the same actor, made anew.
// A handle names who was there first; whoever sends looks up here who is there now. Any thread.
//
// Those who have been in one place are a *lineage*. Of each the first one is kept, who is there now, and the kBetweenMax
// between them that were named last; lineages that have ended for good are forgotten. So a respawn costs the same however
// many there have been.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
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
    std::vector<uint32_t> steps{};  // how many there have been up to that successor, in their order; empty: 1 each

    bool empty() const { return processes.empty() && meshes.empty(); }
    void add_process(const Notice& of, size_t index);  // that one of `of`
    uint32_t steps_of(size_t index) const { return steps.empty() ? 1 : steps[index]; }
    std::string encoded() const;
    static Result<Notice> decode(ByteSpan bytes);
  };

  static constexpr uint32_t kStepsMax = 1u << 30;
  static constexpr size_t kBetweenMax = 16;
  // Lineages whose last process has died, and may be replaced yet; those that somebody has asked to end.
  static constexpr size_t kDeadMax = 4096;
  static constexpr size_t kStoppedMax = 64;

  // One relaxed load, for what is asked with every call.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Returns what of it is news. Of two successors of a process the first one stays, of two epochs the higher.
  Notice apply(const Notice& notice);
  // A process is down; `asked`: somebody wanted it to end, and nobody will replace it.
  void ended(NodeId node, bool asked);
  // What apply() takes so that who is named here is not forgotten: pairs of one that is between, and who is there now.
  Notice named(const std::vector<NodeId>& nodes) const;
  // The lowest index of each mesh of which an epoch is known.
  std::vector<ActorIndex> meshes() const;
  void forget_meshes(const std::unordered_set<ActorIndex>& first);
  // Itself, if nobody has taken its place.
  NodeId latest(NodeId node) const;
  // How many there have been in its place.
  uint32_t count_of(NodeId node) const;
  // Null: as they are. The same object as long as nothing has changed.
  std::shared_ptr<const Members> latest(const Members& members) const;
  uint32_t epoch_of(ActorIndex index) const;
  // All that is known, for somebody who has not been told.
  Notice all() const;

 private:
  struct Member {
    NodeId node;
    int64_t generation;
    uint64_t named;  // Lineage::changes, when it was heard of last
  };
  struct Lineage {
    std::vector<Member> members;  // by generation; the last one is there now
    uint64_t changes = 0;
    uint64_t ended = 0;  // its number in dead_ or stopped_; 0: it lives, as far as is known
  };
  using LineagePtr = std::shared_ptr<Lineage>;  // shared: by its members, and where it has ended

  bool succeed(NodeId node, NodeId next, uint32_t steps);
  bool join(const LineagePtr& earlier, const LineagePtr& later, int64_t shift);
  bool insert(const LineagePtr& lineage, NodeId node, int64_t generation);
  void shrink(Lineage& lineage);
  void revive(Lineage& lineage);
  void forget_first(std::map<uint64_t, LineagePtr>& ended, size_t max);
  LineagePtr lineage_of(NodeId node) const;

  std::atomic<bool> any_{false};
  std::atomic<uint64_t> changes_{next_change()};  // changed with mutex_ held, after the change
  mutable std::mutex mutex_;  // a leaf
  std::unordered_map<NodeId, LineagePtr> lineages_;
  std::map<uint64_t, LineagePtr> dead_;     // by when they have ended
  std::map<uint64_t, LineagePtr> stopped_;
  uint64_t last_ended_ = 0;
  std::map<ActorIndex, Epoch> epochs_;  // by the last index of the mesh
};

}  // namespace monarch
