// Looks at calls that stay pending, for what the caller cannot know: that the process which owes the answer is stopped, and
// that actors wait for each other in a circle. Costs nothing while calls are answered within some tenths of a second.
//
// - Processes (halts.h). While calls are pending, those that owe answers are looked at, about twice a second; by whoever
//   has started them, which others ask to. What it finds is one line on stderr, and another one when the process goes on.
//   Slowness is no failure. With a lease, a process that is halted for that long is one. Who is asked and says nothing
//   himself for long is a line too: a host that is stopped as a whole.
// - Owners. Where the process that has made an actor answers nobody for the time of the watchdog, calls that wait for the
//   actor end.
// - Cycles (actor/deadlocks.h). An actor that has waited for a call for a while, without a limit, has probes sent along the
//   calls. Where they find a cycle, the call is given up: kDeadlock.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/deadlocks.h"
#include "monarch/actor/node.h"
#include "monarch/host/death_watch.h"
#include "monarch/host/halts.h"
#include "monarch/loop/reactor.h"

namespace monarch {

class CallWatch final : private Deadlocks::Place {
 public:
  // How long an actor has waited for a call when it says so here.
  static constexpr int64_t kBlockedNs = 300'000'000;

  // `kill`: of a process that this one has started; on the reactor.
  CallWatch(Reactor& reactor, Node& node, DeathWatch& deaths, std::function<void(NodeId)> kill);
  // Before the first call. What is seen is a line there, and not here: nobody of the job reads what this process prints.
  void tell_script(NodeId script) { script_ = script; }

  // Any thread. This actor of the node has waited for `waited_ns`, about kBlockedNs, for `call`, waits on without any
  // limit, and takes and answers nothing meanwhile. Until unblock() with the same.
  void block(ActorIndex actor, std::shared_ptr<PendingCall> call, int64_t waited_ns = kBlockedNs);
  void unblock(ActorIndex actor, const PendingCall& call);

  // Any thread. For how long altogether a process may be halted while calls wait for it, before it is failed; 0: for ever.
  void set_lease(int64_t lease_ns) { lease_ns_.store(lease_ns, std::memory_order_relaxed); }
  // As long as who waits has it, each for itself: a host of C++ only knows nothing of its job's configuration.
  static constexpr int64_t kLeaseOfWhoWaits = -1;
  // Any thread. After what time without a word of their owner calls end.
  void set_watchdog(int64_t limit_ns) { watchdog_ns_.store(limit_ns, std::memory_order_relaxed); }
  // Any thread. Of a process that this one has started whether it is stopped; else what was seen while calls waited for it.
  Halt halt_of(NodeId node) const;

  // ---- Of the node and its links (Node::Hooks); on the reactor, but for on_inquiry() ----
  bool on_look(const std::vector<std::shared_ptr<PendingCall>>& calls);
  void on_inquiry(MessagePtr message);
  void on_pong(NodeId node);

 private:
  // Calls that wait for a process.
  struct Waiting {
    size_t calls = 0;
    std::set<std::string> labels;  // some of them
    int64_t lease_ns = 0;          // of who makes them, who is elsewhere; 0: none
    void add(size_t more, std::string_view label);
    std::string text(std::string_view what = "it") const;
  };
  struct Owned {  // a call of an actor
    NodeId owner;   // its process, another one than this
    uint64_t token;
    std::string label;
  };
  struct Elsewhere {  // of another process
    Waiting waiting;
    int64_t since_ns = 0;  // that it has waited, as far as it has said so
    int64_t said_ns = 0;   // the last time
    // It says so at each of its looks: it waits still.
    bool is_fresh(int64_t now_ns) const { return said_ns + Calls::kLookNs * 3 / 2 >= now_ns; }
  };
  static constexpr size_t kNodesMax = 256;  // of one look
  // So long somebody who is asked to look has not answered when a line says so.
  static constexpr int64_t kMuteNs = 1'500'000'000;
  struct Mute {
    int64_t since_ns = 0;
    bool told = false;
  };

  // Deadlocks::Place
  std::optional<Deadlocks::Blocked> blocked(ActorIndex actor) override;
  std::optional<Asked> awaits(NodeId caller, uint64_t token, ActorIndex actor) override;

  std::map<NodeId, Waiting> waited_for(const std::vector<std::shared_ptr<PendingCall>>& calls) const;
  void look_at_child(NodeId node, pid_t pid, const Waiting& waiting);
  bool waits_elsewhere(NodeId node) const;
  int64_t lease_that_is_over(NodeId node, int64_t waited_ns) const;
  void ask_others(NodeId node, const Waiting& waiting);
  void ask_who_looks(NodeId who, const Waiting& waiting);
  void end_lease(NodeId node, Halt halt, int64_t lease_ns);
  void forget(NodeId node);
  std::vector<Owned> owned_by_others(const std::vector<std::shared_ptr<PendingCall>>& calls) const;
  void end_unowned(const std::vector<Owned>& calls);
  void ping(NodeId node);
  void tell(NodeId node, const Halts::Change& change, const Waiting& waiting);
  void say(const std::string& line);
  void on_silent(const Message& notice);
  void search(ActorIndex actor, uint64_t token, int64_t next_ns);
  void run(Deadlocks::Actions actions);

  Reactor& reactor_;
  Node& node_;
  DeathWatch& deaths_;
  const std::function<void(NodeId)> kill_;
  NodeId script_ = 0;  // 0: lines are for this process to print
  std::atomic<int64_t> lease_ns_{0};
  std::atomic<int64_t> watchdog_ns_{120'000'000'000};

  mutable std::mutex mutex_;  // a leaf; guards the two below
  struct Block {
    std::shared_ptr<PendingCall> call;  // shared: with who waits for it
    int64_t since_ns;
  };
  std::map<ActorIndex, Block> blocks_;
  std::map<NodeId, Halt> halted_;

  // The reactor's.
  Deadlocks deadlocks_;
  Halts halts_;
  std::map<NodeId, int64_t> silent_;  // asked at the last look, and not answered since then
  std::map<NodeId, Mute> mute_;  // who has been asked to look at others, and has not answered since
  std::map<NodeId, std::map<NodeId, Elsewhere>> elsewhere_;  // by the process that is waited for, and by whom
  size_t next_ = 0;  // where the next look begins, if it cannot look at all
};

}  // namespace monarch
