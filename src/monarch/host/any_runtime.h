// What a language binding uses of the process that it runs in, whether that is one of the machine (ProcessRuntime) or one
// that is simulated (testing/sim_process.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/actor/node.h"
#include "monarch/host/host.h"
#include "monarch/host/start/launch.h"
#include "monarch/host/start/launch_door.h"
#include "monarch/loop/driver.h"
#include "monarch/loop/timers.h"

namespace monarch {

class PendingCall;
class ProcessRuntime;

class AnyRuntime {
 public:
  virtual ~AnyRuntime() = default;

  // All of these: any thread.
  virtual Node& node() = 0;
  virtual Driver& driver() = 0;
  virtual Timers& timers() = 0;

  // Somebody here was told that a call has failed which these had a part in: their deaths need not be said again, here or
  // where they were started.
  virtual void note_observed(NodeId node) = 0;
  void note_observed(const Members& members) {
    for (const ActorId& id : members.ids) note_observed(id.node);
  }

  // As Host's.
  virtual Result<std::vector<NodeId>> spawn(const LaunchOrder& order, const LaunchDefaults& defaults, NodeId owner = 0) = 0;
  virtual void stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
                    std::function<void()> done) = 0;
  // These processes were started for this one by `host`, and die with it.
  virtual void note_hosted(NodeId host, const std::vector<NodeId>& nodes) = 0;
  // What who has started a process that this one awaits, or has awaited, says of it. Nothing of the kind is simulated.
  virtual void hear_news(NodeId, LaunchNews) {}
  // Who has started that process for this one; 0: this one itself, or it is not known.
  virtual NodeId host_of(NodeId node) = 0;
  // The owner's word to processes that their host was asked to stop: nothing more comes from here.
  virtual void release(const std::vector<NodeId>& nodes, const std::string& reason) = 0;
  // Stops all processes of this host object, and waits for their end. Not from the reactor.
  virtual void stop_children(const std::string& reason, int64_t grace_ns) = 0;
  // A worker: its owner has asked it to end.
  virtual bool is_stopping() = 0;
  // A line for each death, and failure, that nobody was told of.
  virtual void report_rest() = 0;

  // An actor here waits for `call`, and for nothing else; or so no more (CallWatch).
  virtual void block(ActorIndex actor, const std::shared_ptr<PendingCall>& call, int64_t waited_ns) = 0;
  virtual void unblock(ActorIndex actor, const PendingCall& call) = 0;

  // Null: it is simulated, and has nothing of the machine.
  virtual ProcessRuntime* of_machine() { return nullptr; }
};

}  // namespace monarch
