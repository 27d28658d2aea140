#include "simulation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "actor_cell.h"
#include "actor_thread.h"
#include "gil.h"
#include "monarch/base/log.h"
#include "monarch/testing/sim_process.h"
#include "patience.h"
#include "restarts.h"
#include "said.h"
#include "state.h"
#include "supervision.h"
#include "unseen.h"

namespace nb = nanobind;

namespace monarch {

using testing::SimMachine;
using testing::SimProcess;
using testing::SimStage;
using testing::SimWorld;

namespace {

constexpr int64_t kStepNs = 10'000;
constexpr int64_t kBeginNs = 1'000'000'000;  // on its clock: 0 means "no time" in many places

PyObject* over_type = nullptr;          // what ends the threads of dead processes
Simulation* current = nullptr;          // at most one; its threads and the GIL
std::unordered_set<NodeId> past_nodes;  // of simulations that are over; the GIL

}  // namespace

// One block of monarch.testing.simulate().
class Simulation {
 public:
  Simulation(uint64_t seed, double patience_s, double delay_max_s);

  struct Entry {
    int64_t time_ns;
    std::string what;
    std::string mesh;
    int64_t rank;
    int64_t pid;
  };

  SimMachine& machine() { return machine_; }
  SimStage& stage() { return machine_.stage(); }
  State& state_of(NodeId node) { return *states_.at(node); }
  State* find_state(NodeId node) {
    const auto found = states_.find(node);
    return found == states_.end() ? nullptr : found->second;
  }
  const std::vector<Entry>& log() const { return log_; }
  nb::list all_locals() {
    nb::list found;
    for (const SimProcess* each : machine_.living()) add_locals(*state_of(each->id()).simulated, found);
    add_locals(*state_of(machine_.script().id()).simulated, found);
    return found;
  }
  int64_t now_ns() { return machine_.world().now_ns() - kBeginNs; }
  void note(std::string what, const SimProcess& of) {
    log_.push_back({now_ns(), std::move(what), of.mesh(), of.rank(), of.pid()});
  }
  void kill_every(double mean_s);
  void end_kills() { kills_ = false; }
  // Whether kill_every() has killed it, or what had started it.
  bool died_by_chance(NodeId node);
  void close();
  // Whether the calling thread is the script, to which interrupts are.
  bool stops_script() { return &state().simulated->process == &machine_.script(); }
  std::unique_ptr<PatienceWatch> patience;
  int exit_status = 0;  // with which interrupts end the script

  Ref begin_process;  // (payload) -> None: on a thread of a process that has been started and has something to do first
  Ref end_process;    // (reason) -> None: on a thread of a process that is to end

 private:
  static void add_locals(const Simulated& of, nb::list& to) {
    if (of.locals) to.append(nb::borrow(of.locals.get()));
  }
  SimMachine::Events events();
  void wire(SimProcess& process, Node::Hooks& hooks);
  void schedule_kill(double mean_s);

  State* const machine_state_ = &state();  // of the process that it all is in
  std::unordered_map<NodeId, State*> states_;  // never destroyed: what is left of a program may refer to them
  std::vector<Entry> log_;
  SimMachine machine_;
  bool kills_ = false;
  std::unordered_set<NodeId> victims_;
};

namespace {

SimWorld::Faults faults_of(double delay_max_s) {
  SimWorld::Faults faults;
  faults.delay_min_ns = std::min<int64_t>(faults.delay_min_ns, static_cast<int64_t>(delay_max_s * 1e9));
  faults.delay_max_ns = static_cast<int64_t>(delay_max_s * 1e9);
  return faults;
}

bool is_here() { return simulated_state != nullptr; }

// One for all simulations, which are never destroyed: it has descriptors.
Driver& shared_driver() {
  struct Shared {
    Reactor reactor;  // never started
    OwnBell bell = OwnBell::make().value();
    Driver driver{reactor, bell.bell(), bell.event_fd.get()};
  };
  static Shared& shared = *new Shared;
  return shared.driver;
}

std::string how(const ExitStatus& status) {
  if (status.signal == 9) return "killed";
  if (status.signal != 0) return "signal " + std::to_string(status.signal);
  return "exit " + std::to_string(status.code);
}

}  // namespace

Simulation::Simulation(uint64_t seed, double patience_s, double delay_max_s)
    : machine_(seed, faults_of(delay_max_s), static_cast<int64_t>(patience_s * 1e9), shared_driver(), events()) {
  SimWorld& world = machine_.world();
  world.at(kBeginNs, [] {});
  while (world.now_ns() < kBeginNs) world.step();
}

SimMachine::Events Simulation::events() {
  SimMachine::Events events;
  events.wired = [this](SimProcess& process, Node::Hooks& hooks) { wire(process, hooks); };
  events.started = [this](SimProcess& process) {
    note("spawned", process);
    State& of = state_of(process.id());
    of.worker = true;
    process.node().set_factory(CellKind::kPython, python_factory());
    if (process.payload().empty()) return;
    of.simulated->held = true;
    start_simulated_thread(of, "a bootstrap function", [this, &process, &of] {
      const std::string& text = process.payload();
      Ref payload = Ref::steal(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
      Ref done = Ref::steal(payload ? PyObject_CallOneArg(begin_process.get(), payload.get()) : nullptr);
      if (!done && !is_simulation_over()) PyErr_WriteUnraisable(nullptr);
      PyErr_Clear();
      of.simulated->held = false;
    });
  };
  events.asked_to_stop = [this](SimProcess& process, const std::string& reason) {
    State& of = state_of(process.id());
    start_simulated_thread(of, "the end of a process", [this, &process, reason] {
      Ref done = Ref::steal(PyObject_CallFunction(end_process.get(), "s", reason.c_str()));
      if (!done && !is_simulation_over()) PyErr_WriteUnraisable(nullptr);
      PyErr_Clear();
      if (!is_simulation_over()) machine_.end(process, {true, 0, 0});
    });
  };
  events.interrupted = [] {
    GilThread python;
    return PyErr_CheckSignals() != 0;
  };
  events.ended = [this](SimProcess& process, const ExitStatus& status) { note(how(status), process); };
  return events;
}

// What its node tells its process, as options_for() in bind_runtime.cc.
void Simulation::wire(SimProcess& process, Node::Hooks& hooks) {
  State* const of = states_[process.id()] = new State;
  of->runtime.reset(&process);  // neither is ever destroyed
  {
    GilThread python;  // whoever spawns has dropped it
    copy_hooks(*machine_state_, *of);
  }
  of->simulated = new Simulated{*this, process, false, Ref()};
  hooks.on_mesh_failure = [of](MeshFailure failure) {
    const StateScope scope(of);
    watch_failure(std::move(failure), nullptr);
  };
  hooks.on_restart_wanted = [of](std::vector<MeshFailure> failures) {
    const StateScope scope(of);
    restart_wanted(std::move(failures));
  };
  hooks.on_undeliverable = [of, said = std::make_shared<Said>()](const ActorId& dest, const Failure& why) {
    const StateScope scope(of);
    if (said->first_time(dest, why)) say_undeliverable(dest, why);
    if (of->runtime) of->runtime->note_observed(dest.node);
  };
}

void Simulation::kill_every(double mean_s) {
  if (std::exchange(kills_, true)) return;
  schedule_kill(mean_s);
}

void Simulation::schedule_kill(double mean_s) {
  SimWorld& world = machine_.world();
  const double uniform = (static_cast<double>(world.random(uint64_t{1} << 53)) + 1) / 9007199254740993.0;
  world.after(static_cast<int64_t>(-std::log(uniform) * mean_s * 1e9), [this, mean_s] {
    if (!kills_) return;
    const std::vector<SimProcess*> living = machine_.living();
    if (!living.empty()) {
      SimProcess& victim = *living[machine_.world().random(living.size())];
      victims_.insert(victim.id());
      machine_.kill(victim);
    }
    schedule_kill(mean_s);
  });
}

bool Simulation::died_by_chance(NodeId node) {
  for (const SimProcess* each = machine_.find(node); each != nullptr; each = machine_.find(each->parent())) {
    if (victims_.contains(each->id())) return true;
  }
  return false;
}

// All that happens in a simulation happens on a thread of it, whichever process it is about.
State* simulated_state_of(NodeId node) { return is_here() && current != nullptr ? current->find_state(node) : nullptr; }

void start_simulated_thread(State& of, std::string name, std::function<void()> work) {
  SimStage& stage = of.simulated->simulation.stage();
  auto player = stage.enlist(of.simulated->process.id(), std::move(name));
  const bool started = start_actor_thread([&of, &stage, player, work = std::move(work)]() mutable {
    simulated_state = &of;
    if (stage.enter(player)) {
      GilThread python;
      run_in_new_context([](void* given) { (*static_cast<std::function<void()>*>(given))(); }, &work);
      work = nullptr;
      python.forget_thread_locals();
    }
    stage.leave();
  });
  if (!started) sys::end_for_shortage("start a thread of a simulation");
}

bool simulated_wait(bool (*ready)(const void*), const void* context, int64_t deadline_ns) {
  Waiter waiter;
  return state().runtime->driver().wait(waiter, ready, context, deadline_ns) == WaitResult::kReady;
}

void simulated_step() {
  if (!is_here()) return;
  GilRelease release;
  simulated_wait([](const void*) { return false; }, nullptr, clock_ns() + kStepNs);
}

bool is_simulation_over() { return is_here() && state().simulated->simulation.stage().is_released(); }

bool check_simulation() {
  SimStage& stage = state().simulated->simulation.stage();
  if (stage.is_released()) {
    PyErr_SetString(over_type, "the simulated process of this thread has ended");
    return false;
  }
  Simulation& here = state().simulated->simulation;
  if (here.stops_script() && stage.take_interrupt()) {
    Ref status = Ref::steal(PyLong_FromLong(here.exit_status));
    PyErr_SetObject(PyExc_SystemExit, status.get());
    return false;
  }
  switch (stage.broken()) {
    case SimStage::Broken::kNo:
      return true;
    case SimStage::Broken::kNothingLeft:
      PyErr_SetString(PyExc_RuntimeError,
                      "the script waits for what never comes: in the whole simulation nothing is left to happen that "
                      "could end the wait, or nothing has within a day of its time");
      return false;
    case SimStage::Broken::kInterrupted:
      if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "the simulation has been interrupted, and does not go on");
      }
      return false;
    case SimStage::Broken::kStuck:
      PyErr_Format(PyExc_RuntimeError,
                   "a thread of the simulation (%s) does not come back: it waits for something outside of the simulation, "
                   "or computes for longer than its `patience` lasts",
                   stage.culprit().c_str());
      return false;
  }
  return true;
}

bool check_reach(const Members& members) {
  if (current == nullptr && past_nodes.empty()) return true;
  for (const ActorId& id : members.ids) {
    if (is_here() && current->find_state(id.node) != nullptr) continue;
    if (!is_here() && !past_nodes.contains(id.node)) continue;
    PyErr_SetString(PyExc_RuntimeError,
                    is_here() ? "this mesh or port is not of the simulation that runs: its processes are real ones, or "
                                "those of another simulation"
                              : "this mesh or port belongs to a simulation that has ended");
    return false;
  }
  return true;
}

bool check_home(const Unseen& future) {
  if (future.is_here()) return true;
  PyErr_SetString(PyExc_RuntimeError, is_here() ? "this future is not of the simulation that runs"
                                                : "this future belongs to a simulation that has ended");
  return false;
}

void Simulation::close() {
  for (const auto& [node, of] : states_) past_nodes.insert(node);
  machine_.close();
  if (stage().is_held()) return;
  GilRelease release;
  stage().release_all();
  python_factory().forget_simulated();
}

// ---- What monarch._simulation uses ----

namespace {

Simulation& simulation() {
  if (!is_here()) throw std::runtime_error("this thread is not in a simulation");
  return state().simulated->simulation;
}

void check() {
  if (!check_simulation()) throw nb::python_error();
}

void enter_simulation(uint64_t seed, double patience_s, double delay_max_s, nb::object begin_process,
                      nb::object end_process) {
  if (current != nullptr) throw std::runtime_error("there is a simulation already");
  auto* made = new Simulation(seed, patience_s, delay_max_s);  // never destroyed, as its states
  made->begin_process = Ref::borrow(begin_process.ptr());
  made->end_process = Ref::borrow(end_process.ptr());
  current = made;
  SimProcess& script = made->machine().script();
  State& of = made->state_of(script.id());
  of.client_inflow = std::make_shared<Inflow>(script.node(), 0);
  script.node().set_factory(CellKind::kPython, python_factory());
  simulated_state = &of;
}

void leave_simulation() {
  Simulation& left = simulation();
  left.close();
  for (PyObject* each : {left.begin_process.release(), left.end_process.release()}) Py_XDECREF(each);
  simulated_state = nullptr;
  current = nullptr;
  flush_log();
}

// Rounded up: an event loop whose time has not come yet waits again, and would never get on.
int64_t after_here(double seconds) { return clock_ns() + static_cast<int64_t>(std::ceil(std::min(seconds, 1e9) * 1e9)); }

// Until the deadline, in seconds of the simulation.
void sleep_here(double seconds) {
  {
    GilRelease release;
    simulated_wait([](const void*) { return false; }, nullptr, after_here(seconds));
  }
  check();
}

// Until one of these descriptors can be read. Returns which can.
std::vector<int> select_here(const std::vector<int>& fds, double seconds) {
  std::vector<pollfd> wanted;
  for (const int fd : fds) wanted.push_back({fd, POLLIN, 0});
  const auto there = [](const void* of) {
    auto& polled = *static_cast<std::vector<pollfd>*>(const_cast<void*>(of));
    return poll(polled.data(), polled.size(), 0) > 0;
  };
  {
    GilRelease release;
    const int64_t deadline_ns = seconds < 0 ? kNoDeadline : after_here(seconds);
    simulated_wait(there, &wanted, deadline_ns);
  }
  check();
  std::vector<int> found;
  for (const pollfd& each : wanted) {
    if (each.revents != 0) found.push_back(each.fd);
  }
  return found;
}

// What threads of the simulation wait for, and set.
struct Flag {
  bool set = false;
  bool wait(double seconds) {
    if (!set) {
      GilRelease release;
      const int64_t deadline_ns = seconds < 0 ? kNoDeadline : after_here(seconds);
      simulated_wait([](const void* of) { return *static_cast<const bool*>(of); }, &set, deadline_ns);
    }
    check();
    return set;
  }
};

nb::object process_of(const SimProcess& process) {
  return nb::make_tuple(process.id(), process.pid(), process.mesh(), process.rank(), process.host());
}

nb::object locals_here() {
  Simulated& here = *state().simulated;
  if (!here.locals) here.locals = Ref::steal(PyDict_New());
  return nb::borrow(here.locals.get());
}

}  // namespace

bool add_simulation(PyObject* module) {
  nb::module_ m = nb::borrow<nb::module_>(module);
  over_type = PyErr_NewException("monarch._core.SimulationOver", PyExc_SystemExit, nullptr);
  if (over_type == nullptr || PyModule_AddObjectRef(module, "SimulationOver", over_type) != 0) return false;
  m.def("enter_simulation", &enter_simulation);
  m.def("leave_simulation", &leave_simulation);
  m.def("in_simulation", &is_here);
  // watch_patience(seconds, signal, where): see patience.h
  m.def("watch_patience", [](double seconds, int signal, nb::object where) {
    const auto patience_ns = static_cast<int64_t>(seconds * 1e9);
    simulation().patience = std::make_unique<PatienceWatch>(simulation().stage(), patience_ns, signal, where.ptr());
  });
  m.def("end_patience", [] { simulation().patience->end(); });
  // In the handler of that signal: raises, if the script has done nothing since.
  m.def("patience_is_over", [] {
    if (is_here() && simulation().patience && simulation().patience->gives_up()) check();
  });
  m.def("simulation_is_broken", [] { return simulation().stage().broken() != SimStage::Broken::kNo; });
  m.def("simulated_ns", [] { return clock_ns(); });
  m.def("simulated_now", [] { return static_cast<double>(simulation().now_ns()) / 1e9; });
  m.def("simulated_events", [] { return simulation().machine().world().events(); });
  m.def("simulated_random", [](uint64_t below) { return simulation().machine().world().random(below); });
  m.def("simulated_root", [] { return simulation().machine().script().id(); });
  m.def("simulated_process", [] { return process_of(state().simulated->process); });
  m.def("simulated_locals", &locals_here);
  m.def("simulated_sleep", &sleep_here);
  m.def("simulated_select", &select_here);
  m.def("simulated_kill_every", [](double mean_s) { simulation().kill_every(mean_s); });
  m.def("simulated_knows", [](NodeId node) { return simulation().find_state(node) != nullptr; });
  m.def("simulated_kills_end", [] { simulation().end_kills(); });
  m.def("simulated_by_chance", [](NodeId node) { return simulation().died_by_chance(node); });
  m.def("simulated_locals_of_all", [] { return simulation().all_locals(); });
  m.def("simulated_living", [] {
    nb::list found;
    for (const SimProcess* each : simulation().machine().living()) found.append(process_of(*each));
    return found;
  });
  m.def("simulated_log", [] {
    nb::list found;
    for (const Simulation::Entry& each : simulation().log()) {
      found.append(nb::make_tuple(static_cast<double>(each.time_ns) / 1e9, each.what, each.mesh, each.rank, each.pid));
    }
    return found;
  });
  m.def("simulated_thread", [](const std::string& name, nb::object work) {
    PyObject* kept = work.release().ptr();
    start_simulated_thread(state(), name, [kept] {
      Ref callable = Ref::steal(kept);
      Ref done = Ref::steal(PyObject_CallNoArgs(callable.get()));
      if (!done && !is_simulation_over()) PyErr_WriteUnraisable(callable.get());
      PyErr_Clear();
    });
  });
  // end(node, code, signal): that process ends so. False: there is none that lives.
  m.def("simulated_end", [](NodeId node, int code, int signal) {
    SimMachine& machine = simulation().machine();
    SimProcess* found = machine.find(node);
    if (found == nullptr || !found->is_alive() || found == &machine.script()) return false;
    const bool self = found == &state().simulated->process;
    GilRelease release;
    machine.end(*found, {true, code, signal});
    if (self) machine.stage().stand();
    return true;
  });
  m.def("simulated_stop_program", [](int status) {
    simulation().exit_status = status;
    simulation().stage().interrupt();
  });
  m.def("is_simulation_over", &is_simulation_over);
  // pause(node, seconds): it is stopped for so long. False: it does not live.
  m.def("simulated_pause", [](NodeId node, double seconds) {
    Simulation& here = simulation();
    SimProcess* found = here.machine().find(node);
    if (found == nullptr || !found->is_alive()) return false;
    here.note("stopped", *found);
    here.stage().pause(node, after_here(seconds));
    return true;
  });
  m.def("check_simulation", &check);
  nb::class_<Flag>(m, "SimulatedFlag")
      .def(nb::init<>())
      .def("set", [](Flag& flag) { flag.set = true; })
      .def("clear", [](Flag& flag) { flag.set = false; })
      .def("is_set", [](const Flag& flag) { return flag.set; })
      .def("wait", &Flag::wait, nb::arg("seconds") = -1.0);
  return true;
}

}  // namespace monarch
