#include "actor_cell.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "codec.h"
#include "deadline.h"
#include "forks.h"
#include "future.h"
#include "gil.h"
#include "monarch/actor/calls.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "port.h"
#include "simulation.h"
#include "state.h"
#include "supervision.h"
#include "swarm.h"

namespace monarch {

namespace {

// One hold of the GIL: at most so many messages or so long, then it is offered to others.
constexpr int kBatchMax = 256;
constexpr int64_t kBatchNs = 1'000'000;
constexpr Py_ssize_t kStackArgs = 16;

// Runs code of the user's, which may still be running when the script has ended. A child that it forks does not come back.
PyObject* call_python(PyObject* callable, PyObject* const* args, size_t count) {
  HoldIfUnwound guard;
  PyObject* result = PyObject_Vectorcall(callable, args, count, nullptr);
  guard.returned();
  end_if_forked();
  return result;
}

// A deadline of a message is on the clock of its node.
bool is_expired(int64_t deadline_ns, Node& node) { return deadline_ns != 0 && node.clock().now_ns() >= deadline_ns; }

// A decorator around an async method may answer without it.
bool is_awaitable(PyObject* object) {
  return PyCoro_CheckExact(object) || PyType_GetSlot(Py_TYPE(object), Py_am_await) != nullptr;
}

bool is_user_exception() { return PyErr_ExceptionMatches(PyExc_Exception) != 0; }

// The exception that is set, as an object with its traceback; clears it.
Ref take_exception() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

std::vector<int64_t> sizes_of(PyObject* extent) {
  std::vector<int64_t> found;
  const Ref sizes = Ref::steal(PyObject_GetAttrString(extent, "sizes"));
  for (Py_ssize_t i = 0; sizes && PyList_Check(sizes.get()) && i < PyList_GET_SIZE(sizes.get()); ++i) {
    found.push_back(PyLong_AsLongLong(PyList_GET_ITEM(sizes.get(), i)));
  }
  if (PyErr_Occurred()) PyErr_Clear();
  return found;
}

std::string text_of(PyObject* object) {
  if (object == nullptr) PyErr_Clear();
  return object == nullptr ? "an exception that cannot be shown" : utf8_of(object);
}

}  // namespace

void send_answer(const PyCell::Ticket& ticket, ActorIndex sender, FrameKind kind, const Encoded& encoded) {
  Outgoing reply{FrameHeader{}, encoded.body(), encoded.parts()};
  reply.header.flags = encoded.flags();
  reply.header.sender = sender;
  Node& node = state().runtime->node();
  without_gil_if_large(encoded.total_bytes(), [&] { node.reply(ticket.header, ticket.from, kind, reply); });
}

// ---- The gate ----

namespace {
std::atomic<bool> held{false};
std::mutex gate_mutex;
std::condition_variable gate_opened;
}  // namespace

void hold_actors() {
  if (state().simulated != nullptr) {
    state().simulated->held = true;
  } else {
    held = true;
  }
}

void release_actors() {
  if (state().simulated != nullptr) {
    state().simulated->held = false;
    return;
  }
  std::lock_guard lock(gate_mutex);
  held = false;
  gate_opened.notify_all();
}

void wait_for_release() {
  if (Simulated* here = state().simulated; here != nullptr) {
    if (!here->held) return;
    GilRelease release;
    simulated_wait([](const void* of) { return !static_cast<const Simulated*>(of)->held; }, here, kNoDeadline);
    return;
  }
  if (!held) return;
  GilRelease release;
  std::unique_lock lock(gate_mutex);
  gate_opened.wait(lock, [] { return !held; });
}

// ---- PyCell: messages in ----

void PyCell::deliver(MessagePtr message) {
  const StateScope scope(simulated_);
  inflow_->arrived(*message);
  // Where the whole process ends, that has a limit, and nobody waits for a stop that needs no answer.
  const bool stops = message->header.kind == FrameKind::kStopActor &&
                     (message->header.token != 0 || !state().runtime->is_stopping()) && !stop_watched_.exchange(true);
  if (mailbox_.push(message)) {
    if (stops) watch_stop();
    wake();
    return;
  }
  refuse(std::move(message));
}

// A stop is answered when the actor is over, its clean-up included; anything else at once.
void PyCell::refuse(MessagePtr message) {
  if (message->header.kind == FrameKind::kStopActor) {
    std::lock_guard lock(epitaph_mutex_);
    if (!over_) {
      late_stops_.push(std::move(message));
      return;
    }
  }
  Failure why;
  {
    std::lock_guard lock(epitaph_mutex_);
    if (epitaph_) why = *epitaph_;
  }
  node_.refuse(*message, why);
}

void PyCell::wake() {
  if (swarm_) return swarm_->ready(shared_from_this());
  node_.driver().notify(waiter_);
  loop_wake_.wake();
}

PyCell::Ended PyCell::ended(std::string* why) {
  std::lock_guard lock(epitaph_mutex_);
  if (!epitaph_) return Ended::kNo;
  *why = epitaph_->detail;
  return epitaph_->kind == Failure::Kind::kActor ? Ended::kFailed : Ended::kStopped;
}

// The actor takes nothing more: what waits, and what comes, is answered with the epitaph.
void PyCell::refuse_rest() {
  MessageQueue rest;
  mailbox_.close(rest);
  inflow_->begin_blocking();  // for good: nobody is held back by an actor that has ended
  while (MessagePtr message = rest.pop()) refuse(std::move(message));
}

void PyCell::end(std::string reason, bool failure, std::string origin) {
  {
    std::lock_guard lock(epitaph_mutex_);
    if (ending_) return;
    end_is_failure_ = failure;
    end_reason_ = std::move(reason);
    end_origin_ = std::move(origin);
    end_name_ = name_;
    end_coordinates_ = coordinates_of(rank_, sizes_);
    if (failure || !stop_taken_) node_.actor_ended(end_failure());
    ending_.store(true, std::memory_order_seq_cst);
  }
  wake();  // the actor may be asleep: another thread, or a task of its event loop, may end it
}

void PyCell::owe(const Ticket& ticket) {
  std::lock_guard lock(calls_mutex_);
  owed_.emplace(std::pair(ticket.from, ticket.header.token), ticket);
}
void PyCell::settle(const Ticket& ticket) {
  std::lock_guard lock(calls_mutex_);
  owed_.erase({ticket.from, ticket.header.token});
}

// The call is not handled any more. False: it has been answered, by abandon().
bool PyCell::end_call(const Ticket& ticket) {
  if (ticket.header.token == 0) return true;
  std::lock_guard lock(calls_mutex_);
  for (size_t i = open_calls_.size(); i-- > 0;) {
    if (open_calls_[i].first != ticket.from || open_calls_[i].second.token != ticket.header.token) continue;
    open_calls_[i] = open_calls_.back();
    open_calls_.pop_back();
    return true;
  }
  return false;
}

Failure PyCell::end_failure() const {
  const auto kind = end_is_failure_ ? Failure::Kind::kActor : Failure::Kind::kActorStopped;
  Failure end = node_.end_of_actor(index_, rank_, kind, end_reason_);
  end.origin = end_origin_;
  end.mesh = end_name_;
  end.coordinates = end_coordinates_;
  return end;
}

void PyCell::answer_owed() {
  decltype(owed_) owed;
  {
    std::lock_guard lock(calls_mutex_);
    owed.swap(owed_);
  }
  for (const auto& [who, ticket] : owed) node_.reply_failed(ticket.header, ticket.from, end_failure());
}

// ---- PyCell: one that is stuck when it is to stop ----

namespace {
std::atomic<int64_t> stop_limit_ns{3'000'000'000};  // cleanup_timeout, as in the reference
}

void set_stop_limit(int64_t limit_ns) { stop_limit_ns = limit_ns; }

void PyCell::watch_stop() {
  stop_timer_ = state().runtime->timers().after(stop_limit_ns, [weak = weak_from_this(), steps = steps_.load()] {
    if (const auto cell = weak.lock()) cell->check_stop(steps);
  });
}

// What was sent before the stop has its turn: as long as the actor gets on, it is waited for.
void PyCell::check_stop(uint64_t steps_before) {
  const StateScope scope(simulated_);
  if (ending_) return;  // its clean-up has limits of its own
  if (steps_ != steps_before) return watch_stop();
  abandon();
}

// Whoever waits for it is answered, as if it had ended. Its thread goes on, and ends with what it runs: a thread cannot be
// killed. On the reactor: without the GIL.
void PyCell::abandon() {
  if (stop_taken_.exchange(true)) return;
  MessageQueue rest;
  mailbox_.close(rest);
  inflow_->begin_blocking();
  std::vector<MessagePtr> waiting;
  std::string reason;
  while (MessagePtr message = rest.pop()) {
    if (reason.empty() && message->header.kind == FrameKind::kStopActor) reason = message->text();
    waiting.push_back(std::move(message));
  }
  end("stopped: " + reason, /*failure=*/false);
  std::string name;
  MessageQueue stops;
  {
    std::lock_guard lock(epitaph_mutex_);
    epitaph_ = end_failure();
    over_ = true;
    name = name_;
    stops.take(late_stops_);
  }
  log_line("the actor '" + name + "' in process " + std::to_string(getpid()) + " was to stop and is busy for " +
           std::to_string(stop_limit_ns / 1'000'000) + " ms with one message or its constructor (cleanup_timeout): it " +
           "is left behind, and what it runs goes on");
  for (MessagePtr& message : waiting) refuse(std::move(message));
  while (MessagePtr stop = stops.pop()) node_.refuse(*stop, "");
  decltype(open_calls_) open;
  {
    std::lock_guard lock(calls_mutex_);
    open.swap(open_calls_);
  }
  for (const auto& [from, header] : open) node_.reply_failed(header, from, end_failure());
  answer_owed();
  leave();
  python_factory().forget(this);
  stop_owned_later();
}

// What it owns ends with it, though its own thread cannot see to that. GIL held, on any thread.
void PyCell::stop_owned() {
  if (!identity_ || !state().stop_owned) return;
  PyObject* args[] = {identity_.get()};
  const Ref asked = Ref::steal(call_python(state().stop_owned.get(), args, 1));
  if (!asked) PyErr_WriteUnraisable(nullptr);
}

void PyCell::stop_owned_later() {
  if (state().simulated != nullptr) {
    return start_simulated_thread(state(), "monarch-stop-owned", [cell = shared_from_this()] { cell->stop_owned(); });
  }
  pthread_t thread;
  auto cell = std::make_unique<std::shared_ptr<PyCell>>(shared_from_this());
  const auto run = [](void* given) -> void* {
    const std::unique_ptr<std::shared_ptr<PyCell>> kept(static_cast<std::shared_ptr<PyCell>*>(given));
    GilThread gil;
    HoldIfUnwound guard;
    (*kept)->stop_owned();
    guard.returned();
    kept->reset();  // with the GIL
    return nullptr;
  };
  if (!sys::start_thread(&thread, run, cell.get())) {
    return log_line("what it owns is not asked to end: " + sys::shortage_error("start a thread for it").message);
  }
  static_cast<void>(cell.release());  // the thread's
  pthread_detach(thread);
}

// ---- PyCell: life ----

void PyCell::set_up(PyObject* instance, PyObject* identity, PyObject* extent, Methods methods, bool supervises) {
  supervises_ = supervises;
  instance_ = Ref::borrow(instance);
  identity_ = Ref::borrow(identity);
  Ref name = Ref::steal(PyObject_GetAttrString(identity, "name"));
  {
    std::string text = text_of(name.get());
    std::vector<int64_t> sizes = sizes_of(extent);
    std::lock_guard lock(epitaph_mutex_);
    name_ = std::move(text);
    sizes_ = std::move(sizes);
    methods_ = std::move(methods);
  }
  enter_last_words();
  extent_ = Ref::borrow(extent);
  FrameHeader whole;
  whole.rank = rank_;
  whole.epoch = spawn_epoch_;
  const MessagePtr message = Message::make(whole, "");
  set_context(*message);
}

PyCell::PyCell(Node& node, ActorIndex index, uint32_t rank, std::shared_ptr<Swarm> swarm)
    : node_(node),
      simulated_(simulated_state_of(node.id())),
      index_(index),
      rank_(rank),
      spawn_epoch_(swarm->spawn_epoch()),
      swarm_(std::move(swarm)),
      inflow_(std::make_shared<Inflow>(node, index, swarm_->inflow())),
      loop_wake_(node.driver()) {}

std::string PyCell::describe_exception(PyObject* exception) const {
  PyObject* args[] = {exception, identity()};
  Ref text = Ref::steal(PyObject_Vectorcall(state().format_failure.get(), args, 2, nullptr));
  if (!text) PyErr_Clear();
  return text_of(text.get());
}

std::string PyCell::name_of(int64_t method) const {
  if (method == kConstructor) return "__init__";
  if (method == kCleanUp) return "__cleanup__";
  if (method == kSupervise) return "__supervise__";
  if (method == kUndeliverable) return "_handle_undeliverable_message";
  const bool is_known = methods_ && method >= 0 && static_cast<size_t>(method) < methods_->size();
  return is_known ? (*methods_)[static_cast<size_t>(method)].name : "";
}

void PyCell::enter_last_words() {
  Activity& activity = node_.activity();
  if (!activity.has_room()) return;
  std::vector<std::string> names;
  for (const Method& method : *methods_) names.push_back(method.name);
  last_words_ = activity.enter(name_, names);
  note_doing(doing_.load(std::memory_order_relaxed));
}

void PyCell::note_doing(int64_t what) {
  doing_.store(what, std::memory_order_relaxed);
  if (last_words_ != nullptr) last_words_->doing.store(what, std::memory_order_relaxed);
}

bool PyCell::describe(RunningActor* running) {
  std::vector<uint32_t> open;
  {
    std::lock_guard lock(calls_mutex_);
    for (const auto& [from, header] : open_calls_) open.push_back(header.method);
  }
  std::sort(open.begin(), open.end());
  open.erase(std::unique(open.begin(), open.end()), open.end());
  const int64_t doing = doing_.load(std::memory_order_relaxed);
  const bool awaits_hook = awaiting_.load(std::memory_order_relaxed) == kUndeliverable;
  if (doing == kNothing && !awaits_hook && open.empty()) return false;
  std::lock_guard lock(epitaph_mutex_);
  running->thread = thread_.load(std::memory_order_relaxed);
  running->name = name_;
  running->rank = rank_;
  running->doing = name_of(doing);
  for (const uint32_t method : open) {
    if (method != doing) running->waiting.push_back(name_of(method));
  }
  if (awaits_hook) running->waiting.push_back(name_of(kUndeliverable));
  return true;
}

// What `token` has asked for waits behind what the actor does, or is that. Not so, once it has begun, what is answered
// through a port, which others may have by now, nor a coroutine that goes on beside it.
std::optional<Cell::Occupied> PyCell::occupied(NodeId caller, uint64_t token) {
  int64_t method = doing_.load(std::memory_order_relaxed);
  if (method == kNothing) method = awaiting_.load(std::memory_order_relaxed);
  if (method == kNothing || method == kCleanUp) return std::nullopt;
  int64_t called = token == 0 ? kNothing : mailbox_.method_of(caller, token);
  bool begun = false, has_port = false;
  if (token != 0 && called < 0) {
    std::lock_guard lock(calls_mutex_);
    const auto is_it = [&](const auto& call) { return call.first == caller && call.second.token == token; };
    const auto open = std::ranges::find_if(open_calls_, is_it);
    if (open == open_calls_.end()) return std::nullopt;
    called = open->second.method;
    begun = true;
    has_port = (open->second.flags & (kFlagPort | kFlagGivenPort)) != 0;
  }
  std::lock_guard lock(epitaph_mutex_);
  const auto waits_for_its_end = [this](int64_t number) {
    const auto index = static_cast<size_t>(number);
    if (!methods_ || index >= methods_->size()) return false;
    const Method& its = (*methods_)[index];
    return its.kind != MethodKind::kConcurrent && !its.explicit_port;
  };
  if (begun && (has_port || !waits_for_its_end(called))) return std::nullopt;
  Occupied occupied;
  occupied.who = "rank " + std::to_string(rank_) + " of " + name_ + " (pid " + std::to_string(getpid()) + ")";
  occupied.doing = name_of(method);
  occupied.called = name_of(called);
  occupied.queued = !begun;
  return occupied;
}

void PyCell::enter() {
  thread_local const pid_t thread = static_cast<pid_t>(syscall(SYS_gettid));
  thread_.store(thread, std::memory_order_relaxed);
  current_actor = {{node_.id(), index_}, swarm_ ? swarm_->inflow() : inflow_, swarm_.get()};
}

void PyCell::enter_hook() {
  if (context_) make_context_current();
  if (deadlines_in_use()) set_message_deadline(deadline_ns_ = 0);
}

void PyCell::in_hook(bool begins) { note_doing(begins ? kSupervise : kNothing); }

void PyCell::report_hook(PyObject* exception) { log_line("__cleanup__ failed: " + describe_exception(exception)); }

bool PyCell::construct(PyObject* self, PyObject* value, bool* is_async, Ref* failure) {
  note_doing(kConstructor);
  Ref rank = Ref::steal(PyLong_FromUnsignedLong(rank_));
  if (value != nullptr && rank) {
    PyObject* args[] = {self, value, rank.get()};
    Ref outcome = Ref::steal(call_python(state().construct.get(), args, 3));
    *is_async = has_loop_ = outcome.get() == Py_True;
  }
  note_doing(kNothing);
  if (!PyErr_Occurred()) return true;
  *failure = take_exception();
  end(describe_exception(failure->get()), /*failure=*/true);
  return false;
}

void PyCell::run() {
  enter();
  Ref self = Ref::steal(new_cell_object(shared_from_this()));
  wait_for_release();
  if (is_simulation_over()) return vanish();
  Ref value = Ref::steal(decode_value(*spawn_));
  spawn_.reset();
  bool is_async = false;
  Ref failure;
  const bool constructed = construct(self.get(), value.get(), &is_async, &failure);
  value = Ref();
  if (is_simulation_over()) return vanish();
  if (constructed && is_async) {
    PyObject* args[] = {self.get()};
    Ref ran = Ref::steal(call_python(state().run_async.get(), args, 1));
    if (!ran && is_simulation_over()) return vanish();
    if (!ran) fail_with_current_exception("its event loop ended");
  } else if (constructed) {
    run_sync();
  }
  if (is_simulation_over()) return vanish();
  end_life(self.get(), failure.get());
  current_actor = {};
}

// Its simulated process has died some time ago: nothing of its end is seen by anybody.
void PyCell::vanish() {
  PyErr_Clear();
  loop_wake_.close();
  Methods ended;
  {
    std::lock_guard lock(epitaph_mutex_);
    ended.swap(methods_);
  }
  instance_ = identity_ = extent_ = scalar_extent_ = context_ = Ref();
  spawn_.reset();
  current_actor = {};
}

void PyCell::write_epitaph() {
  std::lock_guard lock(epitaph_mutex_);
  epitaph_ = end_failure();
}

// From here on the directory answers for it, with the epitaph.
void PyCell::leave() {
  if (stop_timer_ != 0) state().runtime->timers().cancel(stop_timer_);  // which would keep its memory
  if (!left_.exchange(true)) node_.remove_cell(index_, end_failure());
}

void PyCell::never_begins(const std::string& why) {
  end(why, /*failure=*/true);
  over_ = true;
  spawn_.reset();
  write_epitaph();
  refuse_rest();
  leave();
}

void PyCell::close() {
  if (!ending_) return;
  write_epitaph();
  refuse_rest();
}

void PyCell::end_life(PyObject* self, PyObject* failure) {
  close();
  loop_wake_.close();
  // Hooks run after the mailbox is closed, so that nobody waits for this actor meanwhile; async ones have run.
  note_doing(kCleanUp);
  if (instance_) {
    enter_hook();
    PyObject* args[] = {self, failure == nullptr ? Py_None : failure};
    Ref ended = Ref::steal(call_python(state().end_actor.get(), args, 2));
    if (!ended && is_simulation_over()) return vanish();
    if (!ended) {
      Ref problem = take_exception();
      report_hook(problem.get());
    }
  }
  answer_owed();
  note_doing(kNothing);
  node_.activity().leave(std::exchange(last_words_, nullptr));
  Methods ended;
  {
    std::lock_guard lock(epitaph_mutex_);
    ended.swap(methods_);
  }
  instance_ = identity_ = extent_ = scalar_extent_ = context_ = Ref();
  if (stop_request_.token != 0) {
    Outgoing done{FrameHeader{}, {}, {}};
    Encoded nothing;
    nothing.encode_value(Py_None);
    done.body = nothing.body();
    node_.reply(stop_request_, stop_from_, FrameKind::kReply, done);
  }
  MessageQueue stops;
  {
    std::lock_guard lock(epitaph_mutex_);
    over_ = true;
    stops.take(late_stops_);
  }
  while (MessagePtr stop = stops.pop()) node_.refuse(*stop, "");
  leave();
}

void PyCell::run_sync() {
  Ref coroutine;
  Ticket ticket;
  for (;;) {
    const int64_t until_ns = clock_ns() + kBatchNs;
    for (int count = 0;; ++count) {
      const Step outcome = step(&coroutine, &ticket);
      if (outcome == Step::kEnd) return;
      if (outcome == Step::kIdle) {
        node_.driver().poll_once();
        if (!has_work()) break;
      }
      if (count % 32 == 31 && (count >= kBatchMax || clock_ns() > until_ns)) break;
    }
    GilRelease release;
    if (has_work()) continue;
    auto ready = [](const void* self) { return static_cast<const PyCell*>(self)->has_work(); };
    node_.driver().wait(waiter_, ready, this, kNoDeadline);
    if (is_simulation_over()) return;
  }
}

bool PyCell::poll_briefly() {
  auto ready = [](const void* self) { return static_cast<const PyCell*>(self)->has_work(); };
  if (ready(this)) return true;
  const int64_t start_ns = clock_ns();
  bool found;
  {
    GilRelease release;
    found = node_.driver().poll_briefly(ready, this);
  }
  if (!found) idle_since_ns_ = start_ns;
  return found;
}

// ---- PyCell: one message ----

void PyCell::set_context(const Message& message) {
  constexpr uint8_t kViewFlags = kFlagScalarView | kFlagView;
  const uint8_t flags = message.header.flags & kViewFlags;
  ByteSpan view;
  if ((flags & kFlagView) != 0 && !message.parts.empty()) {
    view = {message.parts.back().data, message.parts.back().size};
  }
  const uint32_t rank = (flags & kFlagScalarView) != 0 ? 0 : message.header.rank;
  const bool same = context_ && rank == context_rank_ && flags == context_flags_ &&
                    message.header.epoch == context_epoch_ &&
                    std::equal(view.begin(), view.end(), context_view_.begin(), context_view_.end());
  if (same) {
    if (swarm_) make_context_current();  // others of the swarm run on this thread too
    return;
  }
  Ref extent = extent_;
  uint32_t view_rank = rank;
  if ((flags & kFlagScalarView) != 0) {
    if (!scalar_extent_) {
      Ref none = Ref::steal(PyTuple_New(0));
      PyObject* args[] = {none.get(), none.get()};
      scalar_extent_ = Ref::steal(PyObject_Vectorcall(state().make_extent.get(), args, 2, nullptr));
    }
    extent = scalar_extent_;
  } else if ((flags & kFlagView) != 0) {
    // (labels, sizes), and for `choose` the rank in that mesh
    FrameHeader header;
    const MessagePtr part =
        Message::make(header, {reinterpret_cast<const char*>(view.data()), view.size()});
    Ref described = Ref::steal(decode_value(*part));
    if (described && PyTuple_CheckExact(described.get()) && PyTuple_GET_SIZE(described.get()) >= 2) {
      PyObject* args[] = {PyTuple_GET_ITEM(described.get(), 0), PyTuple_GET_ITEM(described.get(), 1)};
      extent = Ref::steal(PyObject_Vectorcall(state().make_extent.get(), args, 2, nullptr));
      if (PyTuple_GET_SIZE(described.get()) == 3) {
        view_rank = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(described.get(), 2)));
      }
    }
  }
  if (!extent) PyErr_Clear();
  message_rank_ = view_rank;
  context_ = Ref::steal(new_context(identity_, extent ? extent : extent_, view_rank, index_, message.header.epoch));
  context_rank_ = rank;
  context_flags_ = flags;
  context_epoch_ = message.header.epoch;
  context_view_.assign(view.begin(), view.end());
  make_context_current();
}

void PyCell::make_context_current() {
  Ref token = Ref::steal(PyContextVar_Set(state().context_var.get(), context_.get()));
  if (!token) PyErr_Clear();
}

void PyCell::set_deadline(uint64_t deadline_ns) {
  // On a shared thread another actor may have set it meanwhile.
  if (deadline_ns != deadline_ns_ || (swarm_ && deadlines_in_use())) set_message_deadline(deadline_ns_ = deadline_ns);
}

// The result, or null if an error has been answered. `ticket` is told whether the method answers through a port.
Ref PyCell::call_method(const Method& method, const Message& message, Ticket& ticket) {
  CallArguments call;
  if (!decode_call(message, &call)) {
    finish_error(ticket);
    return Ref();
  }
  const bool given_port = (message.header.flags & kFlagGivenPort) != 0;
  if (given_port && PyTuple_GET_SIZE(call.args.get()) > 0) {
    set_port_rank(PyTuple_GET_ITEM(call.args.get(), 0), message_rank_);
  }
  // The method answers through the port; what it returns or leaves unsaid is not an answer.
  ticket.explicit_port = given_port || method.explicit_port || (message.header.flags & kFlagPort) != 0;
  Ref port;
  const bool needs_port = ticket.explicit_port && !given_port;
  if (needs_port) port = Ref::steal(new_reply_port(ticket, *this));
  Ref result = Ref::steal(needs_port && !port ? nullptr : invoke(method, call, port.get()));
  if (!result) finish_error(ticket);  // before the port is dropped, which would answer by itself
  return result;
}

PyObject* PyCell::invoke(const Method& method, const CallArguments& call, PyObject* port) {
  const Py_ssize_t count = PyTuple_GET_SIZE(call.args.get());
  const Py_ssize_t extra = port == nullptr ? 1 : 2;  // self, and the response port
  if (count <= kStackArgs && !call.kwargs) {
    PyObject* stack[kStackArgs + 3];
    stack[1] = instance_.get();
    stack[2] = port;
    for (Py_ssize_t i = 0; i < count; ++i) stack[1 + extra + i] = PyTuple_GET_ITEM(call.args.get(), i);
    return call_python(method.function.get(), stack + 1,
                       static_cast<size_t>(count + extra) | PY_VECTORCALL_ARGUMENTS_OFFSET);
  }
  Ref args = Ref::steal(PyTuple_New(count + extra));
  if (!args) return nullptr;
  PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(instance_.get()));
  if (port != nullptr) PyTuple_SET_ITEM(args.get(), 1, Py_NewRef(port));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(args.get(), i + extra, Py_NewRef(PyTuple_GET_ITEM(call.args.get(), i)));
  }
  HoldIfUnwound guard;
  PyObject* result = PyObject_Call(method.function.get(), args.get(), call.kwargs.get());
  guard.returned();
  end_if_forked();
  return result;
}

PyCell::Step PyCell::step(Ref* coroutine, Ticket* ticket) {
  end_if_forked();  // by code that is called from elsewhere, such as a destructor
  if (ending_) {
    set_deadline(0);  // what follows, hooks among it, is not done for a caller
    return Step::kEnd;
  }
  if (is_to_supervise() && step_supervises()) {
    if (!has_loop_) {
      supervise_one();
      return Step::kDone;
    }
    *ticket = Ticket{};
    ticket->concurrent = true;
    *coroutine = begin_supervising();
    return *coroutine ? Step::kCoroutine : Step::kDone;
  }
  if (mailbox_.empty()) return Step::kIdle;
  MessagePtr message = mailbox_.pop();
  if (!message) return Step::kIdle;  // abandon() has taken it
  if (idle_since_ns_ != 0) Driver::note_wait(clock_ns() - std::exchange(idle_since_ns_, 0));
  steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  inflow_->taken(Inflow::cost_of(*message));
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kStopActor) {
    stop_taken_ = true;
    stop_request_ = header;
    stop_from_ = message->from;
    end("stopped: " + std::string(message->text()), /*failure=*/false);
    return Step::kDone;
  }
  if (header.kind == FrameKind::kUndeliverable) {
    *ticket = Ticket{header, message->from, message->deadline_ns};
    ticket->header.token = 0;
    handle_undeliverable(*message, coroutine);
    return *coroutine ? Step::kCoroutine : Step::kDone;
  }
  *ticket = Ticket{header, message->from, message->deadline_ns};
  if (header.method >= methods_->size()) {
    node_.refuse(*message, "the actor has no such endpoint");
    return Step::kDone;
  }
  const Method& method = (*methods_)[header.method];
  set_deadline(static_cast<uint64_t>(message->deadline_ns));
  if (is_expired(message->deadline_ns, node_)) return Step::kDone;  // its caller has given up
  set_context(*message);
  if (header.token != 0) {
    std::lock_guard lock(calls_mutex_);
    open_calls_.emplace_back(message->from, header);
  }
  const uint32_t header_method = header.method;
  note_doing(header_method);
  Ref result = call_method(method, *message, *ticket);
  note_doing(kNothing);
  message.reset();  // arguments that the user kept live on by themselves
  if (!result) return Step::kDone;
  if (method.kind == MethodKind::kSync || !is_awaitable(result.get())) {
    finish(*ticket, result.get());
    return Step::kDone;
  }
  ticket->concurrent = method.kind == MethodKind::kConcurrent;
  ticket->is_awaited = true;
  if (last_words_ != nullptr) last_words_->begin_waiting(header_method);
  if (!ticket->concurrent) awaiting_.store(header_method, std::memory_order_relaxed);
  *coroutine = std::move(result);
  return Step::kCoroutine;
}

void PyCell::send_reply(const Ticket& ticket, FrameKind kind, Encoded& encoded) {
  // Its caller says that the deadline has passed, by its own clock: an answer that says something else must not be first.
  if (is_expired(ticket.deadline_ns, node_)) return;
  send_answer(ticket, index_, kind, encoded);
}

void PyCell::awaited(const Ticket& ticket) {
  if (ticket.is_awaited && last_words_ != nullptr) last_words_->end_waiting(ticket.header.method);
}

bool PyCell::finish(const Ticket& ticket, PyObject* result) {
  end_if_forked();
  if (!ticket.concurrent) awaiting_.store(kNothing, std::memory_order_relaxed);
  if (ticket.header.token == 0 || ticket.explicit_port) {
    end_call(ticket);
    return true;
  }
  const bool is_reduced = (ticket.header.flags & kFlagReduce) != 0, is_kept = (ticket.header.flags & kFlagKeep) != 0;
  Ref kept;
  if (is_reduced && is_kept) {
    result = Py_None;  // nobody wants to know it
  } else if (is_kept) {
    const FrameHeader& header = ticket.header;
    kept = Ref::steal(PyObject_CallFunction(state().keep.get(), "OKKI", result, ticket.from, header.token, header.rank));
    if (!kept) return finish_error(ticket);
    result = kept.get();
  }
  Encoded encoded;
  const bool is_encoded = is_reduced ? encoded.encode_for_reducer(result) : encoded.encode_value(result, Contents::kResult);
  if (!is_encoded) return finish_error(ticket);
  if (!end_call(ticket)) return true;
  send_reply(ticket, FrameKind::kReply, encoded);
  return true;
}

bool PyCell::finish_error(const Ticket& ticket) {
  end_if_forked();
  if (!ticket.concurrent) awaiting_.store(kNothing, std::memory_order_relaxed);
  if (!end_call(ticket)) {
    PyErr_Clear();
    return true;
  }
  if (ticket.header.token == 0 || ticket.explicit_port || !is_user_exception()) return fail_call(ticket, "");
  Ref exception = take_exception();
  if ((ticket.header.flags & kFlagKeep) != 0) {  // its caller will let go of as many results as it has asked for
    const FrameHeader& of = ticket.header;
    Ref kept = Ref::steal(PyObject_CallFunction(state().keep.get(), "OKKI", Py_None, ticket.from, of.token, of.rank));
    if (!kept) PyErr_Clear();
  }
  Ref packed = Ref::steal(PyObject_CallOneArg(state().pack_answer.get(), exception.get()));
  Encoded encoded;
  if (!packed || !(encoded.encode_scalars(packed.get()) || encoded.encode_pickled(packed.get()))) {
    return fail_call(ticket, "an exception could not be sent to its caller");
  }
  send_reply(ticket, FrameKind::kReplyError, encoded);
  return true;
}

// The exception that is set ends the actor, and is what the caller is told: the request has left the mailbox, nobody else
// answers it.
bool PyCell::fail_call(const Ticket& ticket, const char* while_doing) {
  fail_with_current_exception(while_doing);
  if (ticket.header.token != 0) node_.reply_failed(ticket.header, ticket.from, end_failure());
  return false;
}

void PyCell::fail_with_current_exception(const char* while_doing) {
  Ref exception = take_exception();
  std::string text = describe_exception(exception.get());
  if (*while_doing != 0) text = std::string(while_doing) + ": " + text;
  end(std::move(text), /*failure=*/true);
}

// ---- PyCell: failures of what it owns ----

void PyCell::supervise(MeshFailure failure) {
  const StateScope scope(simulated_);
  if (!supervises_) return watch_failure(std::move(failure), shared_from_this());
  {
    std::lock_guard lock(failures_mutex_);
    failures_.push_back(std::move(failure));
    failures_waiting_.store(true, std::memory_order_seq_cst);
  }
  wake();
  loop_wake_.ring();
}

bool PyCell::next_failure(MeshFailure* failure) {
  std::lock_guard lock(failures_mutex_);
  // What has been made anew meanwhile needs nobody's decision.
  while (!failures_.empty() && !node_.supervisor().is_current(failures_.front())) failures_.pop_front();
  if (failures_.empty() || ending_) {
    supervising_ = false;
    failures_waiting_ = !failures_.empty() && !ending_;
    return false;
  }
  *failure = std::move(failures_.front());
  failures_.pop_front();
  failures_waiting_ = !failures_.empty();
  return true;
}

// One hook at a time, one failure after the other.
Ref PyCell::begin_supervising() {
  if (!is_to_supervise() || ending_) return Ref();
  Ref self = Ref::steal(new_cell_object(shared_from_this()));
  Ref coroutine = Ref::steal(PyObject_CallOneArg(state().supervise_all.get(), self.get()));
  if (!coroutine) {
    fail_with_current_exception("__supervise__");
  } else {
    supervising_ = true;
  }
  return coroutine;
}

void PyCell::supervise_one() {
  MeshFailure failure;
  if (!next_failure(&failure)) return;
  enter_hook();
  Ref self = Ref::steal(new_cell_object(shared_from_this()));
  Ref told = Ref::steal(describe_failure(failure));
  PyObject* args[] = {self.get(), told.get()};
  note_doing(kSupervise);
  Ref asked = Ref::steal(told ? call_python(state().supervise.get(), args, 2) : nullptr);
  note_doing(kNothing);
  if (!asked) fail_with_current_exception("__supervise__");
}

// A one-way message of ours found nobody: the hook decides whether that ends us (contract clause 5). An async hook is a
// coroutine to be awaited, which ends us itself.
void PyCell::handle_undeliverable(const Message& message, Ref* coroutine) {
  if (state().runtime->is_stopping()) return;  // all are ending: that somebody was faster is no failure
  enter_hook();
  Ref self = Ref::steal(new_cell_object(shared_from_this()));
  Ref text = Ref::steal(py_string(failure_of(message).text()));
  const ActorId dest = undeliverable_dest(message);
  Ref address = Ref::steal(Py_BuildValue("(KK)", dest.node, dest.index));
  PyObject* args[] = {self.get(), text.get(), address.get()};
  note_doing(kUndeliverable);
  Ref outcome = Ref::steal(call_python(state().undeliverable.get(), args, 3));
  note_doing(kNothing);
  if (!outcome) {
    fail_with_current_exception("_handle_undeliverable_message");
  } else if (PyCoro_CheckExact(outcome.get())) {
    awaiting_.store(kUndeliverable, std::memory_order_relaxed);
    *coroutine = std::move(outcome);
  }
}

}  // namespace monarch
