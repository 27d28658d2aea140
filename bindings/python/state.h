// What the extension has one of per process: the runtime, and the Python functions that it calls.
#pragma once

#include <signal.h>

#include <atomic>
#include <memory>

#include "monarch/actor/inflow.h"
#include "monarch/actor/native_cell.h"
#include "monarch/host/any_runtime.h"
#include "monarch/host/controller.h"
#include "monarch/host/runtime.h"
#include "support.h"

namespace monarch {

class Bulk;
class Swarm;
struct Simulated;

// Who runs on this thread: set on the threads of actors.
struct CurrentActor {
  ActorId id;
  std::shared_ptr<Inflow> inflow;  // shared: with waits of its event loop that end after the actor has
  Swarm* swarm = nullptr;          // its thread is shared: in a coroutine, the Context tells who runs
};
extern thread_local CurrentActor current_actor;
// Of the actor that runs on this thread, of the client outside of actors; null on other threads of a worker.
const std::shared_ptr<Inflow>& current_inflow();
// Whether who calls on this thread is part of a script: not an actor, nor something that works for one.
bool calls_are_limited();
// GIL held. The index of the actor that runs; 0: none, as in the client.
ActorIndex current_sender();

struct State {
  std::unique_ptr<AnyRuntime> runtime;
  Simulated* simulated = nullptr;  // of a process that is; owned by its simulation
  std::shared_ptr<void> failure_watch, restart_watch;  // of such a process: supervision.cc, restarts.cc
  std::unique_ptr<NativeFactory> native_actors;
  std::shared_ptr<Bulk> bulk;  // shared: with the table of the node. Null in a simulated process
  std::shared_ptr<Inflow> client_inflow;  // shared: as those of actors
  bool worker = false;
  UniqueFd alarm[2];  // of a worker: a pipe, which its main thread sleeps on; none if there was none to be had
  std::atomic<bool> finalizing{false};
  bool interrupts_ignored = false;  // the script is on its way out (ignore_interrupts)
  std::atomic<bool> interrupted{false};  // and Ctrl-C has come since
  std::atomic<bool> lost{false};      // somebody has closed the descriptors of the runtime: nothing of it is touched again

  sigset_t users_signal_mask{};  // of the thread that started the runtime

  // Set by configure(): monarch._wiring.Callbacks
  Ref dumps;              // (object) -> (bytes-like, [buffers])
  Ref loads;              // pickle.loads
  Ref unreadable;         // (what that has raised, pickle) -> None: may say more in it
  Ref future_type;        // subclass of FutureBase
  Ref port_type;          // subclass of PortBase
  Ref value_mesh;         // (endpoint, [values or Raw]) -> ValueMesh
  Ref lazy;               // (bytes) -> entry of a ValueMesh that is decoded when it is looked at
  Ref actor_error;        // (endpoint, rank, error as decoded) -> exception
  Ref supervision_error;  // (endpoint, rank, text, record or None, [other ranks that have failed]) -> exception
  Ref timed_out;          // (endpoint, [ranks that have not answered]) -> TimeoutError
  Ref bind_arguments;     // (endpoint, args, kwargs) -> None, or raises TypeError
  Ref warn_running_loop;  // () -> None
  Ref construct;          // (cell, spawn value, rank) -> bool: is it async? Fills the cell; raises what __init__ raised
  Ref run_async;          // (cell) -> None: runs the actor's event loop until it ends
  Ref run_swarm;          // (swarm) -> None: the same for the actors of a swarm
  Ref end_actor;          // (cell, exception or None) -> None: the __cleanup__ hook
  Ref stop_owned;         // (identity) -> None: asks what that actor owns to end
  Ref undeliverable;      // (cell, text, (node, index)) -> None, or a coroutine: _handle_undeliverable_message
  Ref supervise;          // (cell, failure as describe_failure() says) -> None: the __supervise__ hook of a sync actor
  Ref supervise_all;      // (cell) -> a coroutine that asks the hook about what cell.next_failure() gives
  Ref watch_restarts;     // () -> None: what the thread runs that makes anew what has a policy
  Ref watch_failures;     // () -> None: what the thread runs that decides about the others
  Ref pack_answer;        // (exception) -> what its caller is sent
  Ref format_failure;     // (exception, identity) -> text
  Ref end_child;          // (exception or None): ends this process, a forked child that is done with its parent's work
  Ref context_var;        // ContextVar of the current message
  Ref deadline_var;       // ContextVar: ns on the monotonic clock, or None
  Ref deadline_exceeded;  // exception class
  Ref make_point;         // (rank, extent) -> Point
  Ref make_extent;        // (labels, sizes) -> Extent
  Ref keep;               // (result, caller's node, number of its call, rank) -> what that one is sent in its place
  Ref add_missing;        // (exception, endpoint, [ranks without an answer], [ranks asked], [what those did]) -> None
  Ref report_stacks;      // () -> None: prints what all processes of the script do
};

State& state();
// Of the simulated process that this thread runs in; null: it is no such thread.
extern thread_local constinit State* simulated_state;
// The clock of this process, which may be simulated.
int64_t clock_ns();
// What configure() takes.
void copy_hooks(const State& from, State& to);
void drop_hooks(State& of);

// The runtime, or null with RuntimeError set: there is none, or this is a forked child. Who is called from Python asks this
// before it takes a lock or looks at a link, a port or a call.
AnyRuntime* require_runtime();
// The same for what only a process of the machine can do: a simulated one raises NotImplementedError, which names `what`.
ProcessRuntime* require_machine(const char* what);
// The same for what may be looked at when the runtime has ended. True: RuntimeError is set.
bool refuse_dead();
// Looks whether the runtime still has its descriptors, which is a system call: where a call that depends on them might wait
// for ever. False: it has lost them, and RuntimeError is set.
bool require_descriptors();
// The same for who holds no GIL: nothing is set.
bool has_descriptors();

}  // namespace monarch
