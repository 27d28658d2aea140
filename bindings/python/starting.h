// Processes that other hosts have been asked to start, and have not answered for yet. Who has asked knows their nodes (it
// has made their keys), and goes on; but whoever dialled one of them now might find nobody, and take it for dead. So
// nothing is sent to them, and no handle of them leaves this process, before their hosts have answered (docs/design/027).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "monarch/actor/pending_call.h"
#include "monarch/host/runtime.h"

namespace monarch {

// Any thread. Asks `host` to start what `order` says, for this process: -> the nodes, which `call` says more of.
struct Starting {
  std::vector<NodeId> nodes;
  std::shared_ptr<PendingCall> call;
};
Starting begin_starting(ProcessRuntime& here, NodeId host, LaunchOrder order, const std::string& what);

// Any thread. Whether the hosts of all these have answered.
bool are_started(const std::vector<NodeId>& nodes);
// Any thread. Runs `work` when they have, at once or on the reactor.
void when_started(const std::vector<NodeId>& nodes, std::function<void()> work);
// GIL held. Waits until they have. False: a signal's handler has raised.
bool await_started(const std::vector<NodeId>& nodes);

}  // namespace monarch
