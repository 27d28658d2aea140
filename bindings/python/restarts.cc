#include "restarts.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gil.h"
#include "monarch/base/log.h"
#include "simulation.h"
#include "state.h"
#include "supervision.h"

namespace monarch {

namespace {

using SpawnRecord = std::shared_ptr<const Message>;  // shared: with a restart under way

PyTypeObject* spawn_record_type = nullptr;
PyTypeObject* undecided_type = nullptr;

using Batch = std::vector<MeshFailure>;  // that have failed together: of one process, or one actor
// Never destroyed: a thread waits in it when the process ends.
struct Wanted {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Batch> batches;
  bool has_thread = false;
};
Wanted& wanted() {
  if (State& s = state(); s.simulated != nullptr) {
    if (!s.restart_watch) s.restart_watch = std::make_shared<Wanted>();
    return *static_cast<Wanted*>(s.restart_watch.get());
  }
  static Wanted& the_wanted = *new Wanted;
  return the_wanted;
}

void decide_all(Batch& batch) {
  if (state().finalizing || in_forked_child()) return;
  for (MeshFailure& failure : batch) state().runtime->node().decide(std::move(failure));
}

void* run_restarts(void*) {
  GilThread gil;
  HoldIfUnwound guard;
  Ref watched = Ref::steal(PyObject_CallNoArgs(state().watch_restarts.get()));
  guard.returned();
  if (!watched) PyErr_WriteUnraisable(nullptr);
  std::deque<Batch> left;
  {
    std::lock_guard lock(wanted().mutex);
    wanted().has_thread = false;  // the next failure has another one
    left.swap(wanted().batches);
  }
  for (Batch& batch : left) decide_all(batch);
  return nullptr;
}

// next_restarts() -> [(Undecided, mesh id, what a MeshFailure is made of)], of what has failed together; waits for it
PyObject* next_restarts(PyObject*, PyObject*) {
  Batch batch;
  {
    GilRelease release;
    const auto there = [](const void* of) { return !static_cast<const Wanted*>(of)->batches.empty(); };
    if (state().simulated != nullptr) simulated_wait(there, &wanted(), kNoDeadline);
    std::unique_lock lock(wanted().mutex);
    if (state().simulated == nullptr) wanted().arrived.wait(lock, [] { return !wanted().batches.empty(); });
    if (!wanted().batches.empty()) {
      batch = std::move(wanted().batches.front());
      wanted().batches.pop_front();
    }
  }
  if (state().simulated != nullptr && !check_simulation()) return nullptr;
  Ref list = Ref::steal(PyList_New(0));
  for (MeshFailure& failure : batch) {
    Ref told = Ref::steal(describe_failure(failure));
    const unsigned long long mesh = failure.mesh_id;
    Ref undecided = Ref::steal(box<MeshFailure>(undecided_type, std::move(failure)));
    Ref entry = Ref::steal(told && undecided ? Py_BuildValue("(OKO)", undecided.get(), mesh, told.get()) : nullptr);
    if (!list || !entry || PyList_Append(list.get(), entry.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* latest(PyObject*, PyObject* nodes);

// decide(Undecided, history): its owner decides, who is told of that too
PyObject* decide(PyObject*, PyObject* args) {
  PyObject *undecided, *history;
  if (!PyArg_ParseTuple(args, "O!U", undecided_type, &undecided, &history)) return nullptr;
  MeshFailure failure = unbox<MeshFailure>(undecided);
  failure.history = utf8_of(history);
  if (!state().finalizing && !in_forked_child()) state().runtime->node().decide(std::move(failure));
  Py_RETURN_NONE;
}

bool take_ranks(PyObject* list, std::vector<uint32_t>* ranks) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of ranks");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    ranks->push_back(static_cast<uint32_t>(PyLong_AsUnsignedLong(PyList_GET_ITEM(list, i))));
  }
  return !PyErr_Occurred();
}

// restart([(ended node, next node)], id of the mesh of processes or 0, their ranks, [(mesh id, SpawnRecord, actors of a
// swarm in each process or 0, ranks that have ended, ranks that were stopped for it)])
PyObject* restart(PyObject*, PyObject* args) {
  AnyRuntime* runtime = require_runtime();
  PyObject *processes, *proc_ranks, *actors;
  unsigned long long procs;
  if (runtime == nullptr || !PyArg_ParseTuple(args, "O!KO!O!", &PyList_Type, &processes, &procs, &PyList_Type, &proc_ranks,
                                              &PyList_Type, &actors)) {
    return nullptr;
  }
  Node::Restart order;
  order.procs = procs;
  if (!take_ranks(proc_ranks, &order.proc_ranks)) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(processes); ++i) {
    unsigned long long ended, next;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(processes, i), "KK", &ended, &next)) return nullptr;
    order.processes.emplace_back(ended, next);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(actors); ++i) {
    Node::Restart::Actors each;
    unsigned long long mesh;
    PyObject *record, *ranks, *stopped;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(actors, i), "KO!IOO", &mesh, spawn_record_type, &record, &each.per_process,
                          &ranks, &stopped) ||
        !take_ranks(ranks, &each.ranks) || !take_ranks(stopped, &each.stopped)) {
      return nullptr;
    }
    each.mesh = mesh;
    each.spawn = unbox<SpawnRecord>(record);
    order.actors.push_back(std::move(each));
  }
  const Status done = [&] {
    GilRelease release;
    return runtime->node().restart(order);
  }();
  if (!done) return PyErr_Format(PyExc_RuntimeError, "%s", done.error().message.c_str());
  Py_RETURN_NONE;
}

PyObject* list_of_ranks(const std::vector<uint32_t>& ranks) {
  Ref list = Ref::steal(PyList_New(0));
  for (const uint32_t rank : ranks) {
    Ref number = Ref::steal(PyLong_FromUnsignedLong(rank));
    if (!list || !number || PyList_Append(list.get(), number.get()) != 0) return nullptr;
  }
  return list.release();
}

// ended_ranks(mesh id) -> [rank] or None: it is not known (any more)
PyObject* ended_ranks(PyObject*, PyObject* id) {
  const Supervisor::MeshId number = PyLong_AsUnsignedLongLong(id);
  if (PyErr_Occurred()) return nullptr;
  if (!state().runtime || in_forked_child()) Py_RETURN_NONE;
  const auto ended = [number] {
    GilRelease release;
    return state().runtime->node().ended_ranks(number);
  }();
  if (!ended) Py_RETURN_NONE;
  return list_of_ranks(*ended);
}

// is_owned(mesh id) -> bool: ended_ranks() would say something of it
PyObject* is_owned(PyObject*, PyObject* id) {
  const Supervisor::MeshId number = PyLong_AsUnsignedLongLong(id);
  if (PyErr_Occurred()) return nullptr;
  if (!state().runtime || in_forked_child()) Py_RETURN_FALSE;
  return PyBool_FromLong(state().runtime->node().supervisor().members(number) != nullptr);
}

// fallen_ranks(mesh id) -> [rank]: those that lived until their process ended
PyObject* fallen_ranks(PyObject*, PyObject* id) {
  const Supervisor::MeshId number = PyLong_AsUnsignedLongLong(id);
  if (PyErr_Occurred()) return nullptr;
  if (!state().runtime || in_forked_child()) return list_of_ranks({});
  return list_of_ranks(state().runtime->node().supervisor().fallen(number));
}

// note_stopping([node]): they, or who is there in their places, are asked to end
PyObject* note_stopping(PyObject*, PyObject* nodes) {
  if (!state().runtime || state().finalizing || in_forked_child()) Py_RETURN_NONE;
  Ref now = Ref::steal(latest(nullptr, nodes));
  std::vector<NodeId> asked;
  for (Py_ssize_t i = 0; now && i < PyList_GET_SIZE(now.get()); ++i) {
    const NodeId node = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(now.get(), i));
    if (!state().runtime->node().is_down(node)) asked.push_back(node);
  }
  if (!now || PyErr_Occurred()) return nullptr;
  state().runtime->node().supervisor().note_stopping(asked);
  Py_RETURN_NONE;
}

// is_current(mesh id, rank, when that was made) -> bool: it has not been made anew since it failed
PyObject* is_current(PyObject*, PyObject* args) {
  unsigned long long id;
  unsigned int rank;
  long long made_ns;
  if (!PyArg_ParseTuple(args, "KIL", &id, &rank, &made_ns)) return nullptr;
  if (!state().runtime || state().finalizing || in_forked_child()) Py_RETURN_TRUE;
  MeshFailure failure;
  failure.mesh_id = id;
  failure.rank = rank;
  failure.made_ns = made_ns;
  return PyBool_FromLong(state().runtime->node().supervisor().is_current(failure));
}

// set_restarts(mesh id): it has a restart policy
PyObject* set_restarts(PyObject*, PyObject* id) {
  const Supervisor::MeshId number = PyLong_AsUnsignedLongLong(id);
  if (PyErr_Occurred()) return nullptr;
  if (state().runtime && !in_forked_child()) state().runtime->node().supervisor().set_restarts(number);
  Py_RETURN_NONE;
}

// epoch_of(actor index): how often some of its mesh has been made anew, as far as is known here
PyObject* epoch_of(PyObject*, PyObject* index) {
  const ActorIndex actor = PyLong_AsUnsignedLongLong(index);
  if (PyErr_Occurred()) return nullptr;
  if (!state().runtime || in_forked_child()) return PyLong_FromLong(0);
  return PyLong_FromUnsignedLong(state().runtime->node().successions().epoch_of(actor));
}

// successions_of([node]): how often processes have been started in the place of these
PyObject* successions_of(PyObject*, PyObject* nodes) {
  if (!PyList_Check(nodes)) return PyErr_Format(PyExc_TypeError, "expected a list of nodes");
  unsigned long count = 0;
  if (!state().runtime || in_forked_child()) return PyLong_FromLong(0);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); ++i) {
    const NodeId node = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(nodes, i));
    if (PyErr_Occurred()) return nullptr;
    count += state().runtime->node().successions().count_of(node);
  }
  return PyLong_FromUnsignedLong(count);
}

// latest([node]) -> [node]: who is there now in their places; the same list if they themselves are
PyObject* latest(PyObject*, PyObject* nodes) {
  if (!PyList_Check(nodes)) return PyErr_Format(PyExc_TypeError, "expected a list of nodes");
  if (!state().runtime || in_forked_child() || !state().runtime->node().successions().any()) return Py_NewRef(nodes);
  Ref list = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); ++i) {
    const NodeId node = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(nodes, i));
    if (PyErr_Occurred()) return nullptr;
    Ref now = Ref::steal(PyLong_FromUnsignedLongLong(state().runtime->node().successions().latest(node)));
    if (!list || !now || PyList_Append(list.get(), now.get()) != 0) return nullptr;
  }
  return list.release();
}

}  // namespace

void restart_wanted(std::vector<MeshFailure> failures) {
  if (state().finalizing) return;
  bool start = false;
  {
    std::lock_guard lock(wanted().mutex);
    wanted().batches.push_back(std::move(failures));
    start = !std::exchange(wanted().has_thread, true);
  }
  wanted().arrived.notify_one();
  if (!start) return;
  if (state().simulated != nullptr) {
    return start_simulated_thread(state(), "monarch-restarts", [] {
      Ref watched = Ref::steal(PyObject_CallNoArgs(state().watch_restarts.get()));
      if (!watched && !is_simulation_over()) PyErr_WriteUnraisable(nullptr);
      PyErr_Clear();
    });
  }
  pthread_t thread;
  if (sys::start_thread(&thread, run_restarts, nullptr)) {
    pthread_detach(thread);
    return;
  }
  log_line("nothing is made anew: " + sys::shortage_error("start a thread for it").message);
  std::deque<Batch> left;
  {
    std::lock_guard lock(wanted().mutex);
    wanted().has_thread = false;  // with the next failure
    left.swap(wanted().batches);
  }
  for (Batch& batch : left) decide_all(batch);
}

PyObject* new_spawn_record(const Outgoing& spawn) {
  MessagePtr copy;
  try {
    copy = Message::copy_of(spawn, 0);
  } catch (const std::bad_alloc&) {
    Py_RETURN_NONE;  // it can do without
  }
  return box<SpawnRecord>(spawn_record_type, SpawnRecord(std::move(copy)));
}

bool add_restarts(PyObject* module) {
  static PyType_Slot record_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<SpawnRecord>)}, {0, nullptr}};
  static PyType_Spec record_spec = {"monarch._core.SpawnRecord", sizeof(Boxed<SpawnRecord>), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, record_slots};
  static PyType_Slot undecided_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<MeshFailure>)},
                                          {0, nullptr}};
  static PyType_Spec undecided_spec = {"monarch._core.Undecided", sizeof(Boxed<MeshFailure>), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, undecided_slots};
  spawn_record_type = add_type(module, record_spec);
  undecided_type = add_type(module, undecided_spec);
  static PyMethodDef functions[] = {
      {"next_restarts", next_restarts, METH_NOARGS, nullptr},
      {"decide", decide, METH_VARARGS, nullptr},
      {"restart", restart, METH_VARARGS, nullptr},
      {"ended_ranks", ended_ranks, METH_O, nullptr},
      {"is_owned", is_owned, METH_O, nullptr},
      {"fallen_ranks", fallen_ranks, METH_O, nullptr},
      {"note_stopping", note_stopping, METH_O, nullptr},
      {"is_current", is_current, METH_VARARGS, nullptr},
      {"set_restarts", set_restarts, METH_O, nullptr},
      {"epoch_of", epoch_of, METH_O, nullptr},
      {"latest", latest, METH_O, nullptr},
      {"successions_of", successions_of, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return spawn_record_type != nullptr && undecided_type != nullptr && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace monarch
