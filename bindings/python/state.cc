#include "state.h"

#include "actor_cell.h"
#include "monarch/base/forked.h"
#include "monarch/base/log.h"

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

namespace {
constexpr char kLost[] = "its file descriptors were closed by this program (os.closerange?)";
}

bool has_descriptors() {
  State& s = state();
  if (in_forked_child() || !s.runtime || s.lost.load() || s.runtime->reactor().has_its_descriptors()) return !s.lost.load();
  if (!s.lost.exchange(true)) log_line(std::string(kLost) + ": what it has started ends");
  return false;
}

bool require_descriptors() { return has_descriptors() || !refuse_dead(); }

bool refuse_dead() {
  if (state().lost.load(std::memory_order_relaxed)) {
    PyErr_Format(PyExc_RuntimeError, "the monarch runtime of this process is lost: %s", kLost);
    return true;
  }
  if (!in_forked_child()) return false;
  PyErr_SetString(PyExc_RuntimeError,
                  "monarch objects cannot be used in a process made by os.fork(): "
                  "call os._exit or os.exec* there, or have its parent use spawn_procs() instead");
  return true;
}

ProcessRuntime* require_runtime() {
  State& s = state();
  if (refuse_dead()) return nullptr;
  if (!s.runtime || s.finalizing.load()) {
    PyErr_SetString(PyExc_RuntimeError, "the monarch runtime of this process has ended");
    return nullptr;
  }
  return s.runtime.get();
}

}  // namespace monarch
