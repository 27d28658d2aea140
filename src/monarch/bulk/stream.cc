#include "monarch/bulk/stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "monarch/base/random.h"
#include "monarch/base/system.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/net/tls/tls_channel.h"

namespace monarch {

namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

// The owner closes one on which nothing has been asked for twice as long.
constexpr std::chrono::seconds kIdle(5);
constexpr int64_t kConnectNs = 4'000'000'000;
constexpr int64_t kPatienceNs = 300'000'000;  // of those who wait meanwhile, the first time
constexpr int64_t kAgainNs = 5'000'000'000;  // after one that could not be made
constexpr int64_t kUcxAgainNs = 60'000'000'000;  // after UCX could do nothing: it may have been a shortage
constexpr std::chrono::milliseconds kUcxLoads(10);
constexpr int kTries = 3;  // of a name with several addresses each leads to another
constexpr int64_t kCloseNs = 10'000'000'000;
constexpr char kNotCopied[] = "memory of a device could not be copied";
constexpr int64_t kLookNs = 250'000'000;      // whether the owner still lives
constexpr std::chrono::milliseconds kBusy(5);
// Requests that the owner has before the answers to the first have come, so that it is never idle.
constexpr size_t kAskedMax = 4;
constexpr uint64_t kPieceBytes = 256 * 1024;

BulkOutcome of_code(Code code) { return {code, Refusal::kNone, 0, "", {}}; }

Status request(StreamEnd& end, const BulkOperation& operation, int64_t deadline_ns) {
  const uint64_t size = operation.kind == Kind::kRead ? operation.at.size : operation.local.size();
  const int64_t left_ns = deadline_ns == kNoDeadline ? kNoDeadline : deadline_ns - monotonic_ns();
  ValueWriter value;
  encode(value, StreamRequest{static_cast<uint8_t>(operation.kind), {operation.at, 0, size, 0, kNoDeadline}, left_ns});
  return send_value(end, value.written(), deadline_ns);
}

Result<BulkOutcome> answer_on(StreamEnd& end, int64_t deadline_ns) {
  auto bytes = receive_value(end, deadline_ns);
  if (!bytes) return bytes.error();
  auto body = decode<AnswerBody>(*bytes);
  const auto outcome = body ? outcome_of(*body) : std::nullopt;
  if (!outcome) return Error{ErrorCode::kClosed, "an answer that cannot be read"};
  return *outcome;
}

// In messages: what UCX does not take as it is through memory of our own.
Status receive_by_ucx(StreamEnd& end, const Memory& local, uint64_t size, int64_t deadline_ns) {
  const bool is_direct = end.takes_by_ucx(local);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(is_direct ? 0 : StreamEnd::kUcxBytes);
  for (uint64_t done = 0, count; done < size; done += count) {
    count = std::min(size - done, StreamEnd::kUcxBytes);
    const Memory to = is_direct ? local.piece(done, count) : Memory(bounce.get(), count);
    if (auto came = end.receive_by_ucx(to, deadline_ns); !came) return came;
    if (!is_direct && !local.scatter(done, count, bounce.get())) return Error{ErrorCode::kUnsupported, kNotCopied};
  }
  return Ok{};
}

Status send_by_ucx(StreamEnd& end, const Memory& local, int64_t deadline_ns) {
  const bool is_direct = end.takes_by_ucx(local);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(is_direct ? 0 : StreamEnd::kUcxBytes);
  for (uint64_t done = 0, count; done < local.size(); done += count) {
    count = std::min(local.size() - done, StreamEnd::kUcxBytes);
    if (!is_direct && !local.gather(done, count, bounce.get())) return Error{ErrorCode::kUnsupported, kNotCopied};
    const Memory from = is_direct ? local.piece(done, count) : Memory(bounce.get(), count);
    if (auto sent = end.send_by_ucx(from, deadline_ns); !sent) return sent;
  }
  return Ok{};
}

// `size` bytes; the memory is there.
Status receive_into(StreamEnd& end, const Memory& local, uint64_t size, int64_t deadline_ns) {
  if (end.has_ucx()) return receive_by_ucx(end, local, size, deadline_ns);
  if (local.is_contiguous()) return end.receive({local.data(), size}, deadline_ns);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  for (uint64_t done = 0, count; done < size; done += count) {
    count = std::min(size - done, kPieceBytes);
    if (auto came = end.receive({bounce.get(), count}, deadline_ns); !came) return came;
    if (!local.scatter(done, count, bounce.get())) return Error{ErrorCode::kUnsupported, kNotCopied};
  }
  return Ok{};
}

Status send_from(StreamEnd& end, const Memory& local, int64_t deadline_ns) {
  if (end.has_ucx()) return send_by_ucx(end, local, deadline_ns);
  if (local.is_contiguous()) return end.send({local.data(), local.size()}, deadline_ns);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  for (uint64_t done = 0, count; done < local.size(); done += count) {
    count = std::min(local.size() - done, kPieceBytes);
    if (!local.gather(done, count, bounce.get())) return Error{ErrorCode::kUnsupported, kNotCopied};
    if (auto sent = end.send({bounce.get(), count}, deadline_ns); !sent) return sent;
  }
  return Ok{};
}

std::chrono::nanoseconds until(int64_t time_ns) {
  return std::chrono::nanoseconds(std::max<int64_t>(std::min(time_ns, monotonic_ns() + kLookNs) - monotonic_ns(), 0));
}

}  // namespace

Stream::Stream(NodeId owner, const HelloIdentity& identity, StreamSockets& sockets, Hooks hooks)
    : owner_(owner), identity_(identity), sockets_(sockets), hooks_(std::move(hooks)) {}

Stream::~Stream() { stop(); }

void Stream::submit(BulkOperation operation, int64_t deadline_ns, Done done) {
  add({std::move(operation), deadline_ns, std::move(done)});
}

void Stream::explain(int64_t deadline_ns, std::function<void(Way, std::string)> done) {
  {
    std::unique_lock lock(mutex_);
    const bool is_there = connected_;
    const Way way = way_;
    const std::string why = explanation(is_there);
    lock.unlock();
    if (is_there) return done(way, why);
  }
  add({{}, deadline_ns, [weak = weak_from_this(), done = std::move(done)](const BulkOutcome& outcome) {
         const auto self = weak.lock();
         if (!self) return done(Way::kNone, "");
         std::unique_lock lock(self->mutex_);
         const bool is_there = outcome.code == Code::kDone;
         const Way way = is_there ? self->way_ : Way::kNone;
         const std::string why = self->explanation(is_there);
         lock.unlock();
         done(way, why);
       }});
}

// With the lock.
std::string Stream::explanation(bool is_there) const {
  if (!is_there) return why_not_.empty() ? "" : "tcp: " + why_not_;
  if (way_ != Way::kPlain) return "";
  return "tcp: without TLS" + (why_no_ucx_.empty() ? "" : "; ucx: " + why_no_ucx_);
}

void Stream::add(Task task) {
  task.since_ns = monotonic_ns();
  tasks_.fetch_add(1);
  std::unique_lock lock(mutex_);
  if (!stopped_ && !runs_ && task.since_ns >= not_before_ns_) runs_ = start_thread();
  if (runs_ && !stopped_ && (connected_ || may_wait(task, task.since_ns))) {
    waiting_.push_back(std::move(task));
    changed_.notify_all();
    return;
  }
  lock.unlock();
  finish(std::move(task), of_code(Code::kNotSo));
}

// With the lock.
bool Stream::start_thread() {
  auto stop = std::make_shared<UniqueFd>(sys::make_eventfd());
  auto self = std::make_unique<std::shared_ptr<Stream>>(shared_from_this());
  const auto run = [](void* given) -> void* {
    const std::unique_ptr<std::shared_ptr<Stream>> owned(static_cast<std::shared_ptr<Stream>*>(given));
    (*owned)->run();
    return nullptr;
  };
  pthread_t thread;
  stop_event_ = stop;
  if (!*stop || !sys::start_thread(&thread, run, self.get())) {
    why_not_ = sys::shortage_error("connect to the owner of a buffer").message;
    return false;
  }
  static_cast<void>(self.release());
  pthread_detach(thread);
  ++threads_;
  return true;
}

void Stream::end() {
  std::unique_lock lock(mutex_);
  if (!std::exchange(stopped_, true) && stop_event_ && *stop_event_) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_event_->get(), &one, sizeof one);
  }
  changed_.notify_all();
}

void Stream::stop() {
  end();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return threads_ == 0; });
}

bool Stream::is_at_rest() {
  std::lock_guard lock(mutex_);
  return is_idle() && threads_ == 0;
}

bool Stream::may_go_by_ucx() {
  std::lock_guard lock(mutex_);
  return connected_ ? way_ == Way::kUcx : monotonic_ns() >= no_ucx_before_ns_;
}

// ---- The thread ----

void Stream::run() {
  Session session;
  {
    std::lock_guard lock(mutex_);
    session.stop = stop_event_;
  }
  const Status connected = connect(session);
  {
    std::lock_guard lock(mutex_);
    connected_ = connected.ok();
    if (connected) way_ = session.end->has_ucx() ? Way::kUcx : session.end->is_plain() ? Way::kPlain : Way::kEnciphered;
    why_not_ = connected ? "" : connected.error().message;
    if (!connected) not_before_ns_ = monotonic_ns() + kAgainNs;
  }
  bool broken = !connected;
  while (!broken && wait_for_task(session)) {
    broken = !send_requests(session) || (!session.asked.empty() && !take_answer(session));
  }
  session.end.reset();
  if (broken) give_up_all(session);
  forget_thread_of_tls();  // from here on all may end that this thread does not keep
  std::lock_guard lock(mutex_);
  --threads_;
  changed_.notify_all();
}

// What is left has to go another way. Who comes after that starts a thread of its own.
void Stream::give_up_all(Session& session) {
  std::deque<Task> left;
  left.swap(session.asked);
  {
    std::lock_guard lock(mutex_);
    std::ranges::move(waiting_, std::back_inserter(left));
    waiting_.clear();
    runs_ = connected_ = false;
  }
  for (Task& each : left) finish(std::move(each), of_code(Code::kNotSo));
}

// Nobody touches its memory any more.
void Stream::finish(Task task, BulkOutcome outcome) {
  tasks_.fetch_sub(1);
  task.operation.keeper.reset();
  task.done(std::move(outcome));
}

// With the lock, while there is no connection: whether that goes on waiting for one.
bool Stream::may_wait(const Task& task, int64_t now_ns) const {
  return task.operation.kind == Kind::kFence || (why_not_.empty() && now_ns - task.since_ns < kPatienceNs);
}

// Tells those that have waited for too long; when to come back, or 0: the owner is no more.
int64_t Stream::look() {
  if (hooks_.is_down()) return 0;
  const int64_t now_ns = monotonic_ns();
  int64_t next_ns = now_ns + kLookNs;
  std::vector<std::pair<Task, Code>> late;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return 0;
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const bool waits = connected_ || may_wait(*at, now_ns);
      if (at->deadline_ns > now_ns && waits) {
        next_ns = std::min(next_ns, at->deadline_ns);
        const bool is_impatient = !connected_ && at->operation.kind != Kind::kFence;
        if (is_impatient) next_ns = std::min(next_ns, at->since_ns + kPatienceNs);
        ++at;
        continue;
      }
      late.emplace_back(std::move(*at), waits ? Code::kDeadline : Code::kNotSo);
      at = waiting_.erase(at);
    }
  }
  for (auto& [task, code] : late) finish(std::move(task), of_code(code));
  return next_ns;
}

std::optional<StreamAddress> Stream::find_address(int64_t limit_ns) {
  {
    std::lock_guard lock(mutex_);
    address_.reset();
  }
  hooks_.find_address(limit_ns, [weak = weak_from_this()](StreamAddress found) {
    const auto self = weak.lock();
    if (!self) return;
    std::lock_guard lock(self->mutex_);
    self->address_ = std::move(found);
    self->changed_.notify_all();
  });
  for (;;) {
    const int64_t next_ns = look();
    std::unique_lock lock(mutex_);
    if (address_ || next_ns == 0 || monotonic_ns() >= limit_ns) return address_;
    changed_.wait_for(lock, until(std::min(next_ns, limit_ns)), [this] { return address_ || stopped_; });
  }
}

Status Stream::connect(Session& session) {
  const int64_t limit_ns = monotonic_ns() + kConnectNs;
  const auto address = find_address(limit_ns);
  if (!address) return Error{ErrorCode::kUnavailable, "its process does not answer"};
  if (address->port == 0) return Error{ErrorCode::kUnavailable, address->why_not};
  Status made = Error{ErrorCode::kUnavailable, ""};
  for (int tries = 0; tries < kTries && !made;) {
    bool busy = false;
    auto channel = hooks_.connect(*address, &busy);
    if (channel) {
      const auto look_around = [this] { return look(); };
      session.end = std::make_unique<StreamEnd>(std::move(*channel), sockets_, session.stop->get(), look_around);
      made = greet(session, limit_ns);
    } else {
      made = channel.error();
    }
    tries += !busy;
    if (!made && (look() == 0 || monotonic_ns() >= limit_ns)) return made;
    std::unique_lock lock(mutex_);
    if (busy) changed_.wait_for(lock, kBusy, [this] { return stopped_; });
  }
  return made;
}

Status Stream::greet(Session& session, int64_t limit_ns) {
  auto peer = session.end->greet(HelloRole::kDialer, identity_, limit_ns);
  if (!peer) return peer.error();
  if (*peer != owner_) return Error{ErrorCode::kUnsupported, "another process is at its address"};
  while (session.number == 0) {
    fill_random(&session.number, sizeof session.number);
    session.number &= INT64_MAX;  // what a value holds
  }
  auto said = session.end->send(std::as_bytes(std::span(&session.number, 1)), limit_ns);
  return !said ? said : use_ucx(session, limit_ns);
}

// Where that is wanted, and both sides can. An error: the connection is of no use.
Status Stream::use_ucx(Session& session, int64_t limit_ns) {
  {
    std::lock_guard lock(mutex_);
    if (!hooks_.tries_ucx || !session.end->is_plain() || monotonic_ns() < no_ucx_before_ns_) return Ok{};
  }
  const auto without = [this](const std::string& why) -> Status {
    std::lock_guard lock(mutex_);
    why_no_ucx_ = why;
    no_ucx_before_ns_ = monotonic_ns() + kUcxAgainNs;
    return Ok{};
  };
  while (!UcxEnd::is_loaded()) {
    if (look() == 0) return Error{ErrorCode::kClosed, "it is not wanted any more"};
    if (monotonic_ns() >= limit_ns) return without("it is being loaded");
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kUcxLoads, [this] { return stopped_; });
  }
  auto made = UcxEnd::make();
  if (!made) return without(made.error().message);
  auto address = (*made)->address();
  if (!address) return without(address.error().message);
  StreamRequest request;
  request.kind = StreamRequest::kUseUcx;
  request.address = *address;
  fill_random(&request.tag, sizeof request.tag);
  request.tag &= INT64_MAX;  // what a value holds
  ValueWriter value;
  encode(value, request);
  if (auto sent = send_value(*session.end, value.written(), limit_ns); !sent) return sent;
  auto answer = answer_on(*session.end, limit_ns);
  if (!answer) return answer.error();
  if (answer->code != Code::kDone) return without(answer->text);
  auto theirs = receive_value(*session.end, limit_ns);
  if (!theirs) return theirs.error();
  if (auto there = (*made)->connect(*theirs, request.tag); !there) {
    static_cast<void>(without(there.error().message));
    return there;  // the owner has begun with it: the next connection is without
  }
  session.end->use(std::move(*made));
  std::lock_guard lock(mutex_);
  why_no_ucx_.clear();
  return Ok{};
}

// False: there has been none for a while, or none is to come.
bool Stream::wait_for_task(const Session& session) {
  if (!session.asked.empty()) return true;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kIdle, [this] { return stopped_ || !waiting_.empty(); });
  if (!waiting_.empty()) return true;
  runs_ = connected_ = false;
  return false;
}

// With the lock. Not a write beside anything else; nor what would be late behind the first.
bool Stream::may_ask(const Session& session) const {
  if (waiting_.empty()) return false;
  if (session.asked.empty()) return true;
  const Task& next = waiting_.front();
  return next.operation.kind != Kind::kWrite && next.deadline_ns >= session.asked.back().deadline_ns;
}

// Asks for what waits, as far as the owner is to have it. False: it is broken.
bool Stream::send_requests(Session& session) {
  while (session.asked.size() < kAskedMax) {
    Task task;
    {
      std::lock_guard lock(mutex_);
      if (!may_ask(session)) return true;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (monotonic_ns() >= task.deadline_ns) {
      finish(std::move(task), of_code(Code::kDeadline));
    } else if (task.operation.kind == Kind::kFence) {
      finish(std::move(task), {});
    } else if (task.operation.kind == Kind::kWrite) {
      if (!write(session, std::move(task))) return false;
    } else {
      session.asked.push_back(std::move(task));
      const Task& asked = session.asked.back();
      if (!request(*session.end, asked.operation, asked.deadline_ns)) return false;
    }
  }
  return true;
}

// Where UCX gets nothing through, for whatever reason, the next connection is without. If it has moved anything the reason
// is another one: the owner has dropped the buffer, or ended.
void Stream::note_ucx(const Session& session, const Status& taken) {
  if (taken || !session.end->has_ucx() || session.end->has_moved_by_ucx()) return;
  std::lock_guard lock(mutex_);
  why_no_ucx_ = taken.error().message;
  no_ucx_before_ns_ = monotonic_ns() + kUcxAgainNs;
}

bool Stream::take_answer(Session& session) {
  const Task& task = session.asked.front();
  auto outcome = answer_on(*session.end, task.deadline_ns);
  Status taken = outcome ? Status(Ok{}) : Status(outcome.error());
  if (outcome && outcome->code == Code::kDone) {
    taken = receive_into(*session.end, task.operation.local, task.operation.at.size, task.deadline_ns);
  }
  note_ucx(session, taken);
  if (!taken && taken.error().code != ErrorCode::kDeadline) return false;
  Task over = std::move(session.asked.front());
  session.asked.pop_front();
  finish(std::move(over), taken ? std::move(*outcome) : of_code(Code::kDeadline));
  return taken.ok();
}

// The owner first says that the bytes may come. False: it is broken.
bool Stream::write(Session& session, Task task) {
  const int64_t deadline_ns = task.deadline_ns;
  if (!request(*session.end, task.operation, deadline_ns)) return finish(std::move(task), of_code(Code::kNotSo)), false;
  auto outcome = answer_on(*session.end, deadline_ns);
  const bool goes = outcome && outcome->code == Code::kDone;
  if (goes) {
    auto sent = send_from(*session.end, task.operation.local, deadline_ns);
    note_ucx(session, sent);
    outcome = sent ? answer_on(*session.end, deadline_ns) : Result<BulkOutcome>(sent.error());
  }
  if (outcome) return finish(std::move(task), std::move(*outcome)), true;
  BulkOutcome broken = of_code(outcome.error().code == ErrorCode::kDeadline ? Code::kDeadline : Code::kNotSo);
  goes ? close_there(session, std::move(task), std::move(broken)) : finish(std::move(task), std::move(broken));
  return false;
}

// Bytes may lie in the socket there: before anybody writes anew, nobody is to take them.
void Stream::close_there(const Session& session, Task task, BulkOutcome outcome) {
  if (outcome.code == Code::kDeadline) {
    finish(std::move(task), std::move(outcome));
    return hooks_.close_there(session.number, monotonic_ns() + kCloseNs, [](const BulkOutcome&) {});
  }
  const int64_t deadline_ns = task.deadline_ns;
  auto over = std::make_shared<Task>(std::move(task));  // shared: callbacks must be copyable
  hooks_.close_there(session.number, deadline_ns, [self = shared_from_this(), over, outcome](BulkOutcome closed) {
    self->finish(std::move(*over), closed.code == Code::kDone ? outcome : std::move(closed));
  });
}

}  // namespace monarch
