#include "future.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "codec.h"
#include "deadline.h"
#include "gil.h"
#include "monarch/actor/port.h"
#include "state.h"
#include "swarm.h"

namespace monarch {

namespace {

// One sleep of the main thread: bounds how long a signal that comes between the check for it and the sleep goes unseen.
constexpr int64_t kMainThreadSleepNs = 100'000'000;

// What a thread waits for, apart from the future: another thread may look at the outcome and drop the call meanwhile.
struct Awaited {
  std::shared_ptr<PendingCall> call;
  uint32_t arrivals;  // 0: until the call is decided

  bool there() const { return arrivals == 0 ? call->decided() : call->received() >= arrivals; }
  static bool ready(const void* self) { return static_cast<const Awaited*>(self)->there(); }
};

struct FutureState {
  std::shared_ptr<PendingCall> call;  // null once the outcome is there; of a port also while nobody waits

  FutureMode mode;
  uint32_t arrival;
  Ref endpoint;
  Ref outcome;  // once somebody has looked
  bool failed = false;
  // Of a port. Who gives up waiting leaves the line: his place would take messages that others wait for, out of order.
  std::shared_ptr<PortReceiver> port;
  int waiting = 0;

  FutureState(std::shared_ptr<PendingCall> of, FutureMode how, uint32_t which, Ref by)
      : call(std::move(of)), mode(how), arrival(which), endpoint(std::move(by)) {}
  FutureState(FutureState&&) = default;
  FutureState& operator=(FutureState&&) = delete;
  ~FutureState() {
    if (!port || !state().forked) return;
    new std::shared_ptr(std::move(call));  // a fork()ed child may not touch the runtime
    new std::shared_ptr(std::move(port));
  }

  bool is_of_port() const { return mode == FutureMode::kPort || mode == FutureMode::kPortRanked; }
  void begin_waiting() {
    ++waiting;
    if (!call && port) call = port->receive();
  }
  void give_up() {
    if (--waiting == 0 && port) call.reset();
  }
  bool is_ready() const { return outcome || (call && Awaited{call, arrivals_wanted()}.there()); }
  uint32_t arrivals_wanted() const {
    if (mode == FutureMode::kPartial || mode == FutureMode::kEnded) return call->size();
    return mode == FutureMode::kArrival ? arrival + 1 : 0;
  }
};

PyTypeObject* future_base_type = nullptr;
thread_local int64_t awaiting_since_ns = 0;  // this thread's loop sleeps for a future since then; 0: it does not
thread_local int64_t polled_ns = 0;          // so long this thread polled for what has just come

FutureState& future_of(PyObject* self) { return unbox<FutureState>(self); }

// Somebody sees how an actor has failed: it need not be said on stderr.
void note_observed(const FutureState& future, const Message& failure) {
  if (state().finalizing) return;
  if (future.is_of_port()) {
    state().runtime->host().note_observed(std::string(failure.text()));  // the port knows nothing of who failed
  } else {
    state().runtime->note_observed(future.call->members());
  }
}

// The exception object for an answer that is not a value.
PyObject* exception_of(const FutureState& future, uint32_t rank, const Message& reply) {
  Ref number = Ref::steal(PyLong_FromUnsignedLong(rank));
  if (!number) return nullptr;
  const bool user_error = reply.header.kind == FrameKind::kReplyError;
  if (!user_error) note_observed(future, reply);
  Ref what = Ref::steal(user_error ? decode_value(reply) : py_string(reply.text()));
  if (!what) return nullptr;
  PyObject* args[] = {future.endpoint.get(), number.get(), what.get()};
  PyObject* maker = (user_error ? state().actor_error : state().supervision_error).get();
  return PyObject_Vectorcall(maker, args, 3, nullptr);
}

// Small pickles of a gather stay as bytes until somebody looks at them.
PyObject* entry_of(const Message& reply) {
  if ((reply.header.flags & kFlagPickle) == 0 || !reply.parts.empty()) return decode_value(reply);
  Ref raw = Ref::steal(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(reply.body.data()),
                                                 static_cast<Py_ssize_t>(reply.body.size())));
  return raw ? PyObject_CallOneArg(state().lazy.get(), raw.get()) : nullptr;
}

PyObject* gather_values(const FutureState& future, const PendingCall& call) {
  const uint32_t size = call.size();
  Ref list = Ref::steal(PyList_New(size));
  if (!list) return nullptr;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const Message& reply = *call.reply(rank);
    const bool failed = reply.header.kind != FrameKind::kReply;
    PyObject* value = failed ? exception_of(future, rank, reply) : entry_of(reply);
    if (value == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), rank, value);
  }
  PyObject* args[] = {future.endpoint.get(), list.get()};
  return PyObject_Vectorcall(state().value_mesh.get(), args, 2, nullptr);
}

// What came to a port.
PyObject* received(const FutureState& future, const Message& message) {
  Ref value = Ref::steal(decode_value(message));
  if (!value || future.mode == FutureMode::kPort) return value.release();
  if ((message.header.method & kPortRanked) == 0) {
    return PyErr_Format(PyExc_ValueError,
                        "RankedPort receiver got a message without a rank: it was not sent through the port of a call "
                        "(monarch.actor.send); use PortReceiver.recv()");
  }
  return Py_BuildValue("(IN)", message.header.rank, value.release());
}

// Looks at the answers, which are there. False: something went wrong while looking, with the exception set.
bool settle(FutureState& future) {
  if (future.outcome) return true;
  if (!state().actor_error && require_runtime() == nullptr) return false;  // the script has ended: forget_hooks()
  const std::shared_ptr<PendingCall> kept = future.call;
  PendingCall& call = *kept;
  int64_t bad_rank = -1;
  if (future.mode == FutureMode::kArrival) {
    const uint32_t rank = call.arrival(future.arrival);
    if (call.reply(rank)->header.kind != FrameKind::kReply) bad_rank = rank;
  } else if (future.mode != FutureMode::kPartial && future.mode != FutureMode::kEnded) {
    bad_rank = call.lowest_error();
  }
  PyObject* outcome;
  if (future.is_of_port()) static_cast<PortWait&>(call).mark_seen();
  if (bad_rank >= 0) {
    outcome = exception_of(future, static_cast<uint32_t>(bad_rank), *call.reply(static_cast<uint32_t>(bad_rank)));
  } else if (future.mode == FutureMode::kNothing || future.mode == FutureMode::kEnded) {
    outcome = Py_NewRef(Py_None);
  } else if (future.mode == FutureMode::kAll || future.mode == FutureMode::kPartial) {
    outcome = gather_values(future, call);
  } else if (future.is_of_port()) {
    outcome = received(future, *call.reply(0));
  } else {
    outcome = decode_value(*call.reply(future.mode == FutureMode::kOne ? 0 : call.arrival(future.arrival)));
  }
  bool failed = bad_rank >= 0;
  if (outcome == nullptr) {
    // The answer does not decode: that is the outcome, the same each time somebody looks.
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    outcome = value;
    failed = true;
  }
  if (outcome == nullptr) return false;
  if (future.outcome) {  // decoding ran Python code, and another thread was first
    Py_DECREF(outcome);
    return true;
  }
  future.failed = failed;
  future.outcome = Ref::steal(outcome);
  // The answers are not needed any more; a call that others share (stream) keeps them until they are gone.
  if (future.mode != FutureMode::kArrival) future.call.reset();
  future.port.reset();
  return true;
}

// The value, or null with the outcome raised.
PyObject* give(FutureState& future) {
  if (!settle(future)) return nullptr;
  if (!future.failed) return Py_NewRef(future.outcome.get());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(future.outcome.get())), future.outcome.get());
  return nullptr;
}

bool check_self_call(const FutureState& future) {
  if (current_actor.id.node == 0) return true;
  for (const ActorId& id : future.call->members().ids) {
    if (id == current_actor.id) {
      PyErr_SetString(PyExc_RuntimeError,
                      "this actor waits for a call to itself: it cannot answer while it waits. Call the method "
                      "directly (self.method(...)), or make the endpoint async and await the call in a task.");
      return false;
    }
    if (current_actor.swarm != nullptr && current_actor.swarm->has(id)) {
      PyErr_SetString(PyExc_RuntimeError,
                      "this actor waits for one of its own swarm in this process: they share a thread, so it cannot "
                      "answer while this one waits. Make the endpoint async and await the call.");
      return false;
    }
  }
  return true;
}

// asyncio's running loop of this thread, if asyncio has been imported at all. Borrowed test only.
bool has_running_loop() {
  static PyObject* get_running_loop = nullptr;
  if (get_running_loop == nullptr) {
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "_asyncio");
    if (module == nullptr) return false;
    get_running_loop = PyObject_GetAttrString(module, "_get_running_loop");
    if (get_running_loop == nullptr) {
      PyErr_Clear();
      return false;
    }
  }
  PyObject* loop = PyObject_CallNoArgs(get_running_loop);
  const bool running = loop != nullptr && loop != Py_None;
  Py_XDECREF(loop);
  return running;
}

bool deadline_of(PyObject* timeout, int64_t* deadline_ns) {
  *deadline_ns = kNoDeadline;
  if (timeout == nullptr || timeout == Py_None) return true;
  const double seconds = PyFloat_AsDouble(timeout);
  if (seconds == -1.0 && PyErr_Occurred()) return false;
  if (!std::isfinite(seconds) || seconds < 0) {
    PyErr_Format(PyExc_ValueError, "invalid timeout %S: expected a non-negative, finite number of seconds", timeout);
    return false;
  }
  *deadline_ns = seconds > 1e9 ? kNoDeadline : monotonic_ns() + static_cast<int64_t>(seconds * 1e9);
  return true;
}

// What actors had printed when they answered shall be out before what the caller prints next.
void let_output_catch_up(int64_t waited_ns) {
  OutputPump* output = state().runtime ? state().runtime->output() : nullptr;
  if (output == nullptr || !output->is_behind_after(waited_ns)) return;
  GilRelease release;
  output->catch_up();
}

constexpr char kWaitedTooLong[] = "the deadline has passed while this was waited for";

// When the code that runs may wait no longer for this; 0: never, as for a call that will be given up by then. False: that
// time has passed, and DeadlineExceeded is set.
bool find_wait_deadline(const FutureState& future, int64_t* deadline_ns) {
  *deadline_ns = 0;
  int64_t code_ns;
  if (!code_deadline(&code_ns)) return false;
  const int64_t call_ns = future.call->deadline_ns();
  if (code_ns == 0 || (call_ns != 0 && call_ns <= code_ns)) return true;
  *deadline_ns = code_ns;
  if (code_ns > monotonic_ns()) return true;
  raise_deadline_exceeded(kWaitedTooLong);
  return false;
}

int wait_in_line(FutureState& future, int64_t deadline_ns, int64_t* waited_ns) {
  if (future.is_ready()) return 1;
  if (require_runtime() == nullptr || !check_self_call(future)) return -1;
  if (has_running_loop()) {
    Ref warned = Ref::steal(PyObject_CallNoArgs(state().warn_running_loop.get()));
    if (!warned) return -1;
  }
  if (future.outcome) return 1;  // the warning ran Python code, and another thread was first
  int64_t code_deadline_ns;
  if (!find_wait_deadline(future, &code_deadline_ns)) return -1;
  const Awaited awaited{future.call, future.arrivals_wanted()};
  const bool first = code_deadline_ns != 0 && code_deadline_ns < deadline_ns;
  const int outcome =
      wait_for(&Awaited::ready, &awaited, first ? code_deadline_ns : deadline_ns, awaited.call.get(), waited_ns);
  if (outcome != 0 || !first) return outcome;
  raise_deadline_exceeded(kWaitedTooLong);
  return -1;
}

// 1: ready, 0: time-out, -1: exception.
int wait_until_ready(FutureState& future, int64_t deadline_ns, int64_t* waited_ns) {
  future.begin_waiting();
  const int outcome = wait_in_line(future, deadline_ns, waited_ns);
  if (outcome == 1) {
    --future.waiting;
  } else {
    future.give_up();
  }
  return outcome;
}

bool parse_timeout(PyObject* const* args, Py_ssize_t count, PyObject* names, PyObject** timeout) {
  *timeout = count > 0 ? args[0] : nullptr;
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count + named > 1 ||
      (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") != 0)) {
    PyErr_SetString(PyExc_TypeError, "expected one argument at most: timeout, in seconds");
    return false;
  }
  if (named == 1) *timeout = args[count];
  return true;
}

// get(timeout=None)
PyObject* future_get(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  FutureState& future = future_of(self);
  int64_t deadline_ns = kNoDeadline;
  if (count != 0 || names != nullptr) {
    PyObject* timeout;
    if (!parse_timeout(args, count, names, &timeout) || !deadline_of(timeout, &deadline_ns)) return nullptr;
  }
  int64_t waited_ns = 0;
  switch (wait_until_ready(future, deadline_ns, &waited_ns)) {
    case 1:
      let_output_catch_up(waited_ns);
      return give(future);
    case 0:
      PyErr_SetNone(PyExc_TimeoutError);
      return nullptr;
    default:
      return nullptr;
  }
}

// _wait(timeout): until the outcome is there, without looking at it.
PyObject* future_wait(PyObject* self, PyObject* timeout) {
  int64_t deadline_ns;
  if (!deadline_of(timeout, &deadline_ns)) return nullptr;
  int64_t waited_ns = 0;
  switch (wait_until_ready(future_of(self), deadline_ns, &waited_ns)) {
    case 1:
      let_output_catch_up(waited_ns);
      Py_RETURN_NONE;
    case 0:
      PyErr_SetNone(PyExc_TimeoutError);
      return nullptr;
    default:
      return nullptr;
  }
}

// _poll() -> bool: is the outcome there? Polls briefly, if that pays, before it says no.
PyObject* future_poll(PyObject* self, PyObject*) {
  FutureState& future = future_of(self);
  if (future.is_ready()) Py_RETURN_TRUE;
  if (!future.call) Py_RETURN_FALSE;
  ProcessRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  const int64_t start_ns = monotonic_ns();
  const Awaited awaited{future.call, future.arrivals_wanted()};
  bool ready;
  {
    GilRelease release;
    ready = runtime->driver().poll_briefly(&Awaited::ready, &awaited);
  }
  if (ready) {
    polled_ns = monotonic_ns() - start_ns;
  } else {
    awaiting_since_ns = start_ns;
  }
  return PyBool_FromLong(ready);
}

// _ready() -> bool
PyObject* future_ready(PyObject* self, PyObject*) {
  const FutureState& future = future_of(self);
  return PyBool_FromLong(future.is_ready());
}

// _outcome(): the value, or raises; only once it is ready.
PyObject* future_outcome(PyObject* self, PyObject*) {
  int64_t waited_ns = std::exchange(polled_ns, 0);
  if (awaiting_since_ns != 0) {
    waited_ns = monotonic_ns() - std::exchange(awaiting_since_ns, 0);
    Driver::note_wait(waited_ns);
  }
  let_output_catch_up(waited_ns);
  return give(future_of(self));
}

// _give_up(): whoever had it watched waits no more
PyObject* future_give_up(PyObject* self, PyObject*) {
  future_of(self).give_up();
  Py_RETURN_NONE;
}

// _seconds_left() -> float or None: how long the code that runs may wait for this; raises DeadlineExceeded if no longer
PyObject* future_seconds_left(PyObject* self, PyObject*) {
  const FutureState& future = future_of(self);
  int64_t deadline_ns = 0;
  if (future.call && !find_wait_deadline(future, &deadline_ns)) return nullptr;
  if (deadline_ns == 0) Py_RETURN_NONE;
  return PyFloat_FromDouble(static_cast<double>(deadline_ns - monotonic_ns()) / 1e9);
}

int future_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(future_of(self).endpoint.get());
  Py_VISIT(future_of(self).outcome.get());
  return 0;
}

int future_clear(PyObject* self) {
  FutureState& future = future_of(self);
  Ref endpoint = std::move(future.endpoint);
  Ref outcome = std::move(future.outcome);
  return 0;
}

// ---- LoopBridge: completions for one asyncio loop ----

// The completing thread holds no GIL: it notes the ticket and writes the loop's eventfd; a callback of the loop drains.
class Bridge {
 public:
  Bridge() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return event_.get(); }
  void complete(uint64_t ticket) {
    std::lock_guard lock(mutex_);
    tickets_.push_back(ticket);
    if (tickets_.size() == 1) eventfd_write(event_.get(), 1);
  }
  std::vector<uint64_t> drain() {
    std::lock_guard lock(mutex_);
    eventfd_t ignored;
    eventfd_read(event_.get(), &ignored);
    return std::exchange(tickets_, {});
  }

 private:
  UniqueFd event_;
  std::mutex mutex_;
  std::vector<uint64_t> tickets_;
};

using BridgeRef = std::shared_ptr<Bridge>;  // shared: a completion may come after the loop is gone

PyObject* bridge_new(PyTypeObject* type, PyObject*, PyObject*) {
  return box<BridgeRef>(type, std::make_shared<Bridge>());
}

PyObject* bridge_fileno(PyObject* self, PyObject*) { return PyLong_FromLong(unbox<BridgeRef>(self)->fd()); }

PyObject* bridge_drain(PyObject* self, PyObject*) {
  const std::vector<uint64_t> tickets = unbox<BridgeRef>(self)->drain();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(tickets.size()));
  for (size_t i = 0; list != nullptr && i < tickets.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLongLong(tickets[i]));
  }
  return list;
}

// watch(future, ticket): drain() will give the ticket when the future is ready. Ended early by future._give_up().
PyObject* bridge_watch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyObject_TypeCheck(args[0], future_base_type)) {
    PyErr_SetString(PyExc_TypeError, "watch(future, ticket)");
    return nullptr;
  }
  const uint64_t ticket = PyLong_AsUnsignedLongLong(args[1]);
  if (ticket == static_cast<uint64_t>(-1) && PyErr_Occurred()) return nullptr;
  ProcessRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  BridgeRef bridge = unbox<BridgeRef>(self);
  FutureState& future = future_of(args[0]);
  if (!future.outcome) future.begin_waiting();
  if (!future.call) {
    bridge->complete(ticket);
  } else {
    Driver& driver = runtime->driver();
    driver.attend();
    std::shared_ptr<Inflow> inflow = current_inflow();
    if (inflow) inflow->begin_blocking();
    future.call->observe(future.arrivals_wanted(), [bridge, ticket, inflow, &driver] {
      if (inflow) inflow->end_blocking();
      driver.end_attend();
      bridge->complete(ticket);
    });
  }
  Py_RETURN_NONE;
}

}  // namespace

int wait_for(bool (*ready)(const void*), const void* context, int64_t deadline_ns, PendingCall* call,
             int64_t* waited_ns) {
  thread_local Waiter waiter;
  Driver& driver = state().runtime->driver();
  thread_local const bool main_thread = gettid() == getpid();  // the one that looks at signals
  const InflowBlocked blocked(current_inflow().get());
  if (call != nullptr) call->add_waiter(waiter);
  int outcome;
  for (;;) {
    WaitResult result;
    {
      GilRelease release;
      result = driver.wait(waiter, ready, context, deadline_ns, main_thread ? kMainThreadSleepNs : INT64_MAX);
    }
    if (waited_ns != nullptr) *waited_ns += waiter.waited_ns();
    if (result == WaitResult::kReady) {
      outcome = 1;
      break;
    }
    if (PyErr_CheckSignals() != 0) {
      outcome = -1;
      break;
    }
    if (result == WaitResult::kTimeout) {
      outcome = 0;
      break;
    }
  }
  if (call != nullptr) call->remove_waiter(waiter);
  return outcome;
}

PyObject* new_port_future(std::shared_ptr<PortReceiver> port, bool ranked) {
  auto* type = reinterpret_cast<PyTypeObject*>(state().future_type.get());
  FutureState future(port->receive(), ranked ? FutureMode::kPortRanked : FutureMode::kPort, 0, Ref::borrow(Py_None));
  future.port = std::move(port);
  return box<FutureState>(type, std::move(future));
}

PyObject* new_future(std::shared_ptr<PendingCall> call, FutureMode mode, uint32_t arrival, PyObject* endpoint) {
  auto* type = reinterpret_cast<PyTypeObject*>(state().future_type.get());
  return box<FutureState>(type, FutureState(std::move(call), mode, arrival, Ref::borrow(endpoint)));
}

PyObject* new_completed_future(PyObject* outcome, bool failed) {
  auto* type = reinterpret_cast<PyTypeObject*>(state().future_type.get());
  FutureState future(nullptr, FutureMode::kNothing, 0, Ref::borrow(Py_None));
  future.outcome = Ref::borrow(outcome);
  future.failed = failed;
  return box<FutureState>(type, std::move(future));
}

namespace {
// bare_future(type): an instance of a subclass that does everything itself.
PyObject* bare_future(PyObject*, PyObject* type) {
  if (!PyType_Check(type) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), future_base_type)) {
    return PyErr_Format(PyExc_TypeError, "expected a subclass of FutureBase");
  }
  return box<FutureState>(reinterpret_cast<PyTypeObject*>(type), FutureState(nullptr, FutureMode::kNothing, 0, Ref()));
}
}  // namespace

bool add_future_types(PyObject* module) {
  static PyMethodDef future_methods[] = {
      {"get", fast(future_get), METH_FASTCALL | METH_KEYWORDS, nullptr},
      {"result", fast(future_get), METH_FASTCALL | METH_KEYWORDS, nullptr},
      {"_wait", future_wait, METH_O, nullptr},
      {"_poll", future_poll, METH_NOARGS, nullptr},
      {"_ready", future_ready, METH_NOARGS, nullptr},
      {"_outcome", future_outcome, METH_NOARGS, nullptr},
      {"_give_up", future_give_up, METH_NOARGS, nullptr},
      {"_seconds_left", future_seconds_left, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot future_slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<FutureState>)},
      {Py_tp_traverse, reinterpret_cast<void*>(future_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(future_clear)},
      {Py_tp_methods, future_methods},
      {0, nullptr},
  };
  static PyType_Spec future_spec = {
      "monarch._core.FutureBase", sizeof(Boxed<FutureState>), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, future_slots};
  static PyMethodDef bridge_methods[] = {
      {"fileno", bridge_fileno, METH_NOARGS, nullptr},
      {"drain", bridge_drain, METH_NOARGS, nullptr},
      {"watch", fast(bridge_watch), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot bridge_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(bridge_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<BridgeRef>)},
      {Py_tp_methods, bridge_methods},
      {0, nullptr},
  };
  static PyType_Spec bridge_spec = {"monarch._core.LoopBridge", sizeof(Boxed<BridgeRef>), 0, Py_TPFLAGS_DEFAULT,
                                    bridge_slots};
  future_base_type = add_type(module, future_spec);
  static PyMethodDef functions[] = {{"bare_future", bare_future, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
  return future_base_type != nullptr && add_type(module, bridge_spec) != nullptr &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace monarch
