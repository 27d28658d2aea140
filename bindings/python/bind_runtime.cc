// The runtime of the process, as python/monarch/_runtime/runtime.py drives it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "actor_cell.h"
#include "bulk.h"
#include "codec.h"
#include "deadline.h"
#include "frame_chunks.h"
#include "future.h"
#include "gil.h"
#include "host_use.h"
#include "mesh_ref.h"
#include "monarch/actor/libraries.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/neighbour.h"
#include "monarch/host/start/guard.h"
#include "monarch/host/start/life.h"
#include "port.h"
#include "quit_signal.h"
#include "restarts.h"
#include "said.h"
#include "simulation.h"
#include "stacks.h"
#include "state.h"
#include "supervision.h"
#include "unseen.h"

namespace nb = nanobind;

namespace monarch {

void wake_main_thread() {
  const char any = 0;
  const int fd = state().alarm[1].get();
  if (fd >= 0) [[maybe_unused]] const ssize_t written = write(fd, &any, 1);  // full: it will wake up
}

namespace {

AnyRuntime& runtime() {
  AnyRuntime* existing = require_runtime();
  if (existing == nullptr) throw nb::python_error();
  return *existing;
}

ProcessRuntime& machine(const char* what) {
  ProcessRuntime* existing = require_machine(what);
  if (existing == nullptr) throw nb::python_error();
  return *existing;
}

[[noreturn]] void raise(const Error& error) { throw std::runtime_error(error.message); }

// `callbacks`: monarch._wiring.Callbacks
void configure(nb::object callbacks) {
  State& s = state();
  pthread_sigmask(SIG_SETMASK, nullptr, &s.users_signal_mask);
  auto take = [&callbacks](const char* name, Ref& into) { into = Ref::borrow(nb::object(callbacks.attr(name)).ptr()); };
  take("dumps", s.dumps);
  take("loads", s.loads);
  take("unreadable", s.unreadable);
  take("future_type", s.future_type);
  take("port_type", s.port_type);
  take("value_mesh", s.value_mesh);
  take("lazy", s.lazy);
  take("actor_error", s.actor_error);
  take("supervision_error", s.supervision_error);
  take("timed_out", s.timed_out);
  take("bind_arguments", s.bind_arguments);
  take("warn_running_loop", s.warn_running_loop);
  take("construct", s.construct);
  take("run_async", s.run_async);
  take("run_swarm", s.run_swarm);
  take("end_actor", s.end_actor);
  take("stop_owned", s.stop_owned);
  take("undeliverable", s.undeliverable);
  take("supervise", s.supervise);
  take("supervise_all", s.supervise_all);
  take("watch_failures", s.watch_failures);
  take("watch_restarts", s.watch_restarts);
  take("pack_answer", s.pack_answer);
  take("format_failure", s.format_failure);
  take("end_child", s.end_child);
  take("context_var", s.context_var);
  take("deadline_var", s.deadline_var);
  take("deadline_exceeded", s.deadline_exceeded);
  take("make_point", s.make_point);
  take("make_extent", s.make_extent);
  take("keep", s.keep);
  take("add_missing", s.add_missing);
  take("report_stacks", s.report_stacks);
}

ProcessRuntime::Options options_for(const std::string& transport, uint64_t arena_bytes_max) {
  ProcessRuntime::Options options;
  options.transport = transport;
  options.arena_bytes_max = arena_bytes_max;
  options.on_stop = wake_main_thread;
  options.running_actors = [] { return python_factory().running(); };
  options.on_undeliverable = [said = std::make_shared<Said>()](const ActorId& dest, const Failure& why) {
    if (said->first_time(dest, why)) say_undeliverable(dest, why);
    state().runtime->note_observed(dest.node);
  };
  options.on_restart_wanted = restart_wanted;
  options.on_mesh_failure = [](MeshFailure failure) { watch_failure(std::move(failure), nullptr); };
  return options;
}

void start_root(const std::string& transport, uint64_t arena_bytes_max, int stdout_fd, int stderr_fd) {
  State& s = state();
  write_stacks_of_python();
  ProcessRuntime::Options options = options_for(transport, arena_bytes_max);
  options.stdout_fd = stdout_fd;
  options.stderr_fd = stderr_fd;
  auto made = ProcessRuntime::make_root(std::move(options));
  if (!made) raise(made.error());
  ProcessRuntime& runtime = **made;
  s.runtime = std::move(*made);
  s.client_inflow = std::make_shared<Inflow>(s.runtime->node(), 0);
  s.runtime->node().set_factory(CellKind::kPython, python_factory());
  s.native_actors = install_native_actors(runtime);
  s.bulk = install_bulk(runtime);
  runtime.reactor().post([] { gil_mark_reactor_thread(); });
  watch_quit_signal();
}

// Each actor has a thread, and glibc would give the first of them eight heaps per core, at 30 us and 130 KiB each.
void limit_malloc_arenas() {
  if (getenv("MALLOC_ARENA_MAX") == nullptr && getenv("GLIBC_TUNABLES") == nullptr) {
    mallopt(M_ARENA_MAX, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  }
}

nb::bytes py_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// What a process that somebody has started for a mesh, and that has inherited nothing, is told (host/start/launch_door.h):
// -> the descriptors of its bootstrap.
std::vector<int> enter_launch_door_here(const std::string& address) {
  auto fds = [&] {
    GilRelease release;
    return enter_launch_door(address);
  }();
  if (!fds) raise(fds.error());
  std::vector<int> numbers;
  for (UniqueFd& fd : *fds) numbers.push_back(fd.release());
  return numbers;
}

// The descriptors of a bootstrap, by number; returns what the host gives to all that is started there, what the order has
// given, the environment (None: it stands), and whether this process is a host.
nb::tuple start_worker(const std::vector<int>& numbers, uint64_t arena_bytes_max) {
  if (numbers.empty()) throw std::runtime_error("no bootstrap descriptor");
  BootstrapFds fds;
  fds[kFdRecord].reset(numbers[0]);
  hold_life(numbers[0]);
  LastWords* const last_words = map_own_last_words(numbers[0]);
  std::vector<int> inherited;
  auto bootstrap = read_bootstrap(numbers[0], &inherited);
  if (!bootstrap) raise(bootstrap.error());
  const bool by_exec = !inherited.empty();
  for (int i = 1; i < kFdCount; ++i) {
    const int fd = by_exec ? inherited[i] : numbers.at(i);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fds[i].reset(fd);
  }
  take_up_output(fds);
  pool_frame_chunks();
  // The chain of death: this process dies with the one that started it, whoever kills that. One that user code has started
  // has another parent; that of its node ends its group.
  const bool by_user = bootstrap->parent_pid == 0;
  if (!by_exec) {
    if (!by_user) leave_fork_server();
    setsid();
  }
  if (!by_user) guard_register(fds[kFdGuard].get(), getpgrp());
  fds[kFdGuard].reset();
  if (!by_user) prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A program that was put before the interpreter may run it as a child of its own. That one leads the session.
  const pid_t parent = getppid();
  if (!by_user && parent != bootstrap->parent_pid && !(by_exec && parent == getsid(0))) _exit(1);
  limit_malloc_arenas();
  State& s = state();
  write_stacks_of_python();
  if (last_words != nullptr) note_crashes_of_python(*last_words, fds[kFdRecord].get());
  s.worker = true;
  sys::make_pipe(s.alarm, O_NONBLOCK);
  const auto keep = [&s, last_words](std::unique_ptr<ProcessRuntime> made) {
    ProcessRuntime& worker = *made;
    s.runtime = std::move(made);
    if (last_words != nullptr) worker.node().activity().use(*last_words);
    worker.node().set_factory(CellKind::kPython, python_factory());
    s.native_actors = install_native_actors(worker);
    s.bulk = install_bulk(worker);
    worker.reactor().post([] { gil_mark_reactor_thread(); });
  };
  auto made =
      ProcessRuntime::make_worker(*bootstrap, std::move(fds), options_for(bootstrap->transport, arena_bytes_max), keep);
  if (!made) raise(made.error());
  const bool is_host = s.runtime->of_machine()->agent() != nullptr;
  auto payload = decode_worker_payload(as_byte_span(bootstrap->payload.data(), bootstrap->payload.size()));
  if (!payload) raise(payload.error());
  nb::object env = nb::none();
  if (payload->env) {
    nb::list variables;
    for (const std::string& variable : *payload->env) variables.append(py_bytes(variable));
    env = variables;
  }
  return nb::make_tuple(py_bytes(payload->of_host), py_bytes(payload->of_order), env, is_host);
}

// Has the interpreter write there for each signal that has a handler in Python, whichever thread gets it. False: the user's
// own code has it write elsewhere.
bool wake_for_signals(int fd) {
  nb::object set_wakeup_fd = nb::module_::import_("_signal").attr("set_wakeup_fd");
  const int previous = nb::cast<int>(set_wakeup_fd(fd, nb::arg("warn_on_full_buffer") = false));
  if (previous != -1) set_wakeup_fd(previous);
  return previous == -1;
}

// False: somebody has closed it.
bool sleep_until_alarm(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  poll(&wanted, 1, -1);
  char bytes[64];
  while (read(fd, bytes, sizeof bytes) > 0) {
  }
  return (wanted.revents & POLLNVAL) == 0;
}

// Waits until this worker is to end; runs the handlers of signals meanwhile.
std::string wait_for_stop() {
  constexpr int64_t kSliceNs = 1'000'000'000;  // how late a signal may be seen if nothing tells of it
  State& s = state();
  const int fd = s.alarm[0].get();
  bool wakes = fd >= 0 && wake_for_signals(s.alarm[1].get());
  for (;;) {
    if (const auto reason = machine("a worker").wait_for_stop(0)) return *reason;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    release_kept_buffers();
    GilRelease release;
    if (wakes) {
      wakes = sleep_until_alarm(fd);
    } else {
      s.runtime->of_machine()->wait_for_stop(kSliceNs);
    }
  }
}

// `order`: LaunchOrder, `defaults`: LaunchDefaults (host/start/launch.h), as encode_native() makes them. No defaults: in a
// simulation.
std::vector<NodeId> spawn_procs(nb::bytes order, std::optional<nb::bytes> defaults) {
  auto wanted = decode_launch_order(as_byte_span(order.c_str(), order.size()));
  if (!wanted) raise(wanted.error());
  LaunchDefaults of_here;
  if (defaults) {
    auto decoded = decode_launch_defaults(as_byte_span(defaults->c_str(), defaults->size()));
    if (!decoded) raise(decoded.error());
    of_here = std::move(*decoded);
  }
  simulated_step();
  runtime();
  if (!require_descriptors()) throw nb::python_error();
  auto spawned = [&] {
    GilRelease release;
    return with_host([&](AnyRuntime& process) { return process.spawn(*wanted, of_here); });
  }();
  if (!spawned) raise(spawned.error());
  return *spawned;
}

// Who is there now in their places.
std::vector<NodeId> latest(std::vector<NodeId> nodes) {
  for (NodeId& node : nodes) node = runtime().node().successions().latest(node);
  return nodes;
}

// A future that something on this side completes.
nb::object stop_procs(const std::vector<NodeId>& nodes, const std::string& reason, double grace_seconds) {
  if (!require_descriptors()) throw nb::python_error();
  auto call = new_own_call(runtime());
  Driver& driver = runtime().driver();
  with_host([&](AnyRuntime& process) {
    const auto grace_ns = static_cast<int64_t>(grace_seconds * 1e9);
    process.stop(latest(nodes), reason, grace_ns, [call, &driver] { complete(*call, driver); });
  });
  PyObject* future = new_future(std::move(call), FutureMode::kNothing, 0, Py_None);
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

// How the lines of these processes are shown; the future completes when all that they had printed before is out.
nb::object set_output(const std::vector<NodeId>& nodes, bool long_prefix, double window_seconds, bool drop) {
  auto call = new_own_call(runtime());
  Driver& driver = runtime().driver();
  const OutputOptions options{long_prefix, static_cast<int64_t>(window_seconds * 1e9), drop};
  auto sent = [&] {
    GilRelease release;
    return with_host([&](AnyRuntime& process) -> Status {
      if (process.of_machine() == nullptr) {  // a simulated process prints as the script does
        complete(*call, driver);
        return Ok{};
      }
      Host& host = process.of_machine()->host();
      return host.set_output(latest(nodes), options, [call, &driver] { complete(*call, driver); });
    });
  }();
  if (!sent) raise(sent.error());
  PyObject* future = new_future(std::move(call), FutureMode::kNothing, 0, Py_None);
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

nb::object completed_future(nb::object outcome, bool failed) {
  runtime();  // futures are there once it is
  PyObject* future = new_completed_future(outcome.ptr(), failed);
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

// ---- Handles that leave their job ----

// How long a job's script may take to answer.
constexpr int64_t kScriptAnswerLimitNs = 10'000'000'000;

// Waits for what a job's script answers; it does so whatever it is doing, but not while it is stopped.
void wait_for_script(PendingCall& call) {
  auto ready = [](const void* context) { return static_cast<const PendingCall*>(context)->complete(); };
  switch (wait_for(ready, &call, clock_ns() + kScriptAnswerLimitNs, &call, call.size())) {
    case 1:
      return;
    case 0:
      throw std::runtime_error("the script of the job that this handle belongs to does not answer: is it stopped?");
    default:
      throw nb::python_error();
  }
}

// The address of this process's job, once its token lies where others find it.
std::string publish_job() {
  ProcessRuntime& running = machine("handles cannot leave a simulation");
  if (!running.is_published()) {
    const auto call = running.publish();
    wait_for_script(*call);
    const std::string why = running.why_not_published(*call);
    if (!why.empty()) throw std::runtime_error("this handle cannot be used outside of its job: " + why);
  }
  return running.job_address();
}

void introduce(const std::string& job, const std::vector<NodeId>& nodes) {
  auto call = [&, &running = machine("handles of other programs cannot be used")] {
    GilRelease release;  // it may read a file
    return running.introduce(job, nodes);
  }();
  if (!call) raise(call.error());
  if (*call == nullptr) return;
  wait_for_script(**call);
  machine("other programs").note_answer(**call, nodes);
}

// The end of a script (`at_exit`), or of the client before it: its own actors, then its processes, each get
// `grace_seconds`.
void shutdown(double grace_seconds, bool at_exit) {
  State& s = state();
  if (!s.runtime || s.simulated != nullptr || in_forked_child() || s.worker) return;
  if (!has_descriptors()) s.finalizing = true;
  if (s.lost) return;
  const auto grace_ns = static_cast<int64_t>(grace_seconds * 1e9);
  constexpr std::chrono::seconds kOtherMax(1);  // a shutdown of the client that the script has not waited for
  static std::timed_mutex one_at_a_time;
  GilRelease release;
  std::unique_lock lock(one_at_a_time, kOtherMax);
  if (!s.finalizing) python_factory().stop_all(grace_ns, "the script ended");
  if (at_exit) gil_keep_for_this_thread();
  if (s.finalizing.exchange(true)) return;
  leave_quit_signal();
  { std::unique_lock no_user(host_users); }
  const bool native_ended = s.native_actors->stop(grace_ns);
  s.bulk->stop();
  s.runtime->of_machine()->shutdown(grace_ns, [&s] {
    if (s.interrupts_ignored) signal(SIGINT, SIG_DFL);  // there is nothing left to clean up
  });
  if (s.interrupts_ignored) signal(SIGINT, SIG_IGN);
  // Not before: until the links are closed, others may spawn actors here.
  native_ended ? s.native_actors.reset() : void(s.native_actors.release());  // one is busy: it ends with the process
}

// Drops the Python objects that configure() took, at the end of a script; not while actors of this process may need
// them.
void forget_hooks() {
  State& s = state();
  if (!s.finalizing || python_factory().has_actors()) return;
  forget_dropped();
  forget_one_way();
  drop_hooks(s);
}

// A worker's last words to its actors, and to the processes that they have started.
void stop_worker(double limit_seconds, const std::string& reason) {
  GilRelease release;
  const auto limit_ns = static_cast<int64_t>(limit_seconds * 1e9);
  python_factory().stop_all(limit_ns, reason);
  state().runtime->stop_children(reason, limit_ns);
  state().runtime->report_rest();
  std::fflush(stdout);  // what C code has printed; this process ends without exit()
  flush_log();
}

// Ctrl-C has done its work when the script is on its way out: another one would only interrupt the cleaning up. Runs no
// Python code, so nothing can be raised in between. Not if the user has a handler of their own. shutdown() ends it while it
// waits for who reads the output, and wait_for_unseen() waits no longer.
void ignore_interrupts() {
  nb::module_ signals = nb::module_::import_("_signal");
  if (!signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"))) return;
  if (PyErr_CheckSignals() != 0) {
    PyErr_Clear();
    state().interrupted = true;
  }
  signals.attr("signal")(SIGINT, signals.attr("SIG_IGN"));
  state().interrupts_ignored = true;
  signal(SIGINT, [](int) { state().interrupted = true; });
}

}  // namespace

void bind_runtime(nb::module_& m) {
  if (!add_codec_types(m.ptr()) || !add_future_types(m.ptr()) || !add_mesh_types(m.ptr()) ||
      !add_actor_types(m.ptr()) || !add_port_types(m.ptr()) || !add_supervision(m.ptr()) || !add_restarts(m.ptr()) ||
      !add_simulation(m.ptr())) {
    throw nb::python_error();
  }
  m.def("configure", &configure);
  m.def("start_root", &start_root);
  m.def("start_worker", &start_worker);
  m.def("enter_launch_door", &enter_launch_door_here);
  m.def("wait_for_stop", &wait_for_stop);
  // Without a look at signals. None: nobody has asked within so many seconds.
  m.def("stop_reason", [](double seconds) {
    ProcessRuntime& here = machine("a worker");
    GilRelease release;
    return here.wait_for_stop(static_cast<int64_t>(seconds * 1e9));
  });
  // `defaults`: LaunchDefaults, of which it takes the command and the environment.
  m.def("start_fork_server", [](nb::bytes defaults) {
    auto of_here = decode_launch_defaults(as_byte_span(defaults.c_str(), defaults.size()));
    if (!of_here) raise(of_here.error());
    machine("fork server");
    with_host([&](AnyRuntime& process) {
      process.of_machine()->host().start_fork_server(of_here->fork_server, of_here->env);
    });
  });
  m.def("spawn_procs", &spawn_procs, nb::arg("order"), nb::arg("defaults").none() = nb::none());
  m.def("stop_procs", &stop_procs);
  m.def("completed_future", &completed_future, nb::arg("outcome").none(), nb::arg("failed") = false);
  // Bytes; for a runtime that is there.
  m.def("set_frame_max", [](uint64_t bytes) { runtime().node().set_message_bytes_max(bytes); });
  // Seconds; of actors that are to stop.
  m.def("set_watch_limits", [](double lease_seconds, double watchdog_seconds) {
    if (state().simulated != nullptr) return;
    CallWatch& watch = machine("watch").call_watch();
    watch.set_lease(static_cast<int64_t>(std::min(lease_seconds, 1e9) * 1e9));
    watch.set_watchdog(static_cast<int64_t>(std::min(watchdog_seconds, 1e9) * 1e9));
  });
  m.def("host_of", [](NodeId node) { return runtime().host_of(runtime().node().successions().latest(node)); });
  m.def("is_halted", [](NodeId node) {
    ProcessRuntime* here = runtime().of_machine();
    const NodeId now = runtime().node().successions().latest(node);
    return here != nullptr && here->call_watch().halt_of(now) != Halt::kNone;
  });
  m.def("set_stop_limit", [](double seconds) { set_stop_limit(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)); });
  m.def("set_output", &set_output);
  m.def("shutdown", &shutdown);
  // -> (names of its classes, hash of what is in it)
  m.def("load_actor_library", [](const std::string& path) {
    auto loaded = Libraries::instance().load(path);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return nb::make_tuple(loaded->classes, nb::bytes(loaded->hash.data(), loaded->hash.size()));
  });
  m.def("native_methods", [](const std::string& name) -> std::optional<std::vector<std::string>> {
    const ActorClass* found = ActorRegistry::instance().find(name);
    if (found == nullptr) return std::nullopt;
    std::vector<std::string> names;
    for (const ActorMethod& method : found->methods) names.push_back(method.name);
    return names;
  });
  m.def("use_deadlines", &use_deadlines);
  m.def("forget_hooks", &forget_hooks);
  m.def("stop_worker", &stop_worker);
  m.def("ignore_interrupts", &ignore_interrupts);
  m.def("was_interrupted", [] { return state().interrupted.load(); });
  m.def("hold_actors", hold_actors);
  m.def("release_actors", release_actors);
  m.def("on_actor_thread", on_actor_thread);
  m.def("node_id", [] { return runtime().node().id(); });
  m.def("publish_job", &publish_job);
  m.def("introduce", &introduce);
  m.def("job_address", []() -> std::optional<std::string> {
    if (!state().runtime || state().simulated != nullptr) return std::nullopt;
    return state().runtime->of_machine()->job_address();
  });
  m.def("knows_other_jobs", [] {
    ProcessRuntime* here = state().runtime ? state().runtime->of_machine() : nullptr;
    return here != nullptr && here->knows_other_jobs();
  });
  m.def("machine_id", [] {
    auto id = machine_id();
    if (!id) raise(id.error());
    return *id;
  });
  m.def("job_id", [] {
    const JobId job = machine("the id of a job").job();
    return nb::bytes(reinterpret_cast<const char*>(job.data()), job.size());
  });
  m.def("new_actor_index", [](uint32_t count) { return runtime().node().new_actor_index(count); });
  m.def("down_reason", [](NodeId node) -> std::optional<std::string> {
    const FailurePtr why = runtime().node().why_down(runtime().node().successions().latest(node));
    if (!why) return std::nullopt;
    return why->text();
  });
  // None: it lives, or is not known; (failed, text): it has ended so
  m.def("actor_end", [](ActorIndex index) -> nb::object {
    Node& node = runtime().node();
    if (auto cell = std::dynamic_pointer_cast<PyCell>(node.find_cell(index))) {
      std::string why;
      const auto ended = cell->ended(&why);
      if (ended == PyCell::Ended::kNo) return nb::none();
      return nb::make_tuple(ended == PyCell::Ended::kFailed, why);
    }
    const auto epitaph = node.epitaph(index);
    if (!epitaph) return nb::none();
    return nb::make_tuple(epitaph->kind == Failure::Kind::kActor, epitaph->text());
  });
  // Of a tuple, with whatever large values in it.
  m.def("encode_native", [](nb::tuple values) {
    Encoded encoded;
    std::vector<PyObject*> items;
    for (nb::handle item : values) items.push_back(item.ptr());
    if (!encoded.encode_native_call(items.data(), static_cast<Py_ssize_t>(items.size()))) throw nb::python_error();
    return nb::bytes(reinterpret_cast<const char*>(encoded.body().data()), encoded.body().size());
  });
  m.def("has_runtime", [] { return state().runtime != nullptr && !in_forked_child() && !state().finalizing; });
  m.def("in_forked_child", &in_forked_child);
  m.def("begin_lines_with_times", &begin_lines_with_times);
  m.def("log_line", [](const nb::str& line) {
    log_line(utf8_of(line.ptr()));
    if (state().simulated != nullptr) flush_log();
  });
  m.def("gil_taken_by_reactor", &gil_taken_by_reactor);
  m.def("fail_nth_system_call", &sys::fail_nth);  // for tests
  m.def("system_calls_seen", &sys::calls_seen);

  nb::class_<ForkServer>(m, "ForkServer")
      .def("__init__",
           [](ForkServer* made, int socket) {
             static SystemClock clock;
             new (made) ForkServer(socket, clock);
             Contact::prepare_for_children();
           })
      .def("next",
           [](ForkServer& server) -> nb::object {
             auto request = server.next();
             if (!request) return nb::none();
             std::vector<int> fds;
             for (UniqueFd& fd : request->fds) fds.push_back(fd.release());
             return nb::make_tuple(request->node, nb::cast(fds));
           })
      .def("has_request", &ForkServer::has_request)
      .def("reap", &ForkServer::reap)
      .def("ready", &ForkServer::report_ready)
      .def("spawned", &ForkServer::report_spawned)
      .def("failed", &ForkServer::report_failed);
}

}  // namespace monarch
