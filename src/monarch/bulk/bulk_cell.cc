// The owner's side: what other processes ask for. Nobody waits here for an actor or the GIL; what takes long is done by the
// threads of the pool.
#include <unistd.h>

#include <atomic>

#include "monarch/base/log.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/bulk/transfer.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

namespace {

using Code = BulkOutcome::Code;

// What the thread that brings messages does itself.
constexpr uint64_t kSmall = 64 * 1024;
// How often it is looked whether those who write to what has been dropped are done: at first, and after a while.
constexpr int64_t kLookFirstNs = 500'000, kLookLastNs = 20'000'000;

BulkOutcome of_code(Code code, std::string text = "") { return {code, Refusal::kNone, 0, std::move(text), {}}; }

}  // namespace

void Bulk::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node_.refuse(*message, "buffers take requests");
  if (is_stopped()) return node_.refuse(*message, Failure(Failure::Kind::kEnding, ""));
  const uint32_t method = message->header.method;
  const bool is_slow = method == kPull || method == kAdmit || method == kExport || method == kOpenDoor;
  const bool is_small = !is_slow && message->total_bytes() <= kSmall;
  // shared: posted work must be copyable
  const std::shared_ptr<Message> request(std::move(message));
  if (is_small) return handle(request);
  pool_.run([self = shared_from_this(), request] { self->handle(request); });
}

void Bulk::handle(const std::shared_ptr<Message>& request) {
  if (request->lost_bytes != 0) return answer(*request, of_code(Code::kShortage, "the owner has no memory for a part"));
  switch (request->header.method) {
    case kContact:
      return answer_contact(*request);
    case kReadPart:
      return read_part(request);
    case kWritePart:
      return write_part(request);
    case kPull:
      return pull(*request);
    case kAtomic:
      return atomic(*request);
    case kDropBuffer:
      return drop_buffer(request);
    case kAdmit:
      return admit(*request);
    case kExport:
      return export_memory(request);
    case kOpenDoor:
      return open_door(*request);
    case kCloseStream:
      return close_stream(request);
    default:
      return node_.refuse(*request, "buffers have no such method");
  }
}

// What a request wants, with its deadline on the clock of this node, and the rest of it. None: it has been answered.
template <typename... Rest>
std::optional<Wanted> Bulk::wanted_of(const Message& request, Rest&... rest) {
  Wanted wanted;
  ValueReader reader(request.body);
  if (!decode_into(reader, std::tie(wanted, rest...)) || !(reader.done() || reader.trailing())) {
    node_.refuse(request, "no handle of a buffer: " + reader.error().message);
    return std::nullopt;
  }
  if (wanted.machine == 0 || wanted.machine != machine_number()) {
    wanted.deadline_ns = request.deadline_ns == 0 ? kNoDeadline : request.deadline_ns;
  }
  if (wanted.at > wanted.handle.size || wanted.size > wanted.handle.size - wanted.at) {
    answer(request, {Code::kRefused, Refusal::kBeyond, 0, "", {}});
    return std::nullopt;
  }
  if (node_.clock().now_ns() < wanted.deadline_ns) return wanted;
  answer(request, of_code(Code::kDeadline));
  return std::nullopt;
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

// Then nobody waits for it who brings messages.
bool Bulk::is_on_device(const BufferHandle& handle) const {
  const auto buffers = buffers_here();
  Refusal ignored;
  const auto buffer = buffers ? buffers->find(handle, false, &ignored) : nullptr;
  return buffer && buffer->memory.is_on_device();
}

void Bulk::read_part(const std::shared_ptr<Message>& request) {
  const auto wanted = wanted_of(*request);
  if (!wanted) return;
  const uint64_t size = wanted->size;
  if (size > Transfer::kPartBytes) return answer(*request, of_code(Code::kShortage, "too large a part"));
  const auto read = [self = shared_from_this(), request, handle = wanted->handle, at = wanted->at, size] {
    BulkOutcome outcome;
    const auto buffer = self->find(handle, false, request->from, &outcome);
    if (!buffer) return self->answer(*request, outcome);
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
    const Buffer::Part part = buffer->part(handle);
    if (gather_checked(part.memory, part.at + at, size, bytes.get()) != CopyOutcome::kDone) {
      return self->answer(*request, of_code(Code::kFault));
    }
    self->answer(*request, outcome, {bytes.get(), size});
  };
  size > kSmall || is_on_device(wanted->handle) ? pool_.run(read) : read();
}

void Bulk::write_part(const std::shared_ptr<Message>& request) {
  const auto wanted = wanted_of(*request);
  if (!wanted) return;
  if (request->parts.size() != 1 || request->parts[0].size != wanted->size) {
    return node_.refuse(*request, "a write with as many bytes as it says was expected");
  }
  const auto write = [self = shared_from_this(), request, handle = wanted->handle, at = wanted->at, size = wanted->size] {
    BulkOutcome outcome;
    const auto buffer = self->find(handle, true, request->from, &outcome);
    if (!buffer) return self->answer(*request, outcome);
    const Buffer::Part part = buffer->part(handle);
    if (scatter_checked(part.memory, part.at + at, size, request->parts[0].data) != CopyOutcome::kDone) {
      outcome.code = Code::kFault;
    }
    self->answer(*request, outcome);
  };
  request->total_bytes() <= kSmall && is_on_device(wanted->handle) ? pool_.run(write) : write();
}

void Bulk::pull(const Message& request) {
  Contact contact;
  uint64_t there = 0;
  const auto wanted = wanted_of(request, contact, there);
  if (!wanted) return;
  const BufferHandle& handle = wanted->handle;
  BulkOutcome outcome;
  const auto buffer = find(handle, true, request.from, &outcome);
  if (!buffer) return answer(request, outcome);
  // It names this process in the place of its own.
  if (contact.proof == Contact::of_here(nullptr).proof) return answer(request, of_code(Code::kNotSo));
  const auto neighbour = meet(request.from, contact);
  const Buffer::Part part = buffer->part(handle);
  // What goes through memory of our own is not copied into its place by the kernel, which would find that it is not there.
  if (!neighbour->why_no_kernel().empty() || in_small_pieces(part.memory)) return answer(request, of_code(Code::kNotSo));
  const Memory from(reinterpret_cast<std::byte*>(there), wanted->size);
  const uint64_t to = part.at + wanted->at;
  switch (neighbour->pull(from, part.memory, to, node_.clock(), wanted->deadline_ns)) {
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

void Bulk::admit(const Message& request) {
  auto contact = decode<Contact>(request.body);
  if (!contact) return node_.refuse(request, "no contact of a writer: " + contact.error().message);
  const std::shared_ptr<Neighbour> writer = meet(request.from, *contact);
  const bool may_write = writers_.admit(writer), is_for_now = writer->is_for_now() || writers_.is_full();
  answer(request, of_code(may_write ? Code::kDone : is_for_now ? Code::kShortage : Code::kNotSo));
}

// It is kept as long as those that had begun to write to it are not done.
Refusal Bulk::drop_here(const BufferHandle& handle, bool by_owner, std::function<void()> done) {
  const auto buffers = buffers_here();
  if (!buffers || handle.owner != node_.id()) return Refusal::kForged;
  std::shared_ptr<const Buffer> buffer;
  const Refusal why = buffers->drop(handle, by_owner, std::move(done), &buffer);
  if (buffer && writers_.keep({claim_of(handle), std::move(buffer)})) look_at_writers_later(kLookFirstNs);
  return why;
}

// Less and less often: a writer that is stopped may take its time.
void Bulk::look_at_writers_later(int64_t delay_ns) {
  if (looks_at_writers_.exchange(true)) return;
  timers_.after(delay_ns, [weak = weak_from_this(), delay_ns] {
    const auto self = weak.lock();
    if (!self) return;
    self->looks_at_writers_.store(false);  // first: what is kept from here on is looked at by the next
    if (self->writers_.look()) self->look_at_writers_later(std::min(2 * delay_ns, kLookLastNs));
  });
}

void Bulk::export_memory(const std::shared_ptr<Message>& request) {
  const auto wanted = wanted_of(*request);
  if (!wanted) return;
  BulkOutcome outcome;
  const auto buffer = find(wanted->handle, false, request->from, &outcome);
  if (!buffer) return answer(*request, outcome);
  const Memory& memory = buffer->memory;
  const auto refuse = [&](const std::string& why) { answer(*request, of_code(Code::kShortage, why)); };
  if (!memory.is_on_device()) return refuse("it is memory of the host");
  if (!memory.in_one_piece()) return refuse("its bytes do not lie one behind the other");
  std::string why_no_driver;
  const Cuda* const cuda = Cuda::find(&why_no_driver);
  if (cuda == nullptr) return refuse(why_no_driver);
  auto made = cuda->share(memory);
  if (!made) return refuse(made.error().message);
  ValueWriter value;
  encode(value, *made);
  answer(*request, outcome, value.written());
}

BulkOutcome Bulk::apply_atomic(const BufferHandle& handle, BulkOperation::Kind kind, int64_t operand, int64_t expected,
                               NodeId from) const {
  BulkOutcome outcome;
  const auto buffer = find(handle, true, from, &outcome);
  if (!buffer) return outcome;
  if (buffer->memory.is_on_device()) {
    return of_code(Code::kShortage, "atomic operations are for memory of the host, and this is on a CUDA device");
  }
  std::byte* const at = buffer->memory.data() + handle.offset;
  int64_t probe;
  const bool is_aligned = reinterpret_cast<uintptr_t>(at) % sizeof probe == 0;
  if (handle.size != sizeof probe || handle.is_block() || !buffer->memory.is_contiguous() || !is_aligned) {
    return of_code(Code::kShortage, "an atomic operation wants 8 bytes at an address that is a multiple of 8");
  }
  auto* const probed = reinterpret_cast<std::byte*>(&probe);
  if (gather_checked(buffer->memory, handle.offset, sizeof probe, probed) != CopyOutcome::kDone) {
    return of_code(Code::kFault);
  }
  const bool is_frozen = buffer->freezable() != nullptr && buffer->freezable()->frozen();
  if (is_frozen || !may_be_written(at)) return of_code(Code::kFault);
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
  uint8_t kind = 0;
  int64_t operand = 0, expected = 0;
  const auto wanted = wanted_of(request, kind, operand, expected);
  if (!wanted) return;
  const auto what = static_cast<BulkOperation::Kind>(kind);
  answer(request, apply_atomic(wanted->handle, what, operand, expected, request.from));
}

void Bulk::drop_buffer(const std::shared_ptr<Message>& request) {
  const auto wanted = wanted_of(*request);
  if (!wanted) return;
  const auto done = [self = shared_from_this(), request] { self->answer(*request, {}); };
  const Refusal why = drop_here(wanted->handle, false, done);
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
