#include "state.h"

#include "actor_cell.h"
#include "monarch/base/forked.h"
#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "simulation.h"

namespace monarch {

thread_local CurrentActor current_actor;

const std::shared_ptr<Inflow>& current_inflow() {
  return current_actor.inflow ? current_actor.inflow : state().client_inflow;
}

bool calls_are_limited() { return current_actor.inflow == nullptr && !state().worker; }

ActorIndex current_sender() {
  return current_actor.swarm == nullptr ? current_actor.id.index : actor_of_context();
}

thread_local constinit State* simulated_state = nullptr;

State& state() {
  if (simulated_state != nullptr) [[unlikely]] return *simulated_state;
  // Never destroyed: threads of ours may look at it while the interpreter goes down.
  static State* instance = new State;
  return *instance;
}

namespace {
constexpr char kLost[] = "its file descriptors were closed by this program (os.closerange?)";
}

bool has_descriptors() {
  State& s = state();
  if (in_forked_child() || !s.runtime || s.simulated != nullptr || s.lost.load() ||
      s.runtime->of_machine()->reactor().has_its_descriptors()) {
    return !s.lost.load();
  }
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

AnyRuntime* require_runtime() {
  State& s = state();
  if (refuse_dead() || (s.simulated != nullptr && !check_simulation())) return nullptr;
  if (!s.runtime || s.finalizing.load()) {
    PyErr_SetString(PyExc_RuntimeError, "the monarch runtime of this process has ended");
    return nullptr;
  }
  return s.runtime.get();
}

ProcessRuntime* require_machine(const char* what) {
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr || runtime->of_machine() != nullptr) return runtime == nullptr ? nullptr : runtime->of_machine();
  PyErr_Format(PyExc_NotImplementedError, "%s: not in monarch.testing.simulate(), which has no real processes", what);
  return nullptr;
}

int64_t clock_ns() {
  return simulated_state == nullptr ? monotonic_ns() : simulated_state->runtime->timers().now_ns();
}

namespace {
constexpr Ref State::* kHooks[] = {
    &State::dumps, &State::loads, &State::unreadable, &State::future_type, &State::port_type, &State::value_mesh,
    &State::lazy, &State::actor_error, &State::supervision_error, &State::timed_out, &State::bind_arguments,
    &State::warn_running_loop, &State::construct, &State::run_async, &State::run_swarm, &State::end_actor,
    &State::stop_owned, &State::undeliverable, &State::supervise, &State::supervise_all, &State::watch_failures,
    &State::watch_restarts, &State::pack_answer, &State::format_failure, &State::end_child, &State::context_var,
    &State::deadline_var, &State::deadline_exceeded, &State::make_point, &State::make_extent, &State::keep,
    &State::add_missing, &State::report_stacks};
}

void copy_hooks(const State& from, State& to) {
  for (const auto hook : kHooks) to.*hook = from.*hook;
}

void drop_hooks(State& of) {
  for (const auto hook : kHooks) of.*hook = Ref();
}

}  // namespace monarch
