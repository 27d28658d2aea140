// What a gateway holds of calls to several actors of its host (docs/design/036): their answers go on as one frame
// (wire/replies.h) when all are there, combined if the call has a reducer, else side by side (kGather). Any thread.
//
// Where the cast came through a tree of hosts (docs/design/046) and its caller allows it (kAnswersByTree), what the hosts
// behind this one have answered comes here too (kTreeReply), and all of it, when it is there, goes to whoever has passed
// the cast on. What is not whole goes to the caller itself.
//
// Nothing waits for what may never come: as soon as one of them is an error or too large, cannot be asked or is dead, or
// has held up the others for kHoldNs, all that is held of the call goes on as it came, and no more of it is held. Of a
// gather it goes on by and by: what there is each kGatherNs. Nor does anything overtake what is held: before another
// message of the same node to the same caller, or a later answer of the same actor, that goes on too. What has gone into
// the tree may be overtaken, but goes on by itself before the news that its process has ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "monarch/actor/answers.h"
#include "monarch/actor/kept_answers.h"
#include "monarch/base/clock.h"
#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"
#include "monarch/net/message.h"
#include "monarch/wire/cast.h"
#include "monarch/wire/reducer.h"

namespace monarch {

class Reductions {
 public:
  // Beyond these answers pass through, and a call that has been there for kOldNs makes room: nobody may answer it ever.
  static constexpr size_t kCallsMax = 1024;
  static constexpr size_t kOwedMax = 64 * 1024;  // answers that are awaited, of all calls
  static constexpr int64_t kOldNs = 10'000'000'000;
  static constexpr uint64_t kBytesMax = uint64_t{64} << 20;       // of all that is held
  // Of each: whoever combines more holds up others. Values that lie one by one in a body, as in lists and dicts, take some
  // ten times the work and the memory of an array's.
  static constexpr uint64_t kAnswerBytesMax = uint64_t{1} << 20;
  static constexpr uint64_t kBodyBytesMax = uint64_t{64} << 10;  // but for concatenations
  static constexpr int64_t kHoldNs = 100'000'000;
  // Without a reducer. Larger ones are sent sooner one by one: 10 KiB from 8 processes took a tenth longer together.
  static constexpr uint64_t kGatheredBytesMax = uint64_t{4} << 10;
  static constexpr int64_t kGatherNs = 5'000'000;
  // What lies side by side in a frame that goes up the tree: more is sent less often if each host sends its own.
  static constexpr uint64_t kSideBySideMax = uint64_t{256} << 10;

  // Called with the lock held, or messages could overtake each other. Must not block.
  struct Hooks {
    std::function<void(const Answer&)> pass_on;
    std::function<bool(NodeId origin, const Outgoing& together)> send;  // false: that could not be
    // As the latter, to another gateway.
    std::function<bool(NodeId gateway, const Outgoing& together)> send_up;
  };
  Reductions(NodeId here, Timers& timers, Hooks hooks) : here_(here), timers_(timers), hooks_(std::move(hooks)) {}

  // Before it is spread. A cast without a reducer, to others than processes of this host, or a gather of one answer, is
  // none of its business.
  void begin(NodeId origin, const FrameHeader& header, const std::vector<CastTarget>& targets) {
    begin(origin, header, targets, 0, {});
  }
  // The same of one that has come through a tree, before it is passed on: `parent` is who has passed it on to here (0: the
  // caller's own gateway), `branches` those that it is passed on to.
  void begin(NodeId origin, const FrameHeader& header, const std::vector<CastTarget>& targets, NodeId parent,
             std::vector<BranchAnswers> branches);
  // A kTreeReply; an empty one says that none will come.
  void take_branch(const Answer& frame);
  // What this caller has, and has not: of what was given to other gateways here, that goes to it now, and the rest is
  // forgotten.
  void seen(NodeId origin, const std::vector<SeenCall>& calls);
  // Of each data frame that passes through this node, in their order. True: it is held, or has gone on with others.
  bool take(const Answer& frame);
  // One of those that were asked has been answered for, in another way.
  void give_up(NodeId origin, uint64_t token);
  // Something else of this node is sent, to many: what is held of its answers goes first.
  void pass_on_of(NodeId node);
  void node_down(NodeId node);
  // The session with it is over; both may be well (docs/design/034).
  void let_go(NodeId gateway);
  // Nothing is held any more.
  void stop();

  size_t calls() const;
  size_t kept() const;
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  using Owed = OwedAnswer;
  struct Call {
    bool is_gather() const { return reducer == Reducer::kGather; }
    bool keeps_all() const { return is_gather() || reducer == Reducer::kConcat; }
    bool is_in_tree() const { return parent != 0 || !branches.empty(); }
    bool holds_any() const { return held > 0 || held_branches > 0; }
    bool waits_for_branches() const { return is_in_tree() && held == owed.size() && held_branches < branches.size(); }
    BranchAnswers* branch(NodeId gateway) {  // null: there is none
      const auto found = std::ranges::find(branches, gateway, &BranchAnswers::gateway);
      return found == branches.end() ? nullptr : &*found;
    }
    bool is_complete() const { return held == owed.size() && held_branches == branches.size(); }
    int64_t hold_ns() const { return is_gather() ? kGatherNs : kHoldNs; }

    Reducer reducer;
    uint64_t number;  // of the calls that have begun here
    int64_t begun_ns;
    std::vector<Owed> owed{};  // by rank; of a gather those that have not gone on
    size_t held = 0;
    uint64_t bytes = 0;
    NodeId parent = 0;
    std::vector<BranchAnswers> branches{};
    size_t held_branches = 0;
    uint64_t first = 0;    // the number of the first that is held
    int64_t since_ns = 0;  // when it came
  };
  using Key = std::pair<NodeId, uint64_t>;  // origin, token
  using Calls = std::map<Key, Call>;
  using Some = std::vector<Calls::iterator>;  // of one origin

  bool has_room(size_t owed);
  bool hold(Call& call, NodeId origin, NodeId node, const Answer& answer);
  bool hold_branch(Call& call, const Answer& frame);
  void note_held(Call& call, uint64_t bytes);
  void go_on(Some calls);
  void go_on_and_end(Calls::iterator of);
  void add_earlier(Some& calls);
  static bool has_earlier(const Call& other, const Call& call);
  bool send_up(const Key& key, const Call& call);
  bool send_together(const Key& key, Reducer reducer, const std::vector<Owed>& owed) const;
  void send_held(const Key& key, Call& call);
  void leave_tree(const Key& key, Call& call) const;
  void send_branch(const Key& key, const Message& frame) const;
  void send_kept(const KeptAnswers::Taken& taken) const;
  void update_any() { any_.store(!calls_.empty() || !kept_.empty(), std::memory_order_relaxed); }
  void pass_on_of(NodeId node, NodeId origin);
  void forget_held(const Key& key, Call& call);
  void drop(Calls::iterator of);
  void arm(int64_t at_ns);
  void look(uint64_t turn);

  const NodeId here_;
  Timers& timers_;
  const Hooks hooks_;
  mutable Mutex mutex_{LockRank::kNodeReductions};
  Calls calls_;
  KeptAnswers kept_;
  std::map<std::pair<NodeId, NodeId>, size_t> held_of_;  // by node and origin, how many answers
  uint64_t begun_ = 0;
  uint64_t answered_ = 0;
  size_t owed_ = 0;  // of all calls
  uint64_t bytes_ = 0;  // of all that is held
  std::atomic<bool> any_{false};
  int64_t full_until_ns_ = 0;  // no call is old enough to make room before
  Timers::TimerId timer_ = 0;
  int64_t timer_at_ns_ = 0;
  uint64_t turn_ = 0;  // of the timer: one that was cancelled too late is of an earlier one
  bool stopped_ = false;
};

}  // namespace monarch
