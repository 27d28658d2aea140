// FutureBase: what a call returns. A C++ object; no asyncio object is made unless it is awaited.
#pragma once

#include "monarch/actor/pending_call.h"
#include "support.h"

namespace monarch {

enum class FutureMode {
  kOne,      // the answer of the only rank
  kAll,      // a ValueMesh of all answers
  kReduced,  // one value, of all answers (PendingCall::reducer)
  kPartial,  // a ValueMesh, with exceptions in the place of answers that are failures
  kArrival,  // the i-th answer to arrive
  kNothing,  // None when every rank has answered
  kEnded,    // the same, where a rank that is dead already is as good as one that has answered
  kPort,     // what came to a port (the call is a PortWait)
  kPortRanked,  // (rank, what came)
  kEach,        // `endpoint`, a function, of a list with the answer of each rank, or the exception in its place
  kStacks,      // `endpoint`, a function, of a list with what each rank has answered, or why it has not, as text
};

// A new future (of the Python class that was configured), or null with an exception. `endpoint`: whose call it is, for
// results and error texts; may be None. `one_way_before`: FutureState's.
PyObject* new_future(std::shared_ptr<PendingCall> call, FutureMode mode, uint32_t arrival, PyObject* endpoint,
                     uint64_t one_way_before = 0);

// The same for the next message of a port. `ranked`: (rank, value).
PyObject* new_port_future(std::shared_ptr<class PortReceiver> port, bool ranked);

// A future that is there already: a value, or (`failed`) the exception that looking at it raises.
PyObject* new_completed_future(PyObject* outcome, bool failed);

// A call that something on this side answers, by complete(): without a value.
std::shared_ptr<PendingCall> new_own_call(class AnyRuntime& runtime);
void complete(PendingCall& call, class Driver& driver);

// What Python makes the attributes of an exception of: (kind, pid, host, exit code, signal, rank, mesh, coordinates);
// None where a thing is not known. Rank and mesh are those of a process. Null with an exception set: no memory.
Ref describe_record(const struct Failure& failure);

// Waits, with the GIL dropped, until `ready(context)` or the deadline. 1: ready, 0: time-out, -1: a signal handler
// raised. `call`: what that depends on, once it has so many answers (PendingCall::add_waiter). `only`: without a deadline,
// the call that this waits for, and nothing else does (host/call_watch.h).
int wait_for(bool (*ready)(const void*), const void* context, int64_t deadline_ns, PendingCall* call, uint32_t arrivals,
             int64_t* waited_ns = nullptr, const std::shared_ptr<PendingCall>* only = nullptr);

bool add_future_types(PyObject* module);

}  // namespace monarch
