// The owner's side: what other processes ask for. Nobody waits here for an actor or the GIL; what takes long is done by the
// threads of the pool.
#include <unistd.h>

#include <atomic>

#include "monarch/base/log.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/bulk/transfer.h"

namespace monarch {

namespace {

using Code = BulkOutcome::Code;

// What the thread that brings messages does itself.
constexpr uint64_t kSmall = 64 * 1024;

BulkOutcome of_code(Code code, std::string text = "") { return {code, Refusal::kNone, 0, std::move(text), {}}; }

}  // namespace

void Bulk::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node_.refuse(*message, "buffers take requests");
  const uint32_t method = message->header.method;
  const bool is_small = method != kPull && message->total_bytes() <= kSmall;
  // shared: posted work must be copyable
  const std::shared_ptr<Message> request(std::move(message));
  if (is_small) return handle(request);
  pool_.run([self = shared_from_this(), request] { self->handle(request); });
}

void Bulk::handle(const std::shared_ptr<Message>& request) {
  if (request->lost_bytes != 0) return answer(*request, of_code(Code::kShortage, "the owner has no memory for a part"));
  if (request->deadline_ns != 0 && node_.clock().now_ns() >= request->deadline_ns) {
    return answer(*request, of_code(Code::kDeadline));
  }
  switch (request->header.method) {
    case kContact:
      return answer_contact(*request);
    case kReadPart: {
      auto handle = decode<BufferHandle>(request->body);
      if (handle && handle->size > kSmall) {
        return pool_.run([self = shared_from_this(), request] { self->read_part(*request); });
      }
      return read_part(*request);
    }
    case kWritePart:
      return write_part(*request);
    case kPull:
      return pull(*request);
    case kAtomic:
      return atomic(*request);
    case kDropBuffer:
      return drop_buffer(request);
    default:
      return node_.refuse(*request, "buffers have no such method");
  }
}

void Bulk::answer_contact(const Message& request) {
  ValueWriter value;
  encode(value, contact_here());
  Outgoing reply{FrameHeader{}, value.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, reply);
}

std::shared_ptr<const Buffer> Bulk::find(const BufferHandle& handle, bool to_write, NodeId from,
                                         BulkOutcome* outcome) const {
  const auto buffers = buffers_here();
  Refusal why = Refusal::kForged;
  auto buffer = buffers && handle.owner == node_.id() ? buffers->find(handle, to_write, &why) : nullptr;
  if (buffer) return buffer;
  outcome->code = Code::kRefused;
  outcome->refusal = why;
  if (why == Refusal::kForged) {
    log_line_limited("refused a handle of a buffer that was never given out",
                     "refused a handle of a buffer that was never given out" +
                         std::string(from == node_.id() ? "" : ", from another process"));
  }
  return nullptr;
}

void Bulk::read_part(const Message& request) {
  auto handle = decode<BufferHandle>(request.body);
  if (!handle) return node_.refuse(request, "no handle of a buffer: " + handle.error().message);
  BulkOutcome outcome;
  const auto buffer = find(*handle, false, request.from, &outcome);
  if (!buffer) return answer(request, outcome);
  if (handle->size > Transfer::kPartBytes) return answer(request, of_code(Code::kShortage, "too large a part"));
  const auto bytes = std::make_unique_for_overwrite<std::byte[]>(handle->size);
  if (gather_checked(buffer->memory, handle->offset, handle->size, bytes.get()) != CopyOutcome::kDone) {
    return answer(request, of_code(Code::kFault));
  }
  answer(request, outcome, {bytes.get(), handle->size});
}

void Bulk::write_part(const Message& request) {
  auto handle = decode<BufferHandle>(request.body);
  if (!handle || request.parts.size() != 1 || request.parts[0].size != handle->size) {
    return node_.refuse(request, "no handle of a buffer, with as many bytes");
  }
  BulkOutcome outcome;
  const auto buffer = find(*handle, true, request.from, &outcome);
  if (!buffer) return answer(request, outcome);
  if (scatter_checked(buffer->memory, handle->offset, handle->size, request.parts[0].data) != CopyOutcome::kDone) {
    outcome.code = Code::kFault;
  }
  answer(request, outcome);
}

void Bulk::pull(const Message& request) {
  std::tuple<BufferHandle, Contact, uint64_t> wanted;
  auto& [handle, contact, there] = wanted;
  ValueReader reader(request.body);
  if (!decode_into(reader, wanted)) return node_.refuse(request, "no handle of a buffer: " + reader.error().message);
  BulkOutcome outcome;
  const auto buffer = find(handle, true, request.from, &outcome);
  if (!buffer) return answer(request, outcome);
  // Its bytes may be anybody's: only the messages of the one who asks say who that is.
  const auto neighbour = Neighbour::meet(contact, paths_);
  if (!neighbour->why_no_kernel().empty() || !buffer->memory.is_contiguous()) {
    return answer(request, of_code(Code::kNotSo));
  }
  const int64_t deadline_ns = request.deadline_ns == 0 ? kNoDeadline : request.deadline_ns;
  const Memory into(buffer->memory.data() + handle.offset, handle.size);
  switch (neighbour->pull(there, into, 0, handle.size, node_.clock(), deadline_ns)) {
    case Neighbour::Outcome::kDone:
      break;
    case Neighbour::Outcome::kDeadline:
      outcome.code = Code::kDeadline;
      break;
    case Neighbour::Outcome::kFault:
      outcome.code = Code::kFault;
      break;
    default:
      outcome.code = Code::kNotSo;
  }
  answer(request, outcome);
}

BulkOutcome Bulk::apply_atomic(const BufferHandle& handle, BulkOperation::Kind kind, int64_t operand, int64_t expected,
                               NodeId from) const {
  BulkOutcome outcome;
  const auto buffer = find(handle, true, from, &outcome);
  if (!buffer) return outcome;
  std::byte* const at = buffer->memory.data() + handle.offset;
  int64_t probe;
  const bool is_aligned = reinterpret_cast<uintptr_t>(at) % sizeof probe == 0;
  if (handle.size != sizeof probe || !buffer->memory.is_contiguous() || !is_aligned) {
    return of_code(Code::kShortage, "an atomic operation wants 8 bytes at an address that is a multiple of 8");
  }
  auto* const probed = reinterpret_cast<std::byte*>(&probe);
  if (gather_checked(buffer->memory, handle.offset, sizeof probe, probed) != CopyOutcome::kDone) {
    return of_code(Code::kFault);
  }
  std::atomic_ref<int64_t> value(*reinterpret_cast<int64_t*>(at));
  if (kind == BulkOperation::Kind::kFetchAdd) {
    outcome.value = value.fetch_add(operand);
  } else {
    outcome.value = expected;
    value.compare_exchange_strong(outcome.value, operand);
  }
  return outcome;
}

void Bulk::atomic(const Message& request) {
  std::tuple<BufferHandle, uint8_t, int64_t, int64_t> wanted;
  const auto& [handle, kind, operand, expected] = wanted;
  ValueReader reader(request.body);
  if (!decode_into(reader, wanted)) return node_.refuse(request, "no handle of a buffer: " + reader.error().message);
  answer(request, apply_atomic(handle, static_cast<BulkOperation::Kind>(kind), operand, expected, request.from));
}

void Bulk::drop_buffer(const std::shared_ptr<Message>& request) {
  auto handle = decode<BufferHandle>(request->body);
  if (!handle) return node_.refuse(*request, "no handle of a buffer: " + handle.error().message);
  const auto buffers = buffers_here();
  const auto done = [self = shared_from_this(), request] { self->answer(*request, {}); };
  const Refusal why = buffers ? buffers->drop(*handle, done) : Refusal::kForged;
  if (why != Refusal::kNone) answer(*request, {Code::kRefused, why, 0, "", {}});
}

void Bulk::answer(const Message& request, const BulkOutcome& outcome, ByteSpan bytes) {
  ValueWriter value;
  encode(value, AnswerBody{static_cast<uint8_t>(outcome.code), static_cast<uint8_t>(outcome.refusal), outcome.value,
                           outcome.text});
  Outgoing reply{FrameHeader{}, value.written(), {&bytes, bytes.empty() ? size_t{0} : 1}};
  node_.reply(request.header, request.from, FrameKind::kReply, reply);
}

}  // namespace monarch
