#include "monarch/actor/native_cell.h"

#include <sched.h>
#include <unistd.h>

#include <tuple>

#include "monarch/actor/calls.h"
#include "monarch/actor/libraries.h"
#include "monarch/base/arch.h"
#include "monarch/base/host_name.h"
#include "monarch/base/system.h"
#include "monarch/wire/error_kind.h"

namespace monarch {

using internal::ExceptionText;

namespace internal {

namespace {
Turn*& current_turn() {
  static thread_local Turn* turn = nullptr;
  return turn;
}
}  // namespace

Turn* Turn::current() { return current_turn(); }
Turn* Turn::exchange_current(Turn* turn) { return std::exchange(current_turn(), turn); }

}  // namespace internal

namespace {
Message* idle_mark() { return reinterpret_cast<Message*>(uintptr_t{1}); }
}  // namespace

namespace {
// In the place of an actor that could not begin.
class EndedCell final : public Cell {
 public:
  EndedCell(Node& node, Failure why) : node_(node), why_(std::move(why)) {}
  void deliver(MessagePtr message) override { node_.refuse(*message, why_); }

 private:
  Node& node_;
  const Failure why_;
};
}  // namespace

std::shared_ptr<Cell> NativeFactory::make(Node& node, ActorIndex index, MessagePtr spawn) {
  if (!pool_->has_thread()) {
    const std::string what = "start a thread for C++ actors in process " + std::to_string(getpid());
    const Failure why = node.end_of_actor(index, spawn->header.rank, Failure::Kind::kActor,
                                          sys::shortage_error(what.c_str()).message);
    node.actor_ended(why);
    node.remove_cell(index, why);
    return std::make_shared<EndedCell>(node, why);  // for what came early
  }
  auto cell = std::make_shared<NativeCell>(node, index, pool_);
  cell->deliver(std::move(spawn));
  return cell;
}

NativeCell::NativeCell(Node& node, ActorIndex index, std::shared_ptr<ActorPool> pool)
    : node_(node), index_(index), pool_(std::move(pool)), inflow_(node, index), inbox_(idle_mark()) {
  self_.node = &node;
  self_.id = {node.id(), index};
}

NativeCell::~NativeCell() {
  running_.reset();  // a coroutine's locals go before the actor that they may point to
  actor_.reset();
  refill();
}

// ---- Inbox and turns ----

void NativeCell::deliver(MessagePtr message) {
  inflow_.arrived(*message);
  Message* raw = message.release();
  Message* head = inbox_.load(std::memory_order_relaxed);
  do {
    raw->next = head == idle_mark() ? nullptr : head;
  } while (!inbox_.compare_exchange_weak(head, raw, std::memory_order_acq_rel, std::memory_order_relaxed));
  if (head == idle_mark()) {
    pool_->schedule(shared_from_this());
  } else if (pool_->sent_to_ready(this, head == nullptr) && Turn::current() != nullptr) {
    slow_down_sender();
  }
}

// An actor that floods another one waits a little for it, so that what is under way stays in the caches and memory
// grows slowly. Bounded, since the receiver may be waiting for the sender; and only while it runs, on another thread.
void NativeCell::slow_down_sender() const {
  constexpr int64_t kLimitNs = 200'000;
  int64_t until_ns = 0;
  for (int rounds = 1;; ++rounds) {
    if (!running_turn_.load(std::memory_order_relaxed)) return;
    Message* head = inbox_.load(std::memory_order_relaxed);
    if (head == nullptr || head == idle_mark()) return;
    arch::pause();
    if (rounds % 64 != 0) continue;
    sched_yield();
    const int64_t now_ns = node_.clock().now_ns();
    if (until_ns == 0) until_ns = now_ns + kLimitNs;
    if (now_ns >= until_ns) return;
  }
}

// Moves what has arrived to the queue, oldest first.
bool NativeCell::refill() {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return false;
  Message* newest = inbox_.exchange(nullptr, std::memory_order_acq_rel);
  if (newest == idle_mark()) return false;
  queue_.take_reversed(newest);
  return !queue_.empty();
}

void NativeCell::run_turn() {
  Turn* const before = exchange_current(this);
  struct Restore {
    Turn* before;
    ~Restore() { exchange_current(before); }
  } restore{before};
  running_turn_.store(true, std::memory_order_relaxed);
  if (running_) {
    if (!drive(false)) return;
    finish();
    note_doing(LastWords::kNothing);
    if (self_.stop_wanted && actor_) stopped(self_.stop_reason);
  }
  for (int count = 0; count < kMessagesPerTurn; ++count) {
    while (queue_.empty() && !refill()) {
      Message* empty = nullptr;
      running_turn_.store(false, std::memory_order_relaxed);
      if (inbox_.compare_exchange_strong(empty, idle_mark(), std::memory_order_acq_rel)) return;
      running_turn_.store(true, std::memory_order_relaxed);
    }
    MessagePtr message = queue_.pop();
    taken_cost_ += Inflow::cost_of(*message);
    if (queue_.empty() || taken_cost_ >= kTakenCostMax) inflow_.taken(std::exchange(taken_cost_, 0));
    if (!handle(std::move(message))) return;  // suspended: somebody else may have the turn already
  }
  running_turn_.store(false, std::memory_order_relaxed);
  pool_->schedule(shared_from_this());
}

bool NativeCell::handle(MessagePtr message) {
  switch (message->header.kind) {
    case FrameKind::kSpawn:
      construct(*message);
      break;
    case FrameKind::kStopActor:
      stop_actor(*message);
      break;
    case FrameKind::kUndeliverable:
      undeliverable(*message);
      break;
    case FrameKind::kActorEnded:
      ask_about_failure();
      break;
    default:
      if (!invoke(std::move(message))) return false;
      note_doing(LastWords::kNothing);
  }
  if (self_.stop_wanted && actor_) stopped(self_.stop_reason);
  return true;
}

void NativeCell::end(Failure::Kind kind, std::string why, std::string origin) {
  actor_.reset();
  inflow_.begin_blocking();  // for good: nobody is held back by an actor that has ended
  node_.activity().leave(std::exchange(last_words_, nullptr));
  epitaph_ = node_.end_of_actor(index_, self_.rank, kind, std::move(why));
  epitaph_->origin = std::move(origin);
  epitaph_->mesh = self_.name;
  epitaph_->coordinates = coordinates_of(self_.rank, self_.sizes);
  if (kind == Failure::Kind::kActor || self_.stop_wanted) node_.actor_ended(*epitaph_);
  node_.remove_cell(index_, *epitaph_);
}

// ---- Beginning and end of the actor ----

namespace {

// (class, path of its library), or with its hash and who has it.
bool read_library_class(ValueReader& reader, std::string_view& class_name, LibraryRef& library) {
  uint32_t count;
  std::string_view path;
  if (!reader.begin_tuple(count)) return false;
  if (count != 2 && count != 4) return reader.refuse_count(4, count);
  if (!reader.str(class_name) || !reader.str(path)) return false;
  library.path = path;
  if (count == 4) {
    ByteSpan hash;
    int64_t source;
    if (!reader.bytes(hash) || !reader.integer(source)) return false;
    library.hash.assign(reinterpret_cast<const char*>(hash.data()), hash.size());
    if (source != 0) library.source = static_cast<NodeId>(source);
  }
  reader.end();
  return true;
}

// The body of a spawn frame up to the arguments, which the constructor takes: a tuple of the class's name, the mesh's
// name, the labels, the sizes, and the tuple of arguments.
bool read_spawn(ValueReader& reader, internal::ActorSelf& self, LibraryRef& library) {
  uint32_t count;
  std::string_view class_name, name;
  if (!internal::begin_tuple_of(reader, 5)) return false;
  if (reader.peek() == ValueTag::kTuple) {  // the library is loaded if the class is not known yet
    if (!read_library_class(reader, class_name, library)) return false;
  } else if (!reader.str(class_name)) {
    return false;
  }
  if (!reader.str(name)) return false;
  self.class_name = class_name;
  self.name = name;
  if (!reader.begin_tuple(count)) return false;
  for (; count > 0; --count) {
    std::string_view label;
    if (!reader.str(label)) return false;
    self.labels.emplace_back(label);
  }
  reader.end();
  if (!reader.begin_tuple(count)) return false;
  for (; count > 0; --count) {
    if (!reader.integer(self.sizes.emplace_back())) return false;
  }
  reader.end();
  return self.labels.size() == self.sizes.size() || reader.refuse("expected as many sizes as labels");
}

std::string no_such_class(const std::string& name) {
  std::string text = "this process knows no C++ actor class '" + name + "' (it knows";
  const char* separator = ": ";
  for (const std::string& known : ActorRegistry::instance().names()) {
    text += separator + known;
    separator = ", ";
  }
  return text + "); load the library that registers it";
}

}  // namespace

const ActorClass* NativeCell::find_class(const LibraryRef& library, std::string* why) {
  ActorRegistry& registry = ActorRegistry::instance();
  const ActorClass* found = registry.find(self_.class_name);
  if (found == nullptr && !library.path.empty()) {
    try {
      const Status loaded = Libraries::instance().find(node_, *this, library);
      if (!loaded) *why = loaded.error().message;
    } catch (const std::exception& error) {  // no thread may wait any more, or there is no memory
      *why = error.what();
    }
    if (!why->empty()) return nullptr;
    found = registry.find(self_.class_name);
  }
  *why = found == nullptr ? no_such_class(self_.class_name)
                          : Libraries::instance().why_another(self_.class_name, library);
  return why->empty() ? found : nullptr;
}

void NativeCell::construct(const Message& message) {
  std::string why;
  LibraryRef library;
  library.source = message.from;
  ValueReader reader(message.body);
  self_.rank = message.header.rank;
  if ((message.header.flags & kFlagPickle) != 0 || !read_spawn(reader, self_, library)) {
    why = "cannot spawn a C++ actor: ";
    why += reader.failed() ? reader.error().message
                           : "its arguments are pickled, and C++ actors take None, bool, int, float, str, bytes and "
                             "tuples, lists and dicts of them";
  } else if (class_ = find_class(library, &why); class_ == nullptr) {
    // why says it
  } else if (class_->ambiguous) {
    why = "two libraries of this process register different C++ actor classes as '" + self_.class_name +
          "'; rename one of them";
  } else {
    try {
      actor_ = class_->construct(reader);
    } catch (const internal::BadArguments& error) {
      why = self_.describe() + " could not be constructed: " + error.what();
    } catch (...) {
      why = "the constructor of " + self_.describe() + " threw " + internal::current_exception_text().to_string();
    }
  }
  if (!why.empty()) {
    fail(std::move(why));
    node_.refuse(message, *epitaph_);
    return;
  }
  enter_last_words();
  ValueWriter none;
  none.none();
  Outgoing done{FrameHeader{}, none.written(), {}};
  node_.reply(message.header, message.from, FrameKind::kReply, done);
}

void NativeCell::enter_last_words() {
  Activity& activity = node_.activity();
  if (!activity.has_room()) return;
  std::vector<std::string> names;
  for (const ActorMethod& method : class_->methods) names.push_back(method.name);
  last_words_ = activity.enter(self_.name, names);
}

void NativeCell::stop_actor(const Message& request) {
  if (!epitaph_) stopped(std::string(request.text()));
  ValueWriter none;
  none.none();
  Outgoing done{FrameHeader{}, none.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, done);
}

void NativeCell::undeliverable(const Message& message) {
  if (!actor_ || node_.is_ending()) return;
  const std::string text = failure_of(message).text();
  try {
    if (!actor_->on_undeliverable(text)) {
      fail(self_.describe() + " failed: a message that it sent could not be delivered: " + text);
    }
  } catch (...) {
    fail(self_.describe() + " failed in on_undeliverable(): " + internal::current_exception_text().to_string());
  }
}

// ---- Failures of what it owns ----

void NativeCell::supervise(MeshFailure failure) {
  const bool told = node_.is_awaited(*failure.why);
  {
    std::lock_guard lock(failures_mutex_);
    failures_.push_back({std::move(failure), told});
  }
  FrameHeader wake;
  wake.kind = FrameKind::kActorEnded;
  MessagePtr message = Message::make(wake, "");
  message->from = node_.id();
  deliver(std::move(message));
}

void NativeCell::ask_about_failure() {
  std::unique_lock lock(failures_mutex_);
  const Failed asked = std::move(failures_.front());
  failures_.pop_front();
  lock.unlock();
  if (!actor_ || node_.is_ending()) return;
  std::string why;
  try {
    if (!actor_->supervise(asked.failure, asked.told)) why = asked.failure.report();
  } catch (...) {
    why = self_.describe() + " failed in supervise(): " + internal::current_exception_text().to_string() +
          "\nThis error occurred while handling another failure:\n" + asked.failure.report();
  }
  if (!why.empty()) end(Failure::Kind::kActor, std::move(why), asked.failure.origin());
}

// ---- Endpoints ----

// False: it has suspended.
bool NativeCell::invoke(MessagePtr message) {
  if (epitaph_) {
    node_.refuse(*message, *epitaph_);
    return true;
  }
  const uint32_t number = message->header.method;
  if (number >= class_->methods.size()) {
    reject(*message, self_.class_name + " has no endpoint number " + std::to_string(number) + " (it has " +
                         std::to_string(class_->methods.size()) + "); are both sides built from the same source?");
    return true;
  }
  const ActorMethod& method = class_->methods[number];
  if ((message->header.flags & kFlagPickle) != 0) {
    reject(*message, self_.class_name + "." + method.name +
                         ": C++ actors take positional None, bool, int, float, str, bytes, and tuples, lists and dicts "
                         "of them; this call has something else (or keywords)");
    return true;
  }
  self_.message_rank = message->header.rank;
  note_doing(number);
  if (method.is_task) return begin_task(std::move(message), method);
  ValueWriter result;
  Task<void> none;
  try {
    ValueReader reader(message->body);
    method.invoke(*actor_, reader, result, none);
  } catch (const internal::BadArguments& error) {
    reject(*message, self_.class_name + "." + method.name + ": " + error.what());
    return true;
  } catch (...) {
    threw(*message, method);
    return true;
  }
  answer(*message, result, method);
  return true;
}

bool NativeCell::begin_task(MessagePtr message, const ActorMethod& method) {
  Running& running = running_.emplace();
  running.request = std::move(message);
  running.method = &method;
  try {
    ValueReader reader(running.request->body);
    method.invoke(*actor_, reader, running.result, running.task);
  } catch (const internal::BadArguments& error) {
    reject(*running.request, self_.class_name + "." + method.name + ": " + error.what());
    running_.reset();
    return true;
  } catch (...) {
    threw(*running.request, method);
    running_.reset();
    return true;
  }
  if (!drive(true)) return false;
  finish();
  return true;
}

// Runs the task until it is done (true) or has suspended on a call that is not decided yet (false): then the turn is
// over, and whoever fills the call makes the cell ready again.
bool NativeCell::drive(bool start) {
  for (;;) {
    if (start) {
      running_->task.start();
    } else {
      self_.message_rank = running_->request->header.rank;
      inflow_.end_blocking();
      std::exchange(resume_, nullptr).resume();
    }
    start = false;
    if (running_->task.done()) return true;
    MONARCH_CHECK(resume_ != nullptr);  // a C++ endpoint may co_await Task and Future, nothing else
    if (awaiting_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  }
}

void NativeCell::resume_after(PendingCall& call, std::coroutine_handle<> frame) {
  resume_ = frame;
  inflow_.begin_blocking();
  awaiting_.store(2, std::memory_order_relaxed);
  running_turn_.store(false, std::memory_order_relaxed);
  // weak: the call may be held by the very coroutine that this cell holds.
  call.observe(0, [weak = weak_from_this()] {
    if (auto cell = weak.lock()) cell->awaited();
  });
}

void NativeCell::awaited() {
  if (awaiting_.fetch_sub(1, std::memory_order_acq_rel) == 1) pool_->schedule(shared_from_this());
}

void NativeCell::finish() {
  Running& running = *running_;
  try {
    running.task.take();
    answer(*running.request, running.result, *running.method);
  } catch (...) {
    threw(*running.request, *running.method);
  }
  running_.reset();
}

// ---- Outcomes ----

void NativeCell::answer(const Message& request, const ValueWriter& result, const ActorMethod& method) {
  if (request.header.token == 0) return;
  if (result.failure() != nullptr) {
    answer_error(request, {"TypeError", "the result of " + self_.class_name + "." + method.name +
                                            " cannot be sent: " + result.failure()});
    return;
  }
  Outgoing reply{FrameHeader{}, result.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, reply);
}

void NativeCell::answer_error(const Message& request, const ExceptionText& error) {
  ValueWriter writer;
  begin_error(writer, ErrorKind::kNative, 4);
  writer.str(error.type);
  writer.str(error.what);
  writer.integer(getpid());
  writer.str(host_name());
  Outgoing reply{FrameHeader{}, writer.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReplyError, reply);
}

// In a handler: user code threw.
void NativeCell::threw(const Message& request, const ActorMethod& method) {
  const ExceptionText error = internal::current_exception_text();
  if (request.header.token != 0) {
    answer_error(request, error);
  } else {
    fail(self_.describe() + " failed in " + method.name + "(), which nobody waits for: " + error.to_string());
  }
}

// The caller's mistake: it is told, and the actor lives.
void NativeCell::reject(const Message& request, const std::string& why) {
  if (request.header.token != 0) {
    answer_error(request, {"TypeError", why});
  } else {
    node_.refuse(request, why);
  }
}

}  // namespace monarch
