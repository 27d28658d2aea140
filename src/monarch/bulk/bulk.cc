#include "monarch/bulk/bulk.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "monarch/actor/calls.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/bulk/streams.h"
#include "monarch/bulk/transfer.h"

namespace monarch {

namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

// What is done on the thread that asks for it, if nobody else has to be asked: some tens of microseconds. To give it to
// another thread, and to hear of its end, takes as long.
constexpr uint64_t kNowBytesMax = 1024 * 1024;
// A write with more bytes is fetched by a neighbour; to fewer a message costs less than the kernel's copy.
constexpr uint64_t kPullMin = 64 * 1024;
// What a process writes itself to a neighbour's memory; more is fetched by several threads of the owner.
constexpr uint64_t kPushMax = uint64_t{16} << 20;
// Pieces of a copy within this process, through memory that stays in the caches.
constexpr uint64_t kBounceBytes = 256 * 1024;
// Memory of others stays mapped so long, or up to twice that, after it was read last; that keeps what they have dropped.
constexpr int64_t kIdleNs = 2'000'000'000;
constexpr int64_t kAskAgainNs = 1'000'000'000;  // for an admission, after a shortage
// Operations of one submit() that are under way: each may have some MiB in a link.
constexpr size_t kRunningMax = 16;
// Of those whom this process has met the dead are looked for when there are twice as many, and so many more.
constexpr size_t kMetMin = 16;
// Copies run at the speed of the memory, which a few threads fill.
size_t copy_threads() { return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 4); }

BulkOutcome refused(Refusal why) { return {Code::kRefused, why, 0, "", {}}; }

// What is written into the part of a buffer, what is read into memory of this process.
bool fits(const BulkOperation& operation) {
  if (operation.kind == Kind::kRead) return operation.local.size() >= operation.at.size;
  return operation.kind != Kind::kWrite || operation.local.size() <= operation.at.size;
}

BulkOutcome of_neighbour(Neighbour::Outcome outcome, Refusal why) {
  switch (outcome) {
    case Neighbour::Outcome::kDone:
      return {};
    case Neighbour::Outcome::kRefused:
      return refused(why);
    case Neighbour::Outcome::kFault:
      return {Code::kFault, Refusal::kNone, 0, "", {}};
    case Neighbour::Outcome::kDeadline:
      return {Code::kDeadline, Refusal::kNone, 0, "", {}};
    default:
      return {Code::kNotSo, Refusal::kNone, 0, "", {}};
  }
}

// Of a write: the owner knows better, or whoever knows of its end does. There is memory that the kernel writes to for
// the owner only (that of drivers, memfd_secret), and takes for none here.
bool is_for_owner(Neighbour::Outcome outcome) {
  return outcome == Neighbour::Outcome::kGone || outcome == Neighbour::Outcome::kRefused ||
         outcome == Neighbour::Outcome::kFault;
}

// Operations one after another, as far as fences ask for that. shared: with the outcomes that are to come.
class Batch : public std::enable_shared_from_this<Batch> {
 public:
  // `is_here`: it may be done on this thread, which is the caller's.
  using Start = std::function<void(BulkOperation, bool is_here, std::function<void(BulkOutcome)>)>;
  Batch(std::vector<BulkOperation> operations, Start start, Bulk::Done done)
      : operations_(std::move(operations)), start_(std::move(start)), done_(std::move(done)) {
    const auto is_none = [](const BulkOperation& each) { return each.kind == Kind::kFence; };
    outcomes_.resize(operations_.size() - static_cast<size_t>(std::ranges::count_if(operations_, is_none)));
  }

  // Begins what may begin, at first and whenever something has ended. One thread at a time: operations that end as they
  // begin are seen by the one that has begun them, so that its stack does not grow with their number.
  void go_on(bool is_caller = false) {
    uint64_t bytes = 0;
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(looking_, true)) return;
    }
    for (;;) {
      BulkOperation next;
      size_t slot = 0;
      bool is_end = false;
      {
        std::lock_guard lock(mutex_);
        const bool is_fence = at_ < operations_.size() && operations_[at_].kind == Kind::kFence;
        if (running_ == kRunningMax || (running_ > 0 && (is_fence || at_ == operations_.size()))) {
          looking_ = false;
          return;
        }
        if (is_fence) {
          ++at_;
          if (failed_) skip_rest();
          continue;
        }
        is_end = at_ == operations_.size();  // nothing runs, so nobody comes any more
        if (!is_end) {
          next = std::move(operations_[at_++]);
          slot = begun_++;
          ++running_;
        }
      }
      if (is_end) return done_(std::move(outcomes_));
      bytes += next.local.size();
      const bool is_here = is_caller && bytes <= kNowBytesMax;
      start_(std::move(next), is_here, [self = shared_from_this(), slot](BulkOutcome outcome) {
        {
          std::lock_guard lock(self->mutex_);
          self->failed_ = self->failed_ || outcome.code != Code::kDone;
          self->outcomes_[slot] = std::move(outcome);
          --self->running_;
        }
        self->go_on();
      });
    }
  }

 private:
  void skip_rest() {
    for (; begun_ < outcomes_.size(); ++begun_) outcomes_[begun_].code = Code::kNotBegun;
    at_ = operations_.size();
  }

  std::mutex mutex_;  // a leaf
  std::vector<BulkOperation> operations_;
  const Start start_;
  const Bulk::Done done_;
  std::vector<BulkOutcome> outcomes_;
  size_t at_ = 0, begun_ = 0, running_ = 0;
  bool failed_ = false, looking_ = false;
};

}  // namespace

BulkOutcome outcome_of(const Message& answer) {
  BulkOutcome outcome;
  if (answer.lost_bytes != 0) return {Code::kShortage, Refusal::kNone, 0, "no memory for an answer", {}};
  if (answer.header.kind == FrameKind::kReplyError) return {Code::kDeadline, Refusal::kNone, 0, "", {}};
  if (answer.header.kind != FrameKind::kReply) {
    outcome.code = Code::kFailed;
    outcome.failure = failure_of(answer);
    return outcome;
  }
  auto body = decode<AnswerBody>(answer.body);
  const auto said = body ? outcome_of(*body) : std::nullopt;
  if (said) return *said;
  return {Code::kFailed, Refusal::kNone, 0, "", Failure("an answer about a buffer that cannot be read")};
}

std::optional<BulkOutcome> outcome_of(const AnswerBody& body) {
  if (body.code > static_cast<uint8_t>(Code::kNotSo) || body.refusal > static_cast<uint8_t>(Refusal::kStrides)) return {};
  return BulkOutcome{static_cast<Code>(body.code), static_cast<Refusal>(body.refusal), body.value, body.text, {}};
}

Bulk::Bulk(Node& node, Timers& timers, Paths paths)
    : node_(node), timers_(timers), paths_(paths), pool_(copy_threads()) {}

Bulk::~Bulk() = default;

void Bulk::use_streams(Reactor& reactor, StreamOptions options) {
  streams_ = std::make_unique<Streams>(*this, reactor, std::move(options));
}

// ---- What is here ----

Result<BufferHandle> Bulk::add(Memory memory, bool writable, std::shared_ptr<void> keeper) {
  std::shared_ptr<Buffers> buffers;
  {
    std::lock_guard lock(mutex_);
    if (!buffers_) {
      auto made = Buffers::make();
      if (!made) return made.error();
      buffers_ = std::move(*made);
    }
    buffers = buffers_;
  }
  return buffers->add(node_.id(), std::move(memory), writable, std::move(keeper));
}

std::optional<BufferHandle> Bulk::read_only(const BufferHandle& handle) {
  const auto buffers = buffers_here();
  return buffers ? buffers->read_only(handle) : std::nullopt;
}

void Bulk::drop(const BufferHandle& handle) {
  drop_here(handle, true, [] {});
}

size_t Bulk::buffers() const {
  const auto buffers = buffers_here();
  return buffers ? buffers->size() : 0;
}

std::shared_ptr<Buffers> Bulk::buffers_here() const {
  std::lock_guard lock(mutex_);
  return buffers_;
}

// With a table, though it may be empty: who has the contact keeps it.
Contact Bulk::contact_here() {
  std::lock_guard lock(mutex_);
  if (!buffers_) {
    if (auto made = Buffers::make()) buffers_ = std::move(*made);
  }
  return Contact::of_here(buffers_.get());
}

BulkOutcome Bulk::copy_here(const BulkOperation& operation) const {
  BulkOutcome outcome;
  const bool reads = operation.kind == Kind::kRead;
  const auto buffer = find(operation.at, !reads, node_.id(), &outcome);
  if (!buffer) return outcome;
  const uint64_t total = reads ? operation.at.size : operation.local.size();
  const Buffer::Part part = buffer->part(operation.at);
  if (part.memory.is_on_device() && operation.local.is_on_device()) {
    const bool copied = reads ? copy_memory(operation.local, 0, part.memory, part.at, total)
                              : copy_memory(part.memory, part.at, operation.local, 0, total);
    if (!copied) outcome.code = Code::kFault;
    return outcome;
  }
  const bool is_direct = operation.local.is_contiguous();
  const auto bounce = is_direct ? nullptr : std::make_unique_for_overwrite<std::byte[]>(kBounceBytes);
  for (uint64_t done = 0, size; done < total; done += size) {
    size = std::min(total - done, is_direct ? kKernelCopyMax : kBounceBytes);
    std::byte* const flat = is_direct ? operation.local.data() + done : bounce.get();
    bool copied;
    if (reads) {
      copied = gather_checked(part.memory, part.at + done, size, flat) == CopyOutcome::kDone &&
               (is_direct || operation.local.scatter(done, size, flat));
    } else {
      copied = (is_direct || operation.local.gather(done, size, flat)) &&
               scatter_checked(part.memory, part.at + done, size, flat) == CopyOutcome::kDone;
    }
    if (!copied) return {Code::kFault, Refusal::kNone, 0, "", {}};
  }
  return outcome;
}

// It is dropped at once; what waits is who wants to know that nobody uses it any more. A neighbour that is stopped while it
// writes may keep it for long.
void Bulk::drop_in_time(const BufferHandle& handle, int64_t deadline_ns, const OneDone& done) {
  const OneDone end = in_time(deadline_ns, done);
  const Refusal why = drop_here(handle, true, [end] { end({}); });
  if (why != Refusal::kNone) end(refused(why));
}

Bulk::OneDone Bulk::in_time(int64_t deadline_ns, OneDone done) {
  if (deadline_ns == kNoDeadline) return done;
  struct Once {
    std::atomic<bool> is_over{false};
    OneDone done;
    void end(BulkOutcome outcome) {
      if (!is_over.exchange(true)) done(std::move(outcome));
    }
  };
  const auto once = std::make_shared<Once>();  // shared: with what ends, and with the time that is up
  once->done = std::move(done);
  const int64_t left_ns = std::max(deadline_ns - node_.clock().now_ns(), int64_t{0});
  const Timers::TimerId timer =
      timers_.after(left_ns, [once] { once->end({Code::kDeadline, Refusal::kNone, 0, "", {}}); });
  return [self = shared_from_this(), once, timer](BulkOutcome outcome) {
    self->timers_.cancel(timer);
    once->end(std::move(outcome));
  };
}

// An operation on a buffer of this process.
void Bulk::do_here(const BulkOperation& operation, int64_t deadline_ns, const OneDone& done) {
  switch (operation.kind) {
    case Kind::kRead:
    case Kind::kWrite:
      return done(copy_here(operation));
    case Kind::kDrop:
      return drop_in_time(operation.at, deadline_ns, done);
    default:
      return done(apply_atomic(operation.at, operation.kind, operation.operand, operation.expected, node_.id()));
  }
}

// ---- What is elsewhere ----

void Bulk::submit(std::vector<BulkOperation> operations, int64_t deadline_ns, Done done) {
  auto start_one = [self = shared_from_this(), deadline_ns](BulkOperation operation, bool is_here, OneDone ended) {
    self->start(std::move(operation), is_here, deadline_ns, std::move(ended));
  };
  std::make_shared<Batch>(std::move(operations), std::move(start_one), std::move(done))->go_on(true);
}

std::optional<BulkOutcome> Bulk::try_now(const BulkOperation& operation, int64_t deadline_ns) {
  const bool reads = operation.kind == Kind::kRead;
  if ((!reads && operation.kind != Kind::kWrite) || is_stopped() || !fits(operation)) return std::nullopt;
  if ((reads ? operation.at.size : operation.local.size()) > kNowBytesMax) return std::nullopt;
  if (operation.at.owner == node_.id()) return copy_here(operation);
  const auto neighbour = known(operation.at.owner);
  if (!neighbour || node_.is_down(operation.at.owner)) return std::nullopt;
  if (!reads) {
    const auto buffers = buffers_here();
    if (!buffers || !neighbour->is_open_here(operation.at)) return std::nullopt;
    const auto outcome = neighbour->write(operation.at, operation.local, *buffers, node_.clock(), deadline_ns);
    return is_for_owner(outcome) ? std::nullopt : std::optional(of_neighbour(outcome, Refusal::kNone));
  }
  Refusal why = Refusal::kNone;
  const Neighbour::Outcome outcome = neighbour->read(operation.at, operation.local, 0, node_.clock(), deadline_ns, &why);
  forget_idle_maps_later();
  if (outcome == Neighbour::Outcome::kGone) return std::nullopt;
  return of_neighbour(outcome, why);
}

void Bulk::start(BulkOperation operation, bool is_here, int64_t deadline_ns, OneDone done) {
  if (is_stopped()) return done({Code::kFailed, Refusal::kNone, 0, "", Failure(Failure::Kind::kEnding, "")});
  if (!fits(operation)) return done(refused(Refusal::kBeyond));
  if (operation.at.owner == node_.id()) {
    // shared: posted work must be copyable
    auto mine = std::make_shared<BulkOperation>(std::move(operation));
    return pool_.run([self = shared_from_this(), mine, deadline_ns, done = std::move(done)] {
      self->do_here(*mine, deadline_ns, [mine, done](BulkOutcome outcome) {
        mine->keeper.reset();
        done(std::move(outcome));
      });
    });
  }
  switch (operation.kind) {
    case Kind::kRead:
      return read(std::move(operation), deadline_ns, std::move(done));
    case Kind::kWrite:
      return write(std::move(operation), is_here, deadline_ns, std::move(done));
    default:
      return ask_once(operation, deadline_ns, std::move(done));
  }
}

void Bulk::read(BulkOperation operation, int64_t deadline_ns, OneDone done) {
  auto mine = std::make_shared<BulkOperation>(std::move(operation));
  meet_for(mine->at, deadline_ns, [self = shared_from_this(), mine, deadline_ns, done = std::move(done)](auto neighbour) {
    if (!neighbour || !neighbour->why_no_table().empty()) {
      if (neighbour && self->by_stream(*mine, deadline_ns, done)) return;
      return Transfer::start(self, std::move(*mine), Transfer::By::kParts, deadline_ns, done);
    }
    self->pool_.run([self, neighbour, mine, deadline_ns, done] {
      self->read_near(neighbour, std::move(*mine), deadline_ns, done);
    });
  });
}

void Bulk::read_near(const std::shared_ptr<Neighbour>& neighbour, BulkOperation operation, int64_t deadline_ns,
                     OneDone done) {
  Refusal why = Refusal::kNone;
  auto outcome = Neighbour::Outcome::kGone;
  // Who has ended may have memory for a moment still.
  if (!node_.is_down(operation.at.owner)) {
    outcome = neighbour->read(operation.at, operation.local, 0, node_.clock(), deadline_ns, &why);
    forget_idle_maps_later();
    if (outcome == Neighbour::Outcome::kGone && !neighbour->lives()) forget(operation.at.owner, *neighbour);
  }
  if (outcome == Neighbour::Outcome::kGone) {  // it knows better, or whoever knows of its end does
    if (by_stream(operation, deadline_ns, done)) return;
    return Transfer::start(shared_from_this(), std::move(operation), Transfer::By::kParts, deadline_ns, std::move(done));
  }
  operation.keeper.reset();
  done(of_neighbour(outcome, why));
}

void Bulk::write(BulkOperation operation, bool is_here, int64_t deadline_ns, OneDone done) {
  const auto neighbour = known(operation.at.owner);
  if (!neighbour) return write_far(std::move(operation), deadline_ns, std::move(done));
  if (!neighbour->is_open_here(operation.at) || operation.local.size() > kPushMax) {
    seek_admission(neighbour, operation.at.owner, deadline_ns);
    return write_far(std::move(operation), deadline_ns, std::move(done));
  }
  if (is_here && operation.local.size() < kPullMin) {
    return write_near(neighbour, std::move(operation), deadline_ns, std::move(done));
  }
  auto mine = std::make_shared<BulkOperation>(std::move(operation));
  pool_.run([self = shared_from_this(), neighbour, mine, deadline_ns, done = in_time(deadline_ns, std::move(done))] {
    self->write_near(neighbour, std::move(*mine), deadline_ns, done);
  });
}

// By its owner, who gets the bytes or fetches them.
void Bulk::write_far(BulkOperation operation, int64_t deadline_ns, OneDone done) {
  const bool is_large = operation.local.size() >= kPullMin;
  if (!is_large || (!operation.local.is_contiguous() && !streams_)) {
    return Transfer::start(shared_from_this(), std::move(operation), Transfer::By::kParts, deadline_ns, std::move(done));
  }
  const NodeId owner = operation.at.owner;
  auto mine = std::make_shared<BulkOperation>(std::move(operation));
  meet(owner, deadline_ns, [self = shared_from_this(), mine, deadline_ns, done = std::move(done)](auto neighbour) {
    if (!neighbour || !neighbour->why_no_kernel().empty() || !mine->local.is_contiguous()) {
      if (neighbour && !neighbour->why_no_kernel().empty() && self->by_stream(*mine, deadline_ns, done)) return;
      return Transfer::start(self, std::move(*mine), Transfer::By::kParts, deadline_ns, done);
    }
    self->seek_admission(neighbour, mine->at.owner, deadline_ns);
    BulkOperation again = *mine;  // if it cannot fetch them after all
    Transfer::start(self, std::move(*mine), Transfer::By::kPulls, deadline_ns,
                    [self, again = std::move(again), deadline_ns, done](BulkOutcome outcome) mutable {
                      if (outcome.code != Code::kNotSo) {
                        again.keeper.reset();
                        return done(std::move(outcome));
                      }
                      Transfer::start(self, std::move(again), Transfer::By::kParts, deadline_ns, std::move(done));
                    });
  });
}

// Once; until there is an answer all goes another way.
void Bulk::seek_admission(const std::shared_ptr<Neighbour>& neighbour, NodeId owner, int64_t deadline_ns) {
  if (!neighbour->may_be_written() || !neighbour->begin_asking()) return;
  ValueWriter body;
  encode(body, contact_here());
  const auto self = shared_from_this();
  ask(owner, kAdmit, body.written(), {}, deadline_ns, [neighbour, self](std::shared_ptr<PendingCall> call) {
    const Code code = outcome_of(*call->reply(0)).code;
    if (code == Code::kShortage) {
      self->timers_.after(kAskAgainNs, [neighbour] { neighbour->note_admitted(Neighbour::Admitted::kUnknown); });
      return;
    }
    neighbour->note_admitted(code == Code::kDone    ? Neighbour::Admitted::kYes
                             : code == Code::kNotSo ? Neighbour::Admitted::kNo
                                                    : Neighbour::Admitted::kUnknown);  // it may be asked again
  });
}

void Bulk::write_near(const std::shared_ptr<Neighbour>& neighbour, BulkOperation operation, int64_t deadline_ns,
                      OneDone done) {
  const auto buffers = buffers_here();
  auto outcome = Neighbour::Outcome::kGone;
  if (buffers && !node_.is_down(operation.at.owner)) {
    outcome = neighbour->write(operation.at, operation.local, *buffers, node_.clock(), deadline_ns);
  }
  if (is_for_owner(outcome)) return write_far(std::move(operation), deadline_ns, std::move(done));
  operation.keeper.reset();
  done(of_neighbour(outcome, Refusal::kNone));
}

void Bulk::ask_once(const BulkOperation& operation, int64_t deadline_ns, OneDone done) {
  const Wanted wanted{operation.at, 0, operation.at.size, machine_number(), deadline_ns};
  ValueWriter body;
  Method method = kDropBuffer;
  if (operation.kind == Kind::kDrop) {
    encode(body, std::make_tuple(wanted));
  } else {
    method = kAtomic;
    const auto kind = static_cast<uint8_t>(operation.kind);
    encode(body, std::make_tuple(wanted, kind, operation.operand, operation.expected));
  }
  ask(operation.at.owner, method, body.written(), {}, deadline_ns,
      [done = std::move(done)](std::shared_ptr<PendingCall> call) { done(outcome_of(*call->reply(0))); });
}

// ---- Who is a neighbour ----

std::shared_ptr<Neighbour> Bulk::known(NodeId node) {
  std::lock_guard lock(mutex_);
  const auto found = met_.find(node);
  return found == met_.end() ? nullptr : found->second;
}

void Bulk::forget_idle_maps_later() {
  if (looks_for_idle_maps_.load(std::memory_order_relaxed) || looks_for_idle_maps_.exchange(true)) return;
  timers_.after(kIdleNs, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->is_stopped()) return;
    self->pool_.run([self] {
      std::vector<std::shared_ptr<Neighbour>> all;
      {
        std::lock_guard lock(self->mutex_);
        for (const auto& [node, neighbour] : self->met_) all.push_back(neighbour);
      }
      for (auto& writer : self->writers_.everybody()) all.push_back(std::move(writer));  // some are not met any more
      std::ranges::sort(all);
      all.erase(std::unique(all.begin(), all.end()), all.end());  // a second look would find nothing used since the first
      self->looks_for_idle_maps_.store(false);  // first: what is mapped from here on is looked at by the next
      bool any = false;
      for (const auto& each : all) any = each->forget_idle_maps() || any;
      if (any) self->forget_idle_maps_later();
    });
  });
}

void Bulk::forget(NodeId node, const Neighbour& neighbour) {
  std::lock_guard lock(mutex_);
  const auto found = met_.find(node);
  if (found != met_.end() && found->second.get() == &neighbour) met_.erase(found);
}

// Each asks for itself, as each has its own deadline.
void Bulk::meet(NodeId node, int64_t deadline_ns, Met met) {
  if (auto neighbour = known(node)) return met(std::move(neighbour));
  ask(node, kContact, {}, {}, deadline_ns,
      [self = shared_from_this(), node, met = std::move(met)](std::shared_ptr<PendingCall> call) {
        self->pool_.run([self, node, met, call = std::move(call)] {
          const Message& answer = *call->reply(0);
          auto contact = answer.header.kind == FrameKind::kReply ? decode<Contact>(answer.body)
                                                                 : Result<Contact>(Error{ErrorCode::kClosed, ""});
          met(contact ? self->meet(node, *contact) : nullptr);
        });
      });
}

void Bulk::introduce(NodeId owner, const Contact& contact) {
  if (owner != node_.id() && host_number(owner) == host_number(node_.id()) && !known(owner)) meet(owner, contact);
}

// Before the bytes of a handle are read: of a buffer on a device its owner says where, once.
void Bulk::meet_for(const BufferHandle& handle, int64_t deadline_ns, Met met) {
  meet(handle.owner, deadline_ns, [self = shared_from_this(), handle, deadline_ns, met = std::move(met)](auto neighbour) {
    if (!neighbour || !neighbour->wants_export(handle)) return met(std::move(neighbour));
    self->pool_.run([self, handle, deadline_ns, met, neighbour] {
      Cuda::find() != nullptr ? self->ask_for_export(neighbour, handle, deadline_ns, met) : met(neighbour);
    });
  });
}

void Bulk::ask_for_export(const std::shared_ptr<Neighbour>& neighbour, const BufferHandle& handle, int64_t deadline_ns,
                          Met met) {
  const Wanted wanted{handle, 0, handle.size, machine_number(), deadline_ns};
  ValueWriter body;
  encode(body, std::make_tuple(wanted));
  ask(handle.owner, kExport, body.written(), {}, deadline_ns,
      [self = shared_from_this(), neighbour, handle, met = std::move(met)](std::shared_ptr<PendingCall> call) {
        self->pool_.run([neighbour, handle, met, call = std::move(call)] {
          const Message& answer = *call->reply(0);
          const BulkOutcome outcome = outcome_of(answer);
          if (outcome.code == Code::kDone && answer.parts.size() == 1) {
            neighbour->note_export(handle, decode<CudaExport>({answer.parts[0].data, answer.parts[0].size}));
          } else if (outcome.code == Code::kShortage) {
            neighbour->note_export(handle, Error{ErrorCode::kUnsupported, outcome.text});
          }  // else who is asked for the bytes says why there are none
          met(neighbour);
        });
      });
}

// Whoever asks for something says who it is: the same as ever, mostly.
std::shared_ptr<Neighbour> Bulk::meet(NodeId node, const Contact& contact) {
  auto neighbour = known(node);
  if (neighbour && neighbour->is(contact)) return neighbour;
  neighbour = Neighbour::meet(contact, paths_);
  if (neighbour->is_for_now()) return neighbour;
  std::vector<std::shared_ptr<Neighbour>> gone;  // with what is mapped of them, without the lock
  std::lock_guard lock(mutex_);
  if (met_.size() >= prune_at_) {
    std::erase_if(met_, [&](auto& each) {
      if (each.second->lives()) return false;
      gone.push_back(std::move(each.second));
      return true;
    });
    prune_at_ = 2 * met_.size() + kMetMin;
  }
  met_[node] = neighbour;
  return neighbour;
}

void Bulk::explain(const BufferHandle& handle, int64_t deadline_ns, std::function<void(Path, std::string)> done) {
  if (handle.owner == node_.id()) return done(Path::kLocal, "");
  auto self = shared_from_this();
  meet_for(handle, deadline_ns, [self, handle, deadline_ns, done = std::move(done)](const auto& neighbour) {
    std::string why_not = neighbour ? "" : "its process does not answer";
    const Path path = neighbour ? neighbour->path_of(handle, &why_not) : Path::kLink;
    self->forget_idle_maps_later();
    if (path != Path::kLink || !neighbour || !self->streams_ || !self->streams_->leads_to(handle.owner)) {
      return done(path, why_not);
    }
    const auto told = [done, why_not](Way way, const std::string& more) {
      done(way == Way::kUcx ? Path::kUcx : way == Way::kNone ? Path::kLink : Path::kStream,
           why_not + (more.empty() ? "" : "; " + more));
    };
    self->streams_->to(handle.owner)->explain(deadline_ns, told);
  });
}

bool Bulk::writes_itself(const BufferHandle& handle) {
  const auto neighbour = known(handle.owner);
  return neighbour && neighbour->is_open_here(handle);
}

bool Bulk::goes_by_link(const BufferHandle& handle) {
  const auto neighbour = known(handle.owner);
  if (!neighbour) return false;
  forget_idle_maps_later();
  return neighbour->path_of(handle) == Path::kLink && !(streams_ && streams_->may_go_by_ucx(handle.owner));
}

void Bulk::ask(NodeId node, Method method, ByteSpan body, std::span<const ByteSpan> parts, int64_t deadline_ns,
               Answered answered) {
  static const auto label = std::make_shared<const std::string>("a buffer");
  auto members = std::make_shared<Members>();
  members->ids = {id_of(node)};
  auto call = std::make_shared<PendingCall>(members);
  call->set_label(label);
  call->set_deadline(deadline_ns == kNoDeadline ? 0 : deadline_ns);
  call->observe(1, [call, answered = std::move(answered)]() mutable { answered(std::move(call)); });
  if (node_.successions().latest(node) != node) {  // messages go to the one in its place, which has none of its buffers
    const FailurePtr why = node_.why_down(node);
    const Failure ended = why ? *why : Failure(Failure::Kind::kLost, "another process is in its place");
    call->fill(0, make_failure(0, 0, ended), node_.driver());
    return;
  }
  Outgoing request{FrameHeader{}, body, parts};
  request.header.kind = FrameKind::kRequest;
  request.header.method = method;
  request.deadline_ns = call->deadline_ns();
  try {
    node_.cast(*members, request, call);
  } catch (const std::bad_alloc&) {
    node_.end_call(call->token(), Failure(Failure::Kind::kNotSent, "there is no memory for the message"));
  }
}

bool Bulk::is_stopped() const {
  std::lock_guard lock(mutex_);
  return stopped_;
}

void Bulk::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  if (streams_) streams_->stop();
  pool_.stop();
  const auto buffers = buffers_here();
  writers_.end(buffers ? buffers->close_to_writers() : std::vector<Writers::Claimed>());
}

}  // namespace monarch
