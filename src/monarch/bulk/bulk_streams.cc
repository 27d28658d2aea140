// Bytes of buffers over connections of their own, between hosts.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "monarch/bulk/bulk.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/bulk/kernel_copy.h"
#include "monarch/bulk/streams.h"
#include "monarch/bulk/transfer.h"

namespace monarch {

namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

constexpr uint32_t kValueBytesMax = 64 * 1024;
// A stream on which nothing is asked for so long is closed; whoever has made it has closed it before.
constexpr int64_t kIdleNs = 10'000'000'000;
// What goes in one step: through memory of our own it stays in the caches.
constexpr uint64_t kPieceBytes = 256 * 1024;
constexpr uint64_t kPlainPieceBytes = uint64_t{1} << 20;

// Each lane has so many bytes at least.
constexpr uint64_t kLaneMin = uint64_t{8} << 20;

// Parts of one operation.
class Joined {
 public:
  Joined(uint32_t parts, std::function<void(BulkOutcome)> done) : left_(parts), done_(std::move(done)) {}
  void add(BulkOutcome outcome) {
    {
      std::lock_guard lock(mutex_);
      if (outcome_.code == Code::kDone) outcome_ = std::move(outcome);
      if (--left_ != 0) return;
    }
    done_(std::move(outcome_));
  }

 private:
  std::mutex mutex_;  // a leaf
  uint32_t left_;
  BulkOutcome outcome_;  // the first that was none
  const std::function<void(BulkOutcome)> done_;
};

}  // namespace

Status send_value(StreamEnd& end, ByteSpan value, int64_t deadline_ns) {
  const auto size = static_cast<uint32_t>(value.size());
  std::vector<std::byte> whole(sizeof size + value.size());
  std::memcpy(whole.data(), &size, sizeof size);
  std::ranges::copy(value, whole.begin() + sizeof size);
  return end.send(whole, deadline_ns);
}

Result<std::vector<std::byte>> receive_value(StreamEnd& end, int64_t deadline_ns) {
  uint32_t size = 0;
  if (auto came = end.receive(std::as_writable_bytes(std::span(&size, 1)), deadline_ns); !came) return came.error();
  if (size > kValueBytesMax) return Error{ErrorCode::kMalformed, "too large a value on a stream"};
  std::vector<std::byte> value(size);
  if (auto came = end.receive(value, deadline_ns); !came) return came.error();
  return value;
}

// ---- The other side ----

void Bulk::by_lane(uint32_t lane, BulkOperation operation, int64_t deadline_ns, OneDone done) {
  BulkOperation again = operation;  // if there is none after all
  const NodeId owner = operation.at.owner;
  streams_->to(owner, lane)
      ->submit(std::move(operation), deadline_ns,
               [self = shared_from_this(), again = std::move(again), deadline_ns,
                done = std::move(done)](BulkOutcome outcome) mutable {
                 if (outcome.code == Code::kNotSo) {
                   return Transfer::start(self, std::move(again), Transfer::By::kParts, deadline_ns, std::move(done));
                 }
                 self->streams_->note_one();
                 again.keeper.reset();
                 done(std::move(outcome));
               });
}

bool Bulk::by_stream(BulkOperation& operation, int64_t deadline_ns, const OneDone& done) {
  const uint64_t size = operation.kind == Kind::kRead ? operation.at.size : operation.local.size();
  if (!streams_ || size < kStreamMin || !streams_->leads_to(operation.at.owner)) return false;
  const bool can_be_cut = operation.local.is_contiguous() && !operation.at.is_block();
  const auto lanes = can_be_cut ? static_cast<uint32_t>(std::clamp<uint64_t>(size / kLaneMin, 1, streams_->lanes())) : 1;
  if (lanes == 1) {
    const uint32_t lane = streams_->idle_lane(operation.at.owner);
    return by_lane(lane, std::move(operation), deadline_ns, done), true;
  }
  auto joined = std::make_shared<Joined>(lanes, done);  // shared: by all lanes
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const uint64_t from = size / lanes * lane, to = lane + 1 == lanes ? size : size / lanes * (lane + 1);
    BulkOperation part = operation;
    part.at.offset += from;
    part.at.size = part.kind == Kind::kRead ? to - from : part.at.size - from;
    part.local = Memory(operation.local.data() + from, to - from);
    by_lane(lane, std::move(part), deadline_ns, [joined](BulkOutcome outcome) { joined->add(std::move(outcome)); });
  }
  operation.keeper.reset();
  return true;
}

void Bulk::ask_for_stream(NodeId owner, int64_t deadline_ns, std::function<void(StreamAddress)> found) {
  ask(owner, kOpenDoor, {}, {}, deadline_ns, [found = std::move(found)](std::shared_ptr<PendingCall> call) {
    const Message& answer = *call->reply(0);
    StreamAddress address;
    if (answer.header.kind == FrameKind::kReply) {
      auto said = decode<StreamAddress>(answer.body);
      if (said) address = std::move(*said);
    } else {
      const bool is_late = outcome_of(answer).code == Code::kDeadline;
      address.why_not = is_late ? "its process does not answer" : "its process has no streams";
    }
    found(std::move(address));
  });
}

void Bulk::ask_to_close_stream(NodeId owner, uint64_t number, int64_t deadline_ns, OneDone done) {
  ValueWriter body;
  encode(body, number);
  ask(owner, kCloseStream, body.written(), {}, deadline_ns,
      [done = std::move(done)](const std::shared_ptr<PendingCall>& call) { done(outcome_of(*call->reply(0))); });
}

// ---- The owner's ----

void Bulk::open_door(const Message& request) {
  StreamAddress address;
  address.why_not = "its process has no streams";
  if (streams_) {
    address = streams_->open_door([weak = weak_from_this()](StreamEnd& end, NodeId peer) {
      if (const auto self = weak.lock()) self->serve_stream(end, peer);
    });
  }
  ValueWriter value;
  encode(value, address);
  Outgoing reply{FrameHeader{}, value.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, reply);
}

void Bulk::close_stream(const std::shared_ptr<Message>& request) {
  auto number = decode<uint64_t>(request->body);
  if (!number || !streams_) return node_.refuse(*request, "the number of a stream was expected");
  streams_->close_stream(*number, [self = shared_from_this(), request] { self->answer(*request, {}); });
}

void Bulk::serve_stream(StreamEnd& end, NodeId peer) {
  for (;;) {
    auto bytes = receive_value(end, monotonic_ns() + kIdleNs);
    if (!bytes) return;
    auto request = decode<StreamRequest>(*bytes);
    if (!request) return;
    const Wanted& wanted = request->wanted;
    const int64_t now_ns = monotonic_ns();
    const int64_t deadline_ns = request->left_ns > kNoDeadline - now_ns ? kNoDeadline : now_ns + request->left_ns;
    if (request->kind == StreamRequest::kUseUcx) {
      if (!use_ucx(end, request->address, request->tag, deadline_ns)) return;
      continue;
    }
    const bool to_write = request->kind == static_cast<uint8_t>(Kind::kWrite);
    if (!to_write && request->kind != static_cast<uint8_t>(Kind::kRead)) return;
    BulkOutcome outcome;
    if (wanted.at > wanted.handle.size || wanted.size > wanted.handle.size - wanted.at) {
      outcome = {Code::kRefused, Refusal::kBeyond, 0, "", {}};
    } else {
      static_cast<void>(find(wanted.handle, to_write, peer, &outcome));
    }
    if (!say(end, outcome, deadline_ns)) return;
    if (outcome.code != Code::kDone) continue;
    if (to_write ? !take_bytes(end, wanted, peer, deadline_ns) || !say(end, {}, deadline_ns)
                 : !give_bytes(end, wanted, peer, deadline_ns)) {
      return;
    }
  }
}

Status Bulk::say(StreamEnd& end, const BulkOutcome& outcome, int64_t deadline_ns) {
  ValueWriter value;
  encode(value, AnswerBody{static_cast<uint8_t>(outcome.code), static_cast<uint8_t>(outcome.refusal), outcome.value,
                           outcome.text});
  return send_value(end, value.written(), deadline_ns);
}

// The buffer is found anew for each piece, and held only while nobody is waited for: drop() must not wait for a peer that
// has stopped. False, here and in the next: the stream is to be closed, and the other side asks over the link why.
bool Bulk::give_bytes(StreamEnd& end, const Wanted& wanted, NodeId peer, int64_t deadline_ns) {
  if (end.has_ucx()) return move_by_ucx(end, wanted, false, peer, deadline_ns);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  BulkOutcome outcome;
  for (uint64_t done = 0; done < wanted.size;) {
    auto buffer = find(wanted.handle, false, peer, &outcome);
    if (!buffer || !end.goes_on(deadline_ns)) return false;
    const Buffer::Part part = buffer->part(wanted.handle);
    const uint64_t at = part.at + wanted.at + done, left = wanted.size - done;
    if (end.is_plain() && part.memory.is_contiguous()) {
      const ssize_t count = end.send_now({part.memory.data() + at, std::min(left, kPlainPieceBytes)});
      const int error = errno;
      buffer.reset();
      if (count > 0) done += static_cast<uint64_t>(count);
      if (count < 0 && error != EAGAIN) return false;
      if (count < 0 && !end.wait_for_room(deadline_ns)) return false;
    } else {
      const uint64_t size = std::min(left, kPieceBytes);
      if (gather_checked(part.memory, at, size, bounce.get()) != CopyOutcome::kDone) return false;
      buffer.reset();
      if (!end.send({bounce.get(), size}, deadline_ns)) return false;
      done += size;
    }
  }
  return true;
}

// What has waited until its deadline, in the socket or in a process that was stopped, is not written.
bool Bulk::take_bytes(StreamEnd& end, const Wanted& wanted, NodeId peer, int64_t deadline_ns) {
  if (end.has_ucx()) return move_by_ucx(end, wanted, true, peer, deadline_ns);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  BulkOutcome outcome;
  for (uint64_t done = 0; done < wanted.size;) {
    const uint64_t left = wanted.size - done, size = std::min(left, kPieceBytes);
    if (!end.is_plain() && !end.receive({bounce.get(), size}, deadline_ns)) return false;
    auto buffer = find(wanted.handle, true, peer, &outcome);
    if (!buffer || !end.goes_on(deadline_ns)) return false;
    const Buffer::Part part = buffer->part(wanted.handle);
    const uint64_t at = part.at + wanted.at + done;
    if (!end.is_plain()) {
      if (scatter_checked(part.memory, at, size, bounce.get()) != CopyOutcome::kDone) return false;
      done += size;
      continue;
    }
    const bool is_direct = part.memory.is_contiguous();
    std::byte* const to = is_direct ? part.memory.data() + at : bounce.get();
    const ssize_t count = end.receive_now({to, is_direct ? std::min(left, kPlainPieceBytes) : size});
    const int error = errno;
    if (count == 0 || (count < 0 && error != EAGAIN)) return false;
    if (count > 0) {
      const auto came = static_cast<uint64_t>(count);
      if (!is_direct && scatter_checked(part.memory, at, came, bounce.get()) != CopyOutcome::kDone) return false;
      done += came;
      continue;
    }
    buffer.reset();
    if (!end.wait_for_input(deadline_ns)) return false;
  }
  return true;
}

// False: the stream is to be closed. A dialer that hears why not goes on without.
bool Bulk::use_ucx(StreamEnd& end, ByteSpan address, uint64_t tag, int64_t deadline_ns) {
  if (end.has_ucx() || !end.is_plain()) return false;
  const auto refuse = [&](const std::string& why) {
    return say(end, {Code::kNotSo, Refusal::kNone, 0, "its owner's: " + why, {}}, deadline_ns).ok();
  };
  if (!streams_->tries_ucx()) return refuse("it leaves UCX out");
  auto made = UcxEnd::make();
  auto here = made ? (*made)->address() : Result<std::vector<std::byte>>(made.error());
  auto connected = here ? (*made)->connect(address, tag) : Status(here.error());
  if (!connected) return refuse(connected.error().message);
  if (!say(end, {}, deadline_ns)) return false;
  end.use(std::move(*made));
  return send_value(end, *here, deadline_ns).ok();
}

// From memory to memory, where UCX takes it as it is: the buffer is held meanwhile. Whoever drops it waits until that has
// been seen, a twentieth of a second.
bool Bulk::move_by_ucx(StreamEnd& end, const Wanted& wanted, bool to_write, NodeId peer, int64_t deadline_ns) {
  std::unique_ptr<std::byte[]> bounce;
  BulkOutcome outcome;
  const auto is_wanted = [&] { return find(wanted.handle, to_write, peer, &outcome) != nullptr; };
  const auto move = [&](const Memory& bytes) {
    const Status moved = to_write ? end.receive_by_ucx(bytes, deadline_ns, is_wanted)
                                  : end.send_by_ucx(bytes, deadline_ns, is_wanted);
    return moved.ok();
  };
  for (uint64_t done = 0, size; done < wanted.size; done += size) {
    size = std::min(wanted.size - done, StreamEnd::kUcxBytes);
    auto buffer = find(wanted.handle, to_write, peer, &outcome);
    if (!buffer || !end.goes_on(deadline_ns)) return false;
    const Buffer::Part part = buffer->part(wanted.handle);
    const uint64_t at = part.at + wanted.at + done;
    if (end.takes_by_ucx(part.memory)) {
      const Memory bytes = part.memory.piece(at, size);
      if (!bytes.is_on_device() && !are_there(bytes.data(), size, to_write)) return false;
      if (!move(bytes)) return false;
      continue;
    }
    if (!bounce) bounce = std::make_unique_for_overwrite<std::byte[]>(StreamEnd::kUcxBytes);
    if (!to_write && gather_checked(part.memory, at, size, bounce.get()) != CopyOutcome::kDone) return false;
    buffer.reset();
    if (!move(Memory(bounce.get(), size))) return false;
    if (!to_write) continue;
    buffer = find(wanted.handle, true, peer, &outcome);
    if (!buffer || !end.goes_on(deadline_ns)) return false;
    if (scatter_checked(part.memory, at, size, bounce.get()) != CopyOutcome::kDone) return false;
  }
  return true;
}

}  // namespace monarch
