#include "state.h"

#include "actor_cell.h"

namespace monarch {

thread_local CurrentActor current_actor;

const std::shared_ptr<Inflow>& current_inflow() {
  return current_actor.inflow ? current_actor.inflow : state().client_inflow;
}

ActorIndex current_sender() {
  return current_actor.swarm == nullptr ? current_actor.id.index : actor_of_context();
}

State& state() {
  // Never destroyed: threads of ours may look at it while the interpreter goes down.
  static State* instance = new State;
  return *instance;
}

ProcessRuntime* require_runtime() {
  State& s = state();
  if (s.forked.load()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "monarch objects cannot be used in a process made by os.fork(): "
                    "call os._exit or os.exec* there, or spawn a process with spawn_procs()");
    return nullptr;
  }
  if (!s.runtime || s.finalizing.load()) {
    PyErr_SetString(PyExc_RuntimeError, "the monarch runtime of this process has ended");
    return nullptr;
  }
  return s.runtime.get();
}

}  // namespace monarch
