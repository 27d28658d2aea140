#include "future.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bulk.h"
#include "codec.h"
#include "deadline.h"
#include "future_state.h"
#include "gil.h"
#include "mesh_ref.h"
#include "monarch/actor/calls.h"
#include "monarch/actor/port.h"
#include "monarch/base/forked.h"
#include "monarch/mesh/gather.h"
#include "monarch/mesh/reduced.h"
#include "simulation.h"
#include "state.h"
#include "supervision.h"
#include "swarm.h"

namespace monarch {

namespace {

// One sleep of the main thread: bounds how long a signal that comes between the check for it and the sleep goes unseen.
constexpr int64_t kMainThreadSleepNs = 100'000'000;
// The same for other threads of a script, and for what it does to our descriptors.
constexpr int64_t kScriptSleepNs = 1'000'000'000;

// As in python/monarch/_calls/future.py, which type checkers and the documentation read; a test compares.
constexpr char kGetDoc[] = R"(get($self, /, timeout=None)
--

Blocks until the outcome is there, without the GIL; the value, or the exception raised.

``timeout`` in seconds: then ``TimeoutError``, and nothing is cancelled or lost; its ``endpoint`` and
``missing_ranks`` say whose answers were not there. Negative, infinite, NaN: ``ValueError``. Ctrl-C interrupts the
main thread's wait. Inside a running event loop it works, blocks that loop, and warns (``UserWarning``).)";
constexpr char kResultDoc[] = R"(result($self, /, timeout=None)
--

As ``get``.)";

PyTypeObject* future_base_type = nullptr;
thread_local int64_t awaiting_since_ns = 0;  // this thread's loop sleeps for a future since then; 0: it does not
thread_local int64_t polled_ns = 0;          // so long this thread polled for what has just come

FutureState& future_of(PyObject* self) { return unbox<FutureState>(self); }

// Somebody sees how actors of this call have failed: it need not be said on stderr. Looks at all of them.
void note_seen(const FutureState& future, const PendingCall& call, const Message& reply, bool at_the_end = false) {
  if (reply.header.kind == FrameKind::kReplyError) return;
  if (!state().finalizing) {
    if (future.is_of_port()) {
      state().runtime->note_observed(failure_of(reply).node);
    } else {
      state().runtime->note_observed(call.owing());
    }
  }
  note_told(call, at_the_end);
}

}  // namespace

namespace {

// The same for each, in a tuple.
template <typename Items, typename Make>
PyObject* tuple_of(const Items& items, Make make) {
  Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t at = 0;
  for (const auto& item : items) {
    PyObject* made = tuple ? make(item) : nullptr;
    if (made == nullptr) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), at++, made);
  }
  return tuple.release();
}

}  // namespace

Ref describe_record(const Failure& failure) {
  const auto number = [](bool known, int64_t value) { return known ? PyLong_FromLongLong(value) : Py_NewRef(Py_None); };
  const auto text = [](const std::string& bytes) { return py_string(bytes); };
  const ExitStatus& status = failure.status;
  return Ref::steal(Py_BuildValue(
      "(iNNNNNNNiNNN)", static_cast<int>(failure.kind), number(failure.pid > 0, failure.pid), text(failure.host),
      number(status.known && status.signal == 0, status.code), number(status.known && status.signal != 0, status.signal),
      number(failure.rank >= 0, failure.rank), text(failure.mesh), tuple_of(failure.coordinates, PyLong_FromLongLong),
      static_cast<int>(status.out_of_memory), tuple_of(status.endpoints, text), text(status.stack),
      text(failure.last_lines)));
}

namespace {

// ---- What came, as Python objects ----
// This runs Python code, and another thread may settle the future meanwhile: `call` is not future.call.

// What each of these has answered, or why it has not as text; null: an exception is set.
Ref stacks_of(const PendingCall& asked) {
  Ref list = Ref::steal(PyList_New(asked.size()));
  for (uint32_t rank = 0; list && rank < asked.size(); ++rank) {
    const Message* reply = asked.reply(rank);
    PyObject* value = reply == nullptr                                ? py_string("does not answer")
                      : reply->header.kind != FrameKind::kReply ? py_string(failure_of(*reply).text())
                                                                      : decode_value(*reply);
    if (value == nullptr) return Ref();
    PyList_SET_ITEM(list.get(), rank, value);
  }
  return list;
}

Ref list_of(const std::vector<uint32_t>& ranks) {
  Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(ranks.size())));
  for (size_t i = 0; list && i < ranks.size(); ++i) {
    PyObject* const number = PyLong_FromUnsignedLong(ranks[i]);
    if (number == nullptr) return Ref();
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), number);
  }
  return list;
}

// Those that `is_one` says yes to.
template <typename IsOne>
Ref ranks_list(uint32_t size, const IsOne& is_one) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (is_one(rank)) ranks.push_back(rank);
  }
  return list_of(ranks);
}

// Whether its exception is one for all ranks of the call, and not each rank's own.
bool is_of_all(const FutureState& future) {
  return future.mode == FutureMode::kAll || future.mode == FutureMode::kReduced;
}

// To the error of a call past its deadline, which all have got that had not answered: who those are, and what they did, if
// that was asked. False: an exception is set.
bool add_missing(const FutureState& future, const PendingCall& call, uint32_t rank, PyObject* error) {
  if (PyObject_IsInstance(error, state().deadline_exceeded.get()) != 1) return !PyErr_Occurred();
  const Message* const reply = is_of_all(future) ? call.reply(rank) : nullptr;
  const auto is_missing = [&](uint32_t other) {
    const Message* const its = call.reply(other);
    return its != nullptr && its->header.kind == FrameKind::kReplyError && its->text() == reply->text();
  };
  const Ref missing = reply == nullptr ? list_of({rank}) : ranks_list(call.size(), is_missing);
  const PendingCall::Stacks stacks = call.stacks();
  const Ref asked = list_of(stacks.ranks);
  const Ref answers = stacks.call ? stacks_of(*stacks.call) : list_of({});
  if (!missing || !asked || !answers) return false;
  PyObject* args[] = {error, future.endpoint.get(), missing.get(), asked.get(), answers.get()};
  return Ref::steal(PyObject_Vectorcall(state().add_missing.get(), args, 5, nullptr)).get() != nullptr;
}

// The other ranks of a call that are known to have failed, which its exception names beside the first.
Ref other_failures(const FutureState& future, const PendingCall& call, uint32_t rank) {
  if (!is_of_all(future)) return list_of({});
  return ranks_list(call.size(), [&](uint32_t other) {
    const Message* const reply = other != rank ? call.reply(other) : nullptr;
    return reply != nullptr && reply->header.kind != FrameKind::kReply;
  });
}

// The exception object for an answer that is not a value.
PyObject* exception_of(const FutureState& future, const PendingCall& call, uint32_t rank, const Message& reply) {
  Ref number = Ref::steal(PyLong_FromUnsignedLong(rank));
  if (!number) return nullptr;
  const bool user_error = reply.header.kind == FrameKind::kReplyError;
  if (user_error) {
    Ref error = Ref::steal(decode_value(reply));
    if (!error) return nullptr;
    PyObject* args[] = {future.endpoint.get(), number.get(), error.get()};
    Ref exception = Ref::steal(PyObject_Vectorcall(state().actor_error.get(), args, 3, nullptr));
    if (!exception || !add_missing(future, call, rank, exception.get())) return nullptr;
    return exception.release();
  }
  const Failure failure = failure_of(reply);
  Ref text = Ref::steal(py_string(failure.text()));
  Ref record = describe_record(failure);
  Ref others = other_failures(future, call, rank);
  if (!text || !record || !others) return nullptr;
  PyObject* args[] = {future.endpoint.get(), number.get(), text.get(), record.get(), others.get()};
  return PyObject_Vectorcall(state().supervision_error.get(), args, 5, nullptr);
}

// Small pickles of a gather stay as bytes until somebody looks at them.
PyObject* entry_of(const Message& reply) {
  if ((reply.header.flags & kFlagPickle) == 0 || !reply.parts.empty()) return decode_value(reply);
  Ref raw = Ref::steal(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(reply.body.data()),
                                                 static_cast<Py_ssize_t>(reply.body.size())));
  return raw ? PyObject_CallOneArg(state().lazy.get(), raw.get()) : nullptr;
}

PyObject* gather_values(const FutureState& future, const PendingCall& call, const Gather& gather) {
  const uint32_t size = call.size();
  Ref list = Ref::steal(PyList_New(size));
  if (!list) return nullptr;
  bool seen = false;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const Message& reply = gather.answer(rank);
    if (gather.is_failure(rank) && !seen && reply.header.kind != FrameKind::kReplyError) {
      note_seen(future, call, reply);
      seen = true;
    }
    PyObject* value = gather.is_failure(rank) ? exception_of(future, call, rank, reply) : entry_of(reply);
    if (value == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), rank, value);
  }
  PyObject* args[] = {future.endpoint.get(), list.get()};
  return PyObject_Vectorcall(state().value_mesh.get(), args, 2, nullptr);
}

// "a torch.Tensor"; empty: that cannot be said.
std::string type_for_people(PyObject* value) {
  PyObject* const type = value != nullptr ? reinterpret_cast<PyObject*>(Py_TYPE(value)) : nullptr;
  if (value == Py_None) return "None";
  if (value != nullptr && PyLong_CheckExact(value)) return "an int beyond 64 bits";
  Ref module = Ref::steal(type != nullptr ? PyObject_GetAttrString(type, "__module__") : nullptr);
  Ref name = Ref::steal(module ? PyObject_GetAttrString(type, "__qualname__") : nullptr);
  Ref both = Ref::steal(name ? PyUnicode_FromFormat("a %S.%S", module.get(), name.get()) : nullptr);
  const char* text = both ? PyUnicode_AsUTF8(both.get()) : nullptr;
  if (text == nullptr) return PyErr_Clear(), "";
  return std::string_view(text).starts_with("a builtins.") ? "a " + std::string(text + 11) : text;
}

// What reduce='sum' takes by itself.
bool is_number(PyObject* value) {
  if (PyBool_Check(value) || PyFloat_CheckExact(value)) return true;
  const Ref of_numpy = PyLong_CheckExact(value) ? Ref() : number_of_numpy(value);
  PyObject* const number = of_numpy ? of_numpy.get() : value;
  int overflow = 0;
  if (PyLong_CheckExact(number)) PyLong_AsLongLongAndOverflow(number, &overflow);
  return (PyLong_CheckExact(number) && overflow == 0) || (of_numpy && (PyBool_Check(number) || PyFloat_CheckExact(number)));
}

// The first thing in tuples, lists and dicts that is no number (borrowed), and what that is in; null: there is none, or it
// is behind too many others.
struct ForeignSearch {
  static constexpr int kDepthMax = 64;
  int visits_left = 10'000;  // what is in it many times is looked at as often
  const char* within = nullptr;

  PyObject* in(PyObject* value, int depth) {
    const bool is_dict = PyDict_CheckExact(value), is_list = PyList_CheckExact(value);
    if (--visits_left < 0 || depth == kDepthMax) return nullptr;
    if (!(is_dict || is_list || PyTuple_CheckExact(value))) return is_number(value) ? nullptr : value;
    const auto look_at = [&](PyObject* item) {
      PyObject* const found = in(item, depth + 1);
      if (found == item) within = is_dict ? "dict" : is_list ? "list" : "tuple";
      return found;
    };
    PyObject* found = nullptr;
    PyObject *key, *item;
    for (Py_ssize_t at = 0; is_dict && found == nullptr && PyDict_Next(value, &at, &key, &item);) found = look_at(item);
    const Py_ssize_t count = is_dict ? 0 : PySequence_Size(value);
    for (Py_ssize_t i = 0; i < count && found == nullptr && visits_left > 0; ++i) {
      found = look_at(is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i));
    }
    return found;
  }
};

// "a torch.Tensor, in a dict", of an answer that needs a pickle; empty: that cannot be said.
std::string foreign_type(const Message& answer, Reducer reducer) {
  const Ref value = Ref::steal(decode_value(answer));
  ForeignSearch search;
  const bool wants_numbers = reducer != Reducer::kAllEqual;
  PyObject* found = value && wants_numbers ? search.in(value.get(), 0) : nullptr;
  if (found == nullptr) found = value.get();  // for its keys, or its depth
  const std::string type = type_for_people(found);
  return type.empty() || found == value.get() ? type : type + ", in a " + search.within;
}
PyObject* raise_not_reduced(const PendingCall& call, ReduceProblem problem) {
  if (problem.is_foreign) {
    const std::string type = foreign_type(*call.reply(static_cast<uint32_t>(problem.rank)), problem.reducer);
    if (!type.empty()) problem.found = type;
  }
  PyObject* const type = problem.kind == ReduceProblem::Kind::kType    ? PyExc_TypeError
                         : problem.kind == ReduceProblem::Kind::kRange ? PyExc_OverflowError
                                                                       : PyExc_ValueError;
  const Ref text = Ref::steal(py_string(problem.text(call.label() ? *call.label() : "the call")));
  if (text) PyErr_SetObject(type, text.get());
  return nullptr;
}

PyObject* list_of_values(const PendingCall& call) {
  Ref list = Ref::steal(PyList_New(call.size()));
  for (uint32_t rank = 0; list && rank < call.size(); ++rank) {
    PyObject* value = decode_value(*call.reply(rank));
    if (value == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), rank, value);
  }
  return list.release();
}

PyObject* reduced_value(const PendingCall& call) {
  if (call.reducer() == Reducer::kConcat) return list_of_values(call);
  uint64_t bytes = 0;
  for (uint32_t rank = 0; rank < call.size(); ++rank) bytes += call.reply(rank)->total_bytes();
  Reduced reduced;
  bool has_memory = true;
  without_gil_if_large(bytes, [&] {
    try {
      reduced = reduce(call);
    } catch (const std::bad_alloc&) {
      has_memory = false;
    }
  });
  if (!has_memory) return PyErr_NoMemory();
  return reduced.value ? decode_value(*reduced.value) : raise_not_reduced(call, std::move(reduced.problem));
}

PyObject* gather_each(const FutureState& future, const PendingCall& call, const Gather& gather) {
  release_kept_buffers();
  Ref list = Ref::steal(PyList_New(call.size()));
  const FutureState nobodys(nullptr, FutureMode::kPartial, 0, Ref::borrow(Py_None));
  bool seen = false;
  for (uint32_t rank = 0; list && rank < call.size(); ++rank) {
    const Message& answer = gather.answer(rank);
    if (gather.is_failure(rank) && !std::exchange(seen, true)) note_seen(future, call, answer);
    PyObject* each = gather.is_failure(rank) ? exception_of(nobodys, call, rank, answer) : decode_value(answer);
    if (each == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), rank, each);
  }
  return list ? PyObject_CallOneArg(future.endpoint.get(), list.get()) : nullptr;
}

PyObject* gather_stacks(const FutureState& future, const PendingCall& call) {
  Ref list = stacks_of(call);
  return list ? PyObject_CallOneArg(future.endpoint.get(), list.get()) : nullptr;
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
  if (refuse_dead()) return false;
  if (!state().actor_error && require_runtime() == nullptr) return false;  // the script has ended: forget_hooks()
  const std::shared_ptr<PendingCall> kept = future.call;
  const Gather gather(*kept, wants_of(future.mode), future.arrival);
  const int64_t bad_rank = gather.failed_rank();
  if (bad_rank < 0 && future.one_way_before != 0) note_answered(*kept, future.one_way_before);
  PyObject* outcome;
  if (bad_rank >= 0) {
    const auto rank = static_cast<uint32_t>(bad_rank);
    note_seen(future, *kept, gather.answer(rank));
    outcome = exception_of(future, *kept, rank, gather.answer(rank));
  } else if (future.mode == FutureMode::kNothing || future.mode == FutureMode::kEnded) {
    outcome = Py_NewRef(Py_None);
  } else if (future.mode == FutureMode::kAll || future.mode == FutureMode::kPartial) {
    outcome = gather_values(future, *kept, gather);
  } else if (future.mode == FutureMode::kReduced) {
    outcome = reduced_value(*kept);
  } else if (future.mode == FutureMode::kEach) {
    outcome = gather_each(future, *kept, gather);
  } else if (future.mode == FutureMode::kStacks) {
    outcome = gather_stacks(future, *kept);
  } else if (future.is_of_port()) {
    outcome = received(future, gather.answer(0));
  } else {
    outcome = decode_value(gather.answer(future.mode == FutureMode::kOne ? 0 : gather.arrived()));
  }
  bool failed = bad_rank >= 0;
  if (outcome == nullptr) {
    // Ctrl-C and the like came while it was decoded: whoever looks again decodes it again.
    if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
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
  if (future.is_of_port()) static_cast<PortWait&>(*kept).mark_seen();
  future.failed = failed;
  future.outcome = Ref::steal(outcome);
  future.unlink();  // it has been looked at
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
  const Members& members = future.call->owing();
  if (find_own(members, {current_actor.id.node, current_actor.id.index}) != nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this actor waits for a call to itself: it cannot answer while it waits. Call the method "
                    "directly (self.method(...)), or make the endpoint async and await the call in a task.");
    return false;
  }
  if (current_actor.swarm != nullptr && find_own(members, current_actor.swarm->thread()) != nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this actor waits for one of its own swarm in this process: they share a thread, so it cannot "
                    "answer while this one waits. Make the endpoint async and await the call.");
    return false;
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
  if (seconds == -1.0 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "invalid timeout %R: expected a number of seconds, or None", timeout);
    }
    return false;
  }
  if (!std::isfinite(seconds) || seconds < 0) {
    PyErr_Format(PyExc_ValueError, "invalid timeout %S: expected a non-negative, finite number of seconds", timeout);
    return false;
  }
  *deadline_ns = seconds > 1e9 ? kNoDeadline : clock_ns() + static_cast<int64_t>(seconds * 1e9);
  return true;
}

// What actors had printed when they answered shall be out before what the caller prints next.
void let_output_catch_up(int64_t waited_ns) {
  ProcessRuntime* here = state().runtime && !in_forked_child() ? state().runtime->of_machine() : nullptr;
  OutputPump* output = here != nullptr ? here->output() : nullptr;
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
  if (code_ns > clock_ns()) return true;
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
  const Awaited awaited = future.awaited();
  const bool first = code_deadline_ns != 0 && code_deadline_ns < deadline_ns;
  const int outcome =
      wait_for(&Awaited::ready, &awaited, first ? code_deadline_ns : deadline_ns, awaited.call.get(),
               awaited.gather.arrivals_wanted(), waited_ns, future.is_edge() ? &awaited.call : nullptr);
  if (outcome != 0 || !first) return outcome;
  raise_deadline_exceeded(kWaitedTooLong);
  return -1;
}

// 1: ready, 0: time-out, -1: exception.
int wait_until_ready(FutureState& future, int64_t deadline_ns, int64_t* waited_ns) {
  if (state().simulated != nullptr) {
    simulated_step();
    if (!check_simulation()) return -1;
  }
  if (future.outcome) return 1;
  if (refuse_dead() || !check_home(future)) return -1;
  future.begin_waiting();
  const int outcome = wait_in_line(future, deadline_ns, waited_ns);
  if (outcome == 1) {
    --future.waiting;
    future.promised = true;
  } else {
    future.give_up();
  }
  return outcome;
}

// TimeoutError, with whose answers were waited for.
PyObject* raise_timed_out(const FutureState& future) {
  const std::shared_ptr<PendingCall> call = future.call;  // what makes objects may run code that looks at the future
  if (!call || !future.is_of_call()) {
    PyErr_SetNone(PyExc_TimeoutError);
    return nullptr;
  }
  const Ref endpoint = Ref::borrow(future.endpoint.get());
  const Ref missing = ranks_list(call->size(), [&](uint32_t rank) { return call->reply(rank) == nullptr; });
  if (!missing) return nullptr;
  PyObject* args[] = {endpoint.get(), missing.get()};
  const Ref error = Ref::steal(PyObject_Vectorcall(state().timed_out.get(), args, 2, nullptr));
  if (error) PyErr_SetObject(PyExc_TimeoutError, error.get());
  return nullptr;
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
      return raise_timed_out(future);
    default:
      return nullptr;
  }
}

// _progress() -> (endpoint or None, ranks that have answered, ranks, None (pending) or whether it has failed). No look.
// _call_number(): of the call, in this process
PyObject* future_call_number(PyObject* self, PyObject*) {
  const FutureState& future = future_of(self);
  return PyLong_FromUnsignedLongLong(future.call == nullptr ? 0 : future.call->token());
}

PyObject* future_progress(PyObject* self, PyObject*) {
  const FutureState& future = future_of(self);
  const bool known = future.call != nullptr && future.is_of_call();
  Ref state = Ref::borrow(Py_None);
  if (future.outcome) {
    state = Ref::steal(PyBool_FromLong(future.failed));
  } else if (future.is_ready()) {
    state = Ref::steal(PyBool_FromLong(future.gather().failed_rank() >= 0));
  }
  PyObject* endpoint = future.endpoint ? future.endpoint.get() : Py_None;
  const uint32_t received = known ? future.call->received() : 0;
  return Py_BuildValue("(OIIO)", endpoint, received, known ? future.call->size() : 0, state.get());
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
  if (future.promise()) Py_RETURN_TRUE;
  if (!future.call && !future.port) Py_RETURN_FALSE;
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  future.begin_waiting();
  const int64_t start_ns = clock_ns();
  const Awaited awaited = future.awaited();
  bool ready;
  {
    GilRelease release;
    ready = runtime->driver().poll_briefly(&Awaited::ready, &awaited);
  }
  if (ready && future.promise()) {
    polled_ns = clock_ns() - start_ns;
  } else {
    awaiting_since_ns = start_ns;
  }
  future.give_up();
  return PyBool_FromLong(future.promised);
}

// _ready() -> bool
PyObject* future_ready(PyObject* self, PyObject*) {
  return PyBool_FromLong(future_of(self).promise());
}

// _outcome(): the value, or raises; only once it is ready.
PyObject* future_outcome(PyObject* self, PyObject*) {
  int64_t waited_ns = std::exchange(polled_ns, 0);
  if (awaiting_since_ns != 0) {
    waited_ns = clock_ns() - std::exchange(awaiting_since_ns, 0);
    Driver::note_wait(waited_ns);
  }
  let_output_catch_up(waited_ns);
  return give(future_of(self));
}

// _give_up(): whoever had it watched waits no more
PyObject* future_give_up(PyObject* self, PyObject*) {
  if (!in_forked_child()) future_of(self).give_up();
  Py_RETURN_NONE;
}

// _seconds_left() -> float or None: how long the code that runs may wait for this; raises DeadlineExceeded if no longer
PyObject* future_seconds_left(PyObject* self, PyObject*) {
  const FutureState& future = future_of(self);
  int64_t deadline_ns = 0;
  if (future.call && !find_wait_deadline(future, &deadline_ns)) return nullptr;
  if (deadline_ns == 0) Py_RETURN_NONE;
  return PyFloat_FromDouble(static_cast<double>(deadline_ns - clock_ns()) / 1e9);
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

// Whether this thread runs one actor.
bool runs_alone() { return current_actor.id.node != 0 && current_actor.swarm == nullptr; }

// ---- LoopBridge: completions for one asyncio loop ----

// The completing thread holds no GIL: it notes the ticket and writes the loop's eventfd; a callback of the loop drains.
class Bridge {
 public:
  // What an await keeps up while it lasts.
  struct Watch {
    Driver* driver;
    std::shared_ptr<Inflow> inflow;
    std::weak_ptr<PendingCall> call;
    uint64_t observer = 0;
    bool is_edge = false;
    ActorIndex blocked = 0;  // the actor that block() was called for
  };

  explicit Bridge(UniqueFd event) : event_(std::move(event)) {}

  int fd() const { return event_.get(); }
  void begin(uint64_t ticket, Watch watch) {
    watch.driver->attend();
    if (watch.inflow) watch.inflow->begin_blocking();
    std::lock_guard lock(mutex_);
    watches_.emplace(ticket, std::move(watch));
  }
  void note_observer(uint64_t ticket, uint64_t observer) {
    std::lock_guard lock(mutex_);
    const auto found = watches_.find(ticket);
    if (found != watches_.end()) found->second.observer = observer;
  }
  // The actor of this thread awaits nothing but that; or so no more.
  void block(uint64_t ticket, bool blocks) {
    const ActorIndex self = current_actor.id.index;
    std::shared_ptr<PendingCall> call;
    {
      std::lock_guard lock(mutex_);
      const auto found = watches_.find(ticket);
      if (found == watches_.end() || !found->second.is_edge || (found->second.blocked != 0) == blocks) return;
      found->second.blocked = blocks ? self : 0;
      call = found->second.call.lock();
    }
    if (!call) return;
    AnyRuntime& watch = *state().runtime;
    if (blocks) watch.block(self, call, CallWatch::kBlockedNs);
    std::lock_guard lock(mutex_);
    if (!blocks || !watches_.contains(ticket)) watch.unblock(self, *call);  // it may have ended meanwhile
  }
  void complete(uint64_t ticket) {
    if (end(ticket)) say(ticket);
  }
  void give_up(uint64_t ticket) {
    const std::optional<Watch> watch = end(ticket);
    if (!watch) return;
    if (const auto call = watch->call.lock()) call->forget_observer(watch->observer);
  }
  void say(uint64_t ticket) {
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
  // Nothing: it has ended before.
  std::optional<Watch> end(uint64_t ticket) {
    std::optional<Watch> watch;
    {
      std::lock_guard lock(mutex_);
      const auto found = watches_.find(ticket);
      if (found == watches_.end()) return watch;
      watch = std::move(found->second);
      watches_.erase(found);
    }
    if (watch->blocked != 0 && state().runtime) {
      if (const auto call = watch->call.lock()) state().runtime->unblock(watch->blocked, *call);
    }
    if (watch->inflow) watch->inflow->end_blocking();
    watch->driver->end_attend();
    return watch;
  }

  UniqueFd event_;
  std::mutex mutex_;
  std::vector<uint64_t> tickets_;
  std::unordered_map<uint64_t, Watch> watches_;
};

using BridgeRef = std::shared_ptr<Bridge>;  // shared: a completion may come after the loop is gone

PyObject* bridge_new(PyTypeObject* type, PyObject*, PyObject*) {
  UniqueFd event = sys::make_eventfd();
  if (!event) return raise_shortage("await in an event loop");
  return box<BridgeRef>(type, std::make_shared<Bridge>(std::move(event)));
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

// watch(future, ticket): drain() will give the ticket when the future is ready. Ended early by unwatch(ticket) and
// future._give_up().
PyObject* bridge_watch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyObject_TypeCheck(args[0], future_base_type)) {
    PyErr_SetString(PyExc_TypeError, "watch(future, ticket)");
    return nullptr;
  }
  const uint64_t ticket = PyLong_AsUnsignedLongLong(args[1]);
  if (ticket == static_cast<uint64_t>(-1) && PyErr_Occurred()) return nullptr;
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  BridgeRef bridge = unbox<BridgeRef>(self);
  FutureState& future = future_of(args[0]);
  if (!check_home(future)) return nullptr;
  if (!future.outcome) future.begin_waiting();
  const std::shared_ptr<PendingCall> call = future.call;
  if (!call) {
    bridge->say(ticket);
  } else {
    bridge->begin(ticket, {&runtime->driver(), current_inflow(), call, 0, future.is_edge()});
    bridge->note_observer(ticket,
                          call->observe(future.gather().arrivals_wanted(), [bridge, ticket] { bridge->complete(ticket); }));
  }
  Py_RETURN_NONE;
}

// unwatch(ticket): whoever waited waits no more. What the ticket has kept up ends at once, not with the call.
PyObject* bridge_unwatch(PyObject* self, PyObject* number) {
  const uint64_t ticket = PyLong_AsUnsignedLongLong(number);
  if (ticket == static_cast<uint64_t>(-1) && PyErr_Occurred()) return nullptr;
  if (!in_forked_child()) unbox<BridgeRef>(self)->give_up(ticket);
  Py_RETURN_NONE;
}

// block(ticket, blocks): the actor that runs here has waited for a while, and waits for nothing but what that was watched
// for; or so no more.
PyObject* bridge_block(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "block(ticket, blocks)");
  const uint64_t ticket = PyLong_AsUnsignedLongLong(args[0]);
  if (ticket == static_cast<uint64_t>(-1) && PyErr_Occurred()) return nullptr;
  if (runs_alone() && !in_forked_child() && state().runtime) unbox<BridgeRef>(self)->block(ticket, args[1] == Py_True);
  Py_RETURN_NONE;
}

// An actor's thread waits for a call, and for nothing else: after a while it says so.
class ActorBlocked {
 public:
  explicit ActorBlocked(const std::shared_ptr<PendingCall>& call) : call_(call) {}
  ~ActorBlocked() {
    if (said_ && !in_forked_child()) state().runtime->unblock(current_actor.id.index, *call_);
  }
  ActorBlocked(const ActorBlocked&) = delete;
  ActorBlocked& operator=(const ActorBlocked&) = delete;

  // How long to sleep, at most `limit_ns`.
  int64_t sleep_ns(int64_t limit_ns) const { return said_ ? limit_ns : std::min(limit_ns, CallWatch::kBlockedNs); }
  // The sleep has been interrupted.
  void waits_on(int64_t waited_ns) {
    if (!std::exchange(said_, true)) state().runtime->block(current_actor.id.index, call_, waited_ns);
  }

 private:
  const std::shared_ptr<PendingCall>& call_;
  bool said_ = false;
};

}  // namespace

int wait_for(bool (*ready)(const void*), const void* context, int64_t deadline_ns, PendingCall* call, uint32_t arrivals,
             int64_t* waited_ns, const std::shared_ptr<PendingCall>* only) {
  thread_local Waiter waiter;
  Driver& driver = state().runtime->driver();
  thread_local const bool main_thread = gettid() == getpid();  // the one that looks at signals
  const bool simulated = state().simulated != nullptr;
  const bool never_looks = simulated || (!main_thread && state().worker);
  const int64_t sleep_ns = never_looks ? INT64_MAX : main_thread ? kMainThreadSleepNs : kScriptSleepNs;
  const InflowBlocked blocked(current_inflow().get());
  std::optional<ActorBlocked> watched;
  if (only != nullptr && deadline_ns == kNoDeadline && runs_alone()) watched.emplace(*only);
  if (call != nullptr) call->add_waiter(waiter, arrivals);
  int outcome;
  for (;;) {
    WaitResult result;
    {
      GilRelease release;
      result = driver.wait(waiter, ready, context, deadline_ns, watched ? watched->sleep_ns(sleep_ns) : sleep_ns);
    }
    if (watched && result == WaitResult::kInterrupted) watched->waits_on(waiter.waited_ns());
    if (waited_ns != nullptr) *waited_ns += waiter.waited_ns();
    if (result == WaitResult::kReady) {
      outcome = 1;
      break;
    }
    if (PyErr_CheckSignals() != 0 || (simulated && !check_simulation())) {
      outcome = -1;
      break;
    }
    if (in_forked_child()) {  // a signal's handler has forked
      refuse_dead();
      return -1;
    }
    if (!state().worker && !require_descriptors()) {
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
  FutureState future(nullptr, ranked ? FutureMode::kPortRanked : FutureMode::kPort, 0, Ref::borrow(Py_None));
  future.port = std::move(port);
  return box<FutureState>(type, std::move(future));
}

PyObject* new_future(std::shared_ptr<PendingCall> call, FutureMode mode, uint32_t arrival, PyObject* endpoint,
                     uint64_t one_way_before) {
  auto* type = reinterpret_cast<PyTypeObject*>(state().future_type.get());
  FutureState future(std::move(call), mode, arrival, Ref::borrow(endpoint));
  future.one_way_before = one_way_before;
  PyObject* object = box<FutureState>(type, std::move(future));
  if (object != nullptr && future_of(object).is_of_call()) future_of(object).link();
  return object;
}

std::shared_ptr<PendingCall> new_own_call(AnyRuntime& runtime) {
  auto members = std::make_shared<Members>();
  members->ids.push_back({runtime.node().id(), 0});
  return std::make_shared<PendingCall>(std::move(members));
}

void complete(PendingCall& call, Driver& driver) {
  FrameHeader header;
  header.kind = FrameKind::kReply;
  call.fill(0, Message::make(header, ""), driver);
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

PyObject* py_label(const Label& label) { return py_string(*label); }

// wait_for_unseen(seconds): until calls have an outcome that nobody has looked at, and one-way messages are handled; or, at
// the end of a script, until Ctrl-C.
// -> [(endpoint, messages)] of those that have not been.
PyObject* wait_for_unseen(PyObject*, PyObject* seconds) {
  int64_t deadline_ns;
  if (require_runtime() == nullptr || !deadline_of(seconds, &deadline_ns)) return nullptr;
  const auto is_there = [deadline_ns](const Awaited& awaited) {
    int there = awaited.gather.is_there() ? 1 : 0;
    while (there == 0 && !state().interrupted && clock_ns() < deadline_ns) {
      const int64_t next_look_ns = std::min(deadline_ns, clock_ns() + kMainThreadSleepNs);
      there = wait_for(&Awaited::ready, &awaited, next_look_ns, awaited.call.get(), awaited.gather.arrivals_wanted());
    }
    return there;
  };
  const std::vector<AskedOneWay> asked = ask_about_one_way();
  for (const UnseenCall& unseen : unseen_calls()) {
    if (is_there({unseen.call, *unseen.gather}) < 0) return nullptr;
  }
  Ref list = Ref::steal(PyList_New(0));
  for (const AskedOneWay& one : asked) {
    const int there = list ? is_there({one.refusals, Gather(*one.refusals, Gather::Wants::kEnd)}) : -1;
    if (there < 0) return nullptr;
    if (there == 1) continue;
    const Ref entry = Ref::steal(Py_BuildValue("(NI)", py_label(one.label), one.messages));
    if (!entry || PyList_Append(list.get(), entry.get()) != 0) return nullptr;
  }
  return list.release();
}

// unseen() -> [(call, endpoint, exception or None)]: calls that nobody has looked at, each with a number of its own, which
// an actor has answered with an exception (Ellipsis: one that cannot be decoded), or (None) which have not been answered.
PyObject* unseen(PyObject*, PyObject*) {
  if (require_runtime() == nullptr) return nullptr;
  Ref list = Ref::steal(PyList_New(0));
  for (const UnseenCall& unseen : unseen_calls()) {
    const int64_t rank = unseen.raised_rank();
    if (!list || (unseen.gather->is_there() && rank < 0)) continue;
    Ref error = Ref::borrow(Py_None);
    if (rank >= 0) {
      const auto from = static_cast<uint32_t>(rank);
      const FutureState future(unseen.call, FutureMode::kAll, 0, Ref::borrow(Py_None));
      note_seen(future, *unseen.call, unseen.gather->answer(from), /*at_the_end=*/true);
      error = Ref::steal(exception_of(future, *unseen.call, from, unseen.gather->answer(from)));
      if (!error) {
        PyErr_Clear();
        error = Ref::borrow(Py_Ellipsis);
      }
    }
    const auto number = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(unseen.call.get()));
    const Ref entry = Ref::steal(Py_BuildValue("(KNO)", number, py_label(unseen.label), error.get()));
    if (!entry || PyList_Append(list.get(), entry.get()) != 0) return nullptr;
  }
  return list.release();
}
}  // namespace

bool add_future_types(PyObject* module) {
  static PyMethodDef future_methods[] = {
      {"get", fast(future_get), METH_FASTCALL | METH_KEYWORDS, kGetDoc},
      {"result", fast(future_get), METH_FASTCALL | METH_KEYWORDS, kResultDoc},
      {"_progress", future_progress, METH_NOARGS, nullptr},
      {"_call_number", future_call_number, METH_NOARGS, nullptr},
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
      {"unwatch", bridge_unwatch, METH_O, nullptr},
      {"block", fast(bridge_block), METH_FASTCALL, nullptr},
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
  static PyMethodDef functions[] = {{"bare_future", bare_future, METH_O, nullptr},
                                    {"wait_for_unseen", wait_for_unseen, METH_O, nullptr},
                                    {"unseen", unseen, METH_NOARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  return future_base_type != nullptr && add_type(module, bridge_spec) != nullptr &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace monarch
