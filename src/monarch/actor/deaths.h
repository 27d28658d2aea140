// Who is dead, and of what. The one place where that is decided, from everything that can be known of it: exit statuses,
// ends of links, notices of others, times that are up. Pure: (now, event) -> actions, by the transition table in
// deaths.cc. It owns no socket, reads no clock and takes no lock; whoever runs it, a process or the simulator, does what it
// says. Not thread-safe.
//
// A node is declared down once, with the best reason that could be had, after all that it had sent has been delivered. On
// one host a closed link is a death, so what lives on without its link is ended.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "monarch/actor/successions.h"
#include "monarch/wire/failure.h"

namespace monarch {

class Deaths {
 public:
  struct Limits {
    int64_t unlinked_ns = 1'000'000'000;   // how long a process of ours may live on after its link has ended
    int64_t notice_ns = 1'000'000'000;     // how long to wait for whoever started a process to say how it ended
    int64_t last_lines_ns = 200'000'000;   // how long a death waits for the last lines of the dead
    int64_t unobserved_ns = 1'000'000'000; // a death of which nobody was told for so long is told on stderr
    size_t remembered_max = 4096;          // dead nodes that are remembered here
  };

  enum class EventKind : uint8_t {
    kDying,       // `status`: a process of ours is at its end, and will have ended so; nothing runs in it any more
    kExited,      // `status`: a process of ours has ended
    kNotStarted,  // `text`: it will never be
    kNoticed,     // `failure`, said by `from`; nothing, if it may not speak (may_speak)
    kLinkLost,    // a link to it is over, after the last that it carried; `text` says how
    kWayLost,     // it is reached through another node, which has lost it, or has ended, or over a network; `failure`
    kOutOfReach,  // the session to it is over, and it is a third host's, of whose life the script decides; `failure`
    kReached,     // and now there is another one, that it has opened
    kReplaced,    // its owner holds it for dead, and has another one in its place
    kNoLinks,     // the answer to kEndLinks: there are none
    kLastLines,   // the answer to kAskLines: `text`
    kTimeUp,      // tick()
  };
  struct Event {
    EventKind kind;
    NodeId node = 0;
    NodeId from = 0;
    ExitStatus status{};
    std::string text{};
    FailurePtr failure{};
  };

  enum class ActionKind : uint8_t {
    kEndLinks,   // it is dead: deliver what it left on its links, then kLinkLost comes; kNoLinks if there are none
    kDeclare,    // it is down: fail what waits for it, refuse what is sent to it
    kCloseLinks, // nothing more is to come from it
    kTellAll,    // to everybody that this process has a link to: `failure`
    kTellTree,   // to whoever is_told, and guests, but `from`
    kKill,       // it must end
    kAskLines,   // `lines` of its stderr
    kStopOrphan, // it was started for somebody who is gone
    kEndSelf,    // this process has no reason to be any more: `failure` says why
    kReport,     // nobody was told: a line
    kInquire,    // of our parent, what it has died of: kNoticed comes, if it knows
    kLetGo,      // it is not dead: what waits for it, or its host, has failed with `failure`, and that is all
  };
  struct Action {
    ActionKind kind;
    NodeId node = 0;
    NodeId from = 0;
    uint32_t lines = 0;
    FailurePtr failure{};
  };
  using Actions = std::vector<Action>;

  explicit Deaths(NodeId self) : Deaths(self, Limits{}) {}
  Deaths(NodeId self, Limits limits) : self_(self), limits_(limits) {}

  // ---- Who is who ----
  // This process ends when `parent` does: `why` (kOwnerEnded) is what it is told then.
  void set_parent(NodeId parent, Failure why);
  // A process that this one starts, on behalf of `owner` (this one, mostly). `who` has all that is known of it so far.
  void add_child(NodeId node, NodeId owner, Failure who, uint32_t last_lines);
  void started(NodeId node, int64_t pid);
  // `node` is a process that `host` has started: the host speaks for it, and its end is the node's.
  void add_hosted(NodeId node, NodeId host, int64_t now_ns, Actions& actions);
  // A process that is neither parent nor child, and is told what they are: the host of others, to a script, and that
  // script, to a host. `believed`: what it says of others counts, as our parent's word does.
  void add_neighbour(NodeId node, bool believed);
  // Somebody has asked for its end. The first reason stays. False: it is not ours, or has ended.
  bool stop_asked(NodeId node, std::string reason);
  // This process is a host that ends, though nobody who has started anything here has asked for that: what it stops from
  // now on has not ended as its owner wished, but with its host, that `because`.
  void end_as_host(std::string because) { ends_because_ = std::move(because); }
  // A child has said that of itself: however it ends, that is why.
  void ends_as_host(NodeId child, std::string because);
  bool is_child(NodeId node) const;
  int64_t pid_of(NodeId node) const;  // -1: not known
  std::optional<Failure> who_is(NodeId child) const;  // of one that is not down: all but how it ended
  // Whether what `from` says of the end of `node` counts: it is our parent, or a neighbour that is believed, who know
  // of everybody, or it is, or is above, who has started that node.
  bool may_speak(NodeId from, NodeId node) const;
  // Whether what `from` says of who is there in the place of a dead one counts: as may_speak(), and of what was started
  // here for `from`.
  bool may_replace(NodeId from, NodeId node) const;
  // What counts of what `from` says of who is there in the place of what has ended: of processes as may_replace(), of
  // meshes what their creator says of them, and whoever is told of deaths here.
  Successions::Notice believed(NodeId from, const Successions::Notice& notice) const;
  // Whether it is to hear of the deaths that this process hears of: parent, child or neighbour.
  bool is_told(NodeId node) const;

  // ---- What happens ----
  void handle(int64_t now_ns, const Event& event, Actions& actions);
  // Everything that waits for a time which has come.
  void tick(int64_t now_ns, Actions& actions);
  // When tick() has something to do next; INT64_MAX: never.
  int64_t next_ns() const { return due_.empty() ? INT64_MAX : due_.begin()->first; }

  // Somebody was told that a call has failed which `node` had a part in. True: that is news, for other processes too.
  bool observed(NodeId node, int64_t now_ns);
  // At the end: everything that nobody was told of.
  void report_rest(Actions& actions);
  // Why it is down; null: it is not, or is not remembered.
  FailurePtr why_down(NodeId node) const;
  NodeId host_of(NodeId node) const;  // 0: not known

  enum class Role : uint8_t { kStranger, kChild, kParent };
  enum class State : uint8_t {
    kUp,
    kUnlinked,    // its link is over, and it is not known why
    kOutOfReach,  // a third host's: the script may know that it is dead
    kEnded,       // it is known why, and what it had sent is not all here
    kTelling,     // only its last lines are missing
    kDown,
  };

 private:
  struct Known {
    Role role = Role::kStranger;
    State state = State::kUp;
    NodeId owner = 0;
    NodeId host = 0;
    std::unique_ptr<Failure> who;  // while it is not down: all but how it ended; null: nothing is known
    uint32_t last_lines = 0;
    std::string stopping;    // reason; empty: nobody has asked for its end
    bool ends_with_host = false;  // that is why: end_as_host()
    std::string ends_because;     // ends_as_host()
    FailurePtr failure;      // why it ended, once that is known
    int64_t due_ns = INT64_MAX;
    bool neighbour = false;
    bool believed = false;   // of a neighbour
    bool report = false;     // of a death that is down: nobody has asked for it
    int64_t declared_ns = 0;
    int64_t observed_ns = 0; // when somebody was last told; 0: never
  };
  struct Transition;
  static const Transition* find_transition(Role role, State state, EventKind event);
  Known& known(NodeId node) { return nodes_[node]; }
  FailurePtr make_failure(NodeId node, const Known& entry, const Event& event) const;
  void set_due(NodeId node, Known& entry, int64_t due_ns);
  void lose_with_host(int64_t now_ns, NodeId node, const Failure& why, Actions& actions);
  void take_down(int64_t now_ns, NodeId node, Actions& actions);
  void forget_oldest();
  // Whether somebody was told so late that a death of that time need not be said any more.
  bool told_in_time(const Known& entry, int64_t death_ns) const;

  const NodeId self_;
  const Limits limits_;
  NodeId parent_ = 0;
  std::string ends_because_;  // empty: end_as_host() was not called
  std::unordered_map<NodeId, Known> nodes_;
  std::unordered_map<NodeId, std::unordered_set<NodeId>> hosted_;  // by host, those that are not down
  std::unordered_map<NodeId, std::unordered_set<NodeId>> owned_;   // children, by owner if that is not this process
  std::set<std::pair<int64_t, NodeId>> due_;                       // of all that wait for a time
  std::deque<NodeId> down_order_;                                  // oldest first
};

}  // namespace monarch
