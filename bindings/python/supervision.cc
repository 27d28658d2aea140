#include "supervision.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actor_cell.h"
#include "future.h"
#include "gil.h"
#include "mesh_ref.h"
#include "monarch/actor/calls.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/log.h"
#include "simulation.h"
#include "state.h"
#include "unseen.h"

namespace monarch {

namespace {

struct Look {
  std::shared_ptr<const Members> members;
  int64_t when_ns;
  bool at_the_end;
};
struct Watched {
  MeshFailure failure;
  std::shared_ptr<PyCell> owner;  // shared: with whoever runs it; null: the client
};

// Never destroyed: a thread waits in it when the process ends.
struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Watched> arrived;
  bool looks_changed = false;  // somebody has looked at a future, or will not any more
  bool has_thread = false;
  bool holds = false;  // failures wait for somebody to look
  bool default_decides = false;  // the script has no hook of its own, and nobody sits at a prompt
  uint64_t asks = 0;             // how often who decides has asked for the GIL
  bool asks_now = false;
  std::vector<std::pair<NodeId, ActorIndex>> undecided;  // of the client's: nobody has dealt with them, or said them, yet
  std::string origin;              // of the first of those
  std::vector<std::string> later;  // lines about what came of those
  std::deque<Look> looks;          // GIL; oldest first
};
Watch& watch() {
  if (State& s = state(); s.simulated != nullptr) {
    if (!s.failure_watch) s.failure_watch = std::make_shared<Watch>();
    return *static_cast<Watch*>(s.failure_watch.get());
  }
  static Watch& the_watch = *new Watch;
  return the_watch;
}

std::atomic<int> exit_status{0};  // of a program that a failure has stopped; 0: none has

// Who is told that a call has failed need not be told of what else of that mesh fails at the same time.
constexpr int64_t kSameTimeNs = 1'000'000'000;
constexpr size_t kLooksMax = 1024;

// ---- C code that holds the GIL ----

// So often it is looked whether it still does: a process that was stopped meanwhile has not waited all that time.
constexpr int64_t kUnheardNs = 200'000'000;
constexpr int kUnheardSaid = 5;   // so many looks later the cause is said
constexpr int kUnheardMax = 14;   // then a program that nobody can save ends: _PATIENCE and kLeaveLimitNs

// Whether what is to be decided in Python can only end the program: no call is left that somebody may look at yet.
bool only_ends() { return watch().default_decides && exit_status == 0 && !Unseen::any() && !state().worker; }

void look_whether_heard(uint64_t ask, int looks) {
  if (state().finalizing || in_forked_child()) return;
  std::unique_lock lock(watch().mutex);
  if (!watch().asks_now || watch().asks != ask || watch().undecided.empty()) return;
  const bool ends = only_ends();
  const std::string text = watch().origin + "\nC code of this program holds the GIL; ";
  lock.unlock();
  if (looks == kUnheardSaid && !ends) return log_line(text + "when it comes back, the program is told");
  if (looks >= kUnheardMax && ends) {
    log_line(text + "the program ends with status 1");
    flush_log();
    _exit(1);
  }
  state().runtime->timers().after(kUnheardNs, [=] { look_whether_heard(ask, looks + 1); });
}

// Around each time that the thread which decides asks for the GIL.
void ask_for_gil() {
  if (state().simulated != nullptr || state().finalizing) return;
  uint64_t ask;
  {
    std::lock_guard lock(watch().mutex);
    ask = ++watch().asks;
    watch().asks_now = true;
    if (watch().undecided.empty()) return;
  }
  state().runtime->timers().after(kUnheardNs, [ask] { look_whether_heard(ask, 1); });
}

void has_gil() {
  std::lock_guard lock(watch().mutex);
  watch().asks_now = false;
}

void* run_watch(void*) {
  ask_for_gil();
  GilThread gil;
  has_gil();
  HoldIfUnwound guard;
  Ref watched = Ref::steal(PyObject_CallNoArgs(state().watch_failures.get()));
  guard.returned();
  if (!watched) PyErr_WriteUnraisable(nullptr);
  std::lock_guard lock(watch().mutex);
  watch().has_thread = false;  // the next failure has another one
  return nullptr;
}

// Where no thread is to be had, one is there later.
void start_watch(bool again) {
  constexpr int64_t kAgainNs = 100'000'000;
  if (state().finalizing) return;
  if (state().simulated != nullptr) {
    return start_simulated_thread(state(), "monarch-failures", [] {
      Ref watched = Ref::steal(PyObject_CallNoArgs(state().watch_failures.get()));
      if (!watched && !is_simulation_over()) PyErr_WriteUnraisable(nullptr);
      PyErr_Clear();
    });
  }
  pthread_t thread;
  if (sys::start_thread(&thread, run_watch, nullptr)) {
    pthread_detach(thread);
    return;
  }
  if (!again) log_line("a failure waits: " + sys::shortage_error("start a thread that deals with it").message);
  state().runtime->timers().after(kAgainNs, [] { start_watch(/*again=*/true); });
}

void look_again() {
  {
    std::lock_guard lock(watch().mutex);
    if (!watch().holds) return;
    watch().looks_changed = true;
  }
  watch().changed.notify_one();
}

bool is_of(const ActorId& id, NodeId node, ActorIndex actor) {
  return id.node == node && (actor == 0 || id.index == actor);
}

bool has_member(const Members& members, NodeId node, ActorIndex actor) {
  for (const ActorId& id : members.ids) {
    if (is_of(id, node, actor)) return true;
  }
  return false;
}

// Whether who looks at this call will see the failure: no answer has come from there before.
bool will_tell(const PendingCall& call, NodeId node, ActorIndex actor) {
  const auto& ids = call.owing().ids;
  for (uint32_t rank = 0; rank < call.size(); ++rank) {
    if (!is_of(ids[rank], node, actor)) continue;
    const Message* answer = call.reply(rank);
    if (answer == nullptr || answer->header.kind == FrameKind::kReplyFailed) return true;
  }
  return false;
}

// is_told(node, actor, made_ns, at_the_end=False) -> bool: somebody has just seen the failure of that actor (0: of that
// process), which was made then, as an exception; or, at the end of a script, has named the call that raises it
PyObject* is_told(PyObject*, PyObject* args) {
  unsigned long long node, actor;
  long long made_ns;
  int at_the_end = 0;
  if (!PyArg_ParseTuple(args, "KKL|p", &node, &actor, &made_ns, &at_the_end)) return nullptr;
  const int64_t since_ns = std::max<int64_t>(clock_ns() - kSameTimeNs, made_ns);
  for (const Look& look : watch().looks) {
    if (look.at_the_end && at_the_end == 0) continue;
    if (look.when_ns >= since_ns && has_member(*look.members, node, actor)) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

// will_be_told(node, actor) -> bool: there is a future that has not been looked at, and would raise it
PyObject* will_be_told(PyObject*, PyObject* args) {
  unsigned long long node, actor;
  if (!PyArg_ParseTuple(args, "KK", &node, &actor)) return nullptr;
  return PyBool_FromLong(any_unseen_call([&](const PendingCall& call) { return will_tell(call, node, actor); }));
}

// wait_for_failures(holds: bool, seconds): waits, without the GIL, so long (None: without end) until something has failed,
// or, if failures are held back, until somebody has looked at a future, or dropped it
PyObject* wait_for_failures(PyObject*, PyObject* args) {
  int holds;
  PyObject* limit;
  if (!PyArg_ParseTuple(args, "pO", &holds, &limit)) return nullptr;
  const double seconds = limit == Py_None ? -1 : PyFloat_AsDouble(limit);
  if (PyErr_Occurred()) return nullptr;
  {
    GilRelease release;
    std::unique_lock lock(watch().mutex);
    watch().holds = holds != 0;
    const auto changed = [] { return !watch().arrived.empty() || watch().looks_changed; };
    if (state().simulated != nullptr) {
      lock.unlock();
      const auto ready = [](const void* of) {
        const auto& its = *static_cast<const Watch*>(of);
        return !its.arrived.empty() || its.looks_changed;
      };
      simulated_wait(ready, &watch(), seconds < 0 ? kNoDeadline : clock_ns() + static_cast<int64_t>(seconds * 1e9));
      lock.lock();
    } else if (seconds < 0) {
      watch().changed.wait(lock, changed);
    } else {
      watch().changed.wait_for(lock, std::chrono::duration<double>(seconds), changed);
    }
    watch().looks_changed = false;
    lock.unlock();
    ask_for_gil();
  }
  has_gil();
  Py_RETURN_NONE;
}

// take_failures() -> [(cell or None, failure)] that have arrived
PyObject* take_failures(PyObject*, PyObject*) {
  std::vector<Watched> arrived;
  {
    std::lock_guard lock(watch().mutex);
    arrived.swap(watch().arrived);
  }
  if (state().simulated != nullptr && !check_simulation()) return nullptr;
  Ref list = Ref::steal(PyList_New(0));
  for (Watched& each : arrived) {
    if (!state().finalizing && !state().runtime->node().supervisor().is_current(each.failure)) {
      state().runtime->note_observed(each.failure.why->node);  // somebody has made it anew, and need not be told
      continue;
    }
    Ref owner = each.owner ? Ref::steal(new_cell_object(std::move(each.owner))) : Ref::borrow(Py_None);
    Ref entry = Ref::steal(Py_BuildValue("(ON)", owner.get(), describe_failure(each.failure)));
    if (!list || !entry || PyList_Append(list.get(), entry.get()) != 0) return nullptr;
  }
  return list.release();
}

// default_decides(yes): whether a failure that no call tells ends the program, whatever else is in it
PyObject* default_decides(PyObject*, PyObject* yes) {
  std::lock_guard lock(watch().mutex);
  watch().default_decides = yes == Py_True;
  Py_RETURN_NONE;
}

// failures_decided(say): all failures of the client that take_failures() has told are dealt with. What came of them is
// said now; or never, if they have been reported
PyObject* failures_decided(PyObject*, PyObject* say) {
  std::vector<std::string> lines;
  {
    std::lock_guard lock(watch().mutex);
    watch().undecided.clear();
    for (const Watched& each : watch().arrived) {
      if (!each.owner) watch().undecided.emplace_back(each.failure.why->node, each.failure.why->actor);
    }
    lines.swap(watch().later);
  }
  if (say != Py_True) Py_RETURN_NONE;
  for (const std::string& line : lines) log_line(line);
  Py_RETURN_NONE;
}

bool take_text(PyObject* text, std::string* into) {
  Py_ssize_t size;
  const char* bytes = PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes == nullptr) return false;
  into->assign(bytes, static_cast<size_t>(size));
  return true;
}

// own(name, class name, creator, labels, sizes, MeshRef or [nodes]) -> int: what the actor that runs (or the client) has
// spawned, actors or processes: it is told of their failures
PyObject* own(PyObject*, PyObject* args) {
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  OwnedMesh mesh;
  PyObject *name, *class_name, *creator, *labels, *extents, *members;
  if (!PyArg_ParseTuple(args, "UUUO!O!O", &name, &class_name, &creator, &PyTuple_Type, &labels, &PyTuple_Type, &extents,
                        &members)) {
    return nullptr;
  }
  if (!take_text(name, &mesh.name) || !take_text(class_name, &mesh.class_name) || !take_text(creator, &mesh.creator)) {
    return nullptr;
  }
  mesh.labels.resize(static_cast<size_t>(PyTuple_GET_SIZE(labels)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(labels); ++i) {
    if (!take_text(PyTuple_GET_ITEM(labels, i), &mesh.labels[static_cast<size_t>(i)])) return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(extents); ++i) {
    mesh.sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(extents, i)));
  }
  if (PyList_CheckExact(members)) {
    mesh.is_procs = true;
    auto nodes = std::make_shared<Members>();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(members); ++i) {
      nodes->ids.push_back({PyLong_AsUnsignedLongLong(PyList_GET_ITEM(members, i)), 0});
    }
    mesh.members = std::move(nodes);
  } else {
    mesh.members = members_of(members);
  }
  if (PyErr_Occurred()) return nullptr;
  mesh.owner = actor_of_context();
  return PyLong_FromUnsignedLongLong(runtime->node().own(std::move(mesh)));
}

// disown(id)
PyObject* disown(PyObject*, PyObject* id) {
  const Supervisor::MeshId number = PyLong_AsUnsignedLongLong(id);
  if (PyErr_Occurred()) return nullptr;
  if (state().runtime && !in_forked_child()) state().runtime->node().supervisor().remove(number);
  Py_RETURN_NONE;
}

// note_handled(node): somebody has dealt with the end of that process, which need not be said on stderr
PyObject* note_handled(PyObject*, PyObject* node) {
  const NodeId number = PyLong_AsUnsignedLongLong(node);
  if (PyErr_Occurred()) return nullptr;
  if (!state().finalizing && !in_forked_child()) state().runtime->note_observed(number);
  Py_RETURN_NONE;
}

// ---- The end of a program that nobody has saved ----

std::atomic<bool> has_left{false};  // its main thread has come back from whatever it was in
pid_t failing_process = 0;

constexpr int64_t kLeaveLimitNs = 2'000'000'000;
// A signal that comes between Python's look for one and the system call that it then sleeps in is not seen there.
constexpr int64_t kWakeAgainNs = 50'000'000;

void wake_again(pthread_t thread, int signal) {
  state().runtime->timers().after(kWakeAgainNs, [thread, signal] {
    if (has_left) return;
    pthread_kill(thread, signal);
    wake_again(thread, signal);
  });
}

// Whatever becomes of the exception on its way out, the status says that the program has failed.
void insist_on_status(int status, void*) {
  if (status != 0 || exit_status == 0 || getpid() != failing_process) return;
  fflush(nullptr);
  _exit(exit_status);
}

// program_fails(status, thread=0, signal=0): the process ends with that status. Until main_thread_left() is called it has
// so long, in which the main thread is woken by the signal, if there is one.
PyObject* program_fails(PyObject*, PyObject* args) {
  int status, signal = 0;
  unsigned long thread = 0;
  if (!PyArg_ParseTuple(args, "i|ki", &status, &thread, &signal)) return nullptr;
  if (exit_status.exchange(status == 0 ? 1 : status) == 0) {
    failing_process = getpid();
    on_exit(insist_on_status, nullptr);
    if (AnyRuntime* runtime = require_runtime()) {
      runtime->timers().after(kLeaveLimitNs, [] {
        if (has_left) return;
        flush_log();
        _exit(exit_status);
      });
      if (signal != 0) wake_again(thread, signal);
    }
    PyErr_Clear();
  }
  if (signal != 0) pthread_kill(thread, signal);
  Py_RETURN_NONE;
}

// main_thread_left(): whether that is new
PyObject* main_thread_left(PyObject*, PyObject*) { return PyBool_FromLong(!has_left.exchange(true)); }

}  // namespace

void watch_failure(MeshFailure failure, std::shared_ptr<PyCell> owner) {
  if (state().finalizing) return;
  bool start = false;
  {
    std::lock_guard lock(watch().mutex);
    if (!owner && watch().undecided.empty()) watch().origin = failure.origin();
    if (!owner) watch().undecided.emplace_back(failure.why->node, failure.why->actor);
    watch().arrived.push_back({std::move(failure), std::move(owner)});
    start = !std::exchange(watch().has_thread, true);
  }
  watch().changed.notify_one();
  if (start) start_watch(/*again=*/false);
}

void say_undeliverable(const ActorId& dest, const Failure& why) {
  const std::string text = why.headline();
  static constexpr char kWhat[] = "a message could not be delivered";
  std::string line = kWhat + (": " + text.substr(0, text.find('\n')));
  {
    std::lock_guard lock(watch().mutex);
    for (const auto& [node, actor] : watch().undecided) {
      if (is_of(dest, node, actor)) return watch().later.push_back(std::move(line));
    }
  }
  log_line_limited(kWhat, line);  // one for each actor, of which there may be thousands
}

PyObject* describe_failure(const MeshFailure& failure) {
  const std::vector<int64_t> place = failure.coordinates();
  Ref coordinates = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(place.size())));
  if (!coordinates) return nullptr;
  for (size_t i = 0; i < place.size(); ++i) {
    PyTuple_SET_ITEM(coordinates.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(place[i]));
  }
  return Py_BuildValue("(NIONNNNNKKNKL)", py_string(failure.mesh->name), failure.rank, coordinates.get(),
                       py_string(failure.who()), py_string(failure.report()), py_string(failure.why->text()),
                       py_string(failure.origin()), PyBool_FromLong(failure.mesh->is_procs),
                       static_cast<unsigned long long>(failure.why->node),
                       static_cast<unsigned long long>(failure.why->actor), describe_record(*failure.why).release(),
                       static_cast<unsigned long long>(failure.mesh_id), static_cast<long long>(failure.made_ns));
}

void note_told(const PendingCall& call, bool at_the_end) {
  const int64_t now_ns = clock_ns();
  std::deque<Look>& looks = watch().looks;
  while (!looks.empty() && (looks.front().when_ns < now_ns - kSameTimeNs || looks.size() >= kLooksMax)) looks.pop_front();
  looks.push_back({call.shared_owing(), now_ns, at_the_end});
  look_again();
}

void note_unlooked() { look_again(); }

bool add_supervision(PyObject* module) {
  static PyMethodDef functions[] = {
      {"is_told", is_told, METH_VARARGS, nullptr},
      {"will_be_told", will_be_told, METH_VARARGS, nullptr},
      {"wait_for_failures", wait_for_failures, METH_VARARGS, nullptr},
      {"take_failures", take_failures, METH_NOARGS, nullptr},
      {"default_decides", default_decides, METH_O, nullptr},
      {"failures_decided", failures_decided, METH_O, nullptr},
      {"own", own, METH_VARARGS, nullptr},
      {"disown", disown, METH_O, nullptr},
      {"note_handled", note_handled, METH_O, nullptr},
      {"program_fails", program_fails, METH_VARARGS, nullptr},
      {"main_thread_left", main_thread_left, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace monarch
