// Finds cycles of calls, each of which waits for the next: edge chasing (Chandy, Misra and Haas, 1983). A process that has
// an actor which has been blocked by a call for a while sends a probe to whoever owes the answers. Where that actor is
// blocked too, and the call waits for it, the probe goes on to whom that waits for; elsewhere it ends. A probe that comes
// back has gone along a cycle. That is believed when a later one has gone along the same calls: each of them has been
// pending, and its actor blocked, from the first time to the second.
//
// An edge is certain, or it is none: the actor waits for that call only, without a limit, and does nothing else meanwhile;
// and the call waits in the mailbox of the next one, or is what the next one does. So there are no false cycles; where
// nothing is certain (an endpoint that awaits several things, an answer that is given through a port), none is found.
//
// One call of the cycle is given up, the one that has closed it: it waits in the mailbox of an actor that is at something
// else, since a call that an actor is busy with is older than those that it makes for it. Where there are several such, it
// is the youngest: probes tell how long each has waited.
//
// Pure: it asks a Place what actors here do, and returns what is to be sent and done. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monarch/actor/recent.h"
#include "monarch/base/bytes.h"
#include "monarch/base/ids.h"
#include "monarch/base/result.h"

namespace monarch {

// An actor that a call blocks.
struct BlockedActor {
  ActorId actor;
  uint64_t token = 0;     // of that call, in the node of the actor
  int64_t waited_ns = 0;  // when this was asked
  std::string who;        // "rank 3 of trainers (pid 17)"
  std::string doing;      // the endpoint that it is in
  std::string called;     // what the one before in the path has called of this one; not known of the first
  bool queued = false;    // that call waits in its mailbox; else it is what this actor does
};

struct Probe {
  static constexpr uint32_t kPathMax = 32;
  uint32_t round = 0;               // of those of its first actor
  std::vector<BlockedActor> path;   // not empty; each waits for the next, the last for whoever this is sent to

  std::string encoded() const;
  // kMalformed: `bytes` are no such thing.
  static Result<Probe> decode(ByteSpan bytes);
};

class Deadlocks {
 public:
  // When a cycle that was seen once is looked at again.
  static constexpr int64_t kConfirmNs = 50'000'000;

  // An actor here that a call blocks: without a limit, and until that is answered it takes no message and answers none.
  struct Blocked {
    uint64_t token = 0;
    int64_t since_ns = 0;
    std::vector<ActorId> owing;  // those that have not answered
    std::string who;
    std::string doing;
  };
  class Place {
   public:
    virtual ~Place() = default;
    // None: it is not, or that is not certain.
    virtual std::optional<Blocked> blocked(ActorIndex actor) = 0;
    // What this call of another node, or this one, has asked the actor for, if the call waits for what the actor does.
    struct Asked {
      std::string called;  // the endpoint
      bool queued = false;  // as in BlockedActor
    };
    virtual std::optional<Asked> awaits(NodeId caller, uint64_t token, ActorIndex actor) = 0;
  };

  struct Send {
    ActorId to;
    Probe probe;
  };
  struct GiveUp {
    uint64_t token;
    std::string text;
  };
  struct Actions {
    std::vector<Send> sends;
    std::vector<ActorIndex> again;  // search() for these after kConfirmNs
    std::vector<GiveUp> give_up;
  };

  // `place` is asked from within the calls below.
  Deadlocks(NodeId self, Place& place) : self_(self), place_(place) {}

  // This actor has been blocked for a while.
  Actions search(int64_t now_ns, ActorIndex actor);
  // A probe for an actor of this node has come.
  Actions on_probe(int64_t now_ns, ActorIndex actor, Probe probe);
  // It is not blocked by this call any more; perhaps by another one, whose search goes on.
  void forget(ActorIndex actor, uint64_t token);

 private:
  static constexpr size_t kPassedMax = 4096;
  static constexpr size_t kOwingMax = 4096;
  static constexpr size_t kCyclesMax = 16;

  struct Search {
    uint64_t token = 0;
    uint32_t round = 0;
    std::map<std::string, uint32_t> cycles;  // that have been seen: in which round first
  };
  void closed(const Probe& probe, Actions& actions);
  void go_on(Probe probe, const std::vector<ActorId>& owing, Actions& actions);

  const NodeId self_;
  Place& place_;
  std::map<ActorIndex, Search> searches_;
  Recent<uint64_t, bool> passed_{kPassedMax};  // which probes have been passed on for which actor: each once
};

}  // namespace monarch
