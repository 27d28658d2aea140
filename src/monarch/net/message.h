// A received message: a private copy of one record, decoded. Queued by intrusive link; freed by whoever handled it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/ids.h"
#include "monarch/wire/frame.h"

namespace monarch {

// Whether parts of a record may lie in the sender's arena: only where the link can look them up there. Elsewhere such a
// record is malformed.
enum class ArenaParts : uint8_t { kRefused, kAllowed };

// Who may know a better place than the heap for the parts of a large record that is being read.
class RecordMemory {
 public:
  virtual ~RecordMemory() = default;
  // Memory of at least `size` bytes for the next part of a record with this header and, with kFlagRouted, this route. What
  // stands in it is believed of nobody, so others may be able to write there. shared_ptr: the part. Null: the heap.
  virtual std::shared_ptr<std::byte> memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) = 0;
};

class Message {
 public:
  struct Deleter {
    void operator()(Message* message) const { destroy(message); }
  };
  using Ptr = std::unique_ptr<Message, Deleter>;

  // Room for a record of `record_size` bytes, to be filled through record() and then decoded. Null: no memory.
  static Ptr allocate(uint64_t record_size);
  // A message made here (a failure, a local delivery), as if it had been received from `from`. There is no record of it:
  // only header, body and parts. The limits are those of a record: kPartsMax parts, kRecordSizeMax bytes.
  // With a `keeper`, as long as which the parts stay as they are, those are not copied; nor is what is frozen.
  static Ptr copy_of(const Outgoing& outgoing, NodeId from, std::shared_ptr<const void> keeper = nullptr);
  // As copy_of, for a body that is text or a few bytes.
  static Ptr make(FrameHeader header, std::string_view body, NodeId from = 0);

  std::byte* record() { return record_; }
  uint64_t record_size() const { return record_size_; }

  // record() has the first bytes of one of `record_size`, for which there was no memory: the message is its header. What
  // else stood in it is lost, but for where parts lie in an arena, so that they go back. False: malformed.
  bool decode_lost(uint64_t record_size, ArenaParts arena_parts, std::string* why);
  // Decodes record(). Inline parts become parts(). Arena parts, where they are allowed, get size and no data: before the
  // message goes on, the link resolves them through arena_refs(). False: malformed, with `why`.
  bool decode(ArenaParts arena_parts, std::string* why);

  // As decode(), of one of `record_size` bytes, of which record() has what stands before the first part. Parts get size and
  // no data; none may lie in an arena.
  bool decode_head(uint64_t record_size, std::string* why);

  struct ArenaRef {
    uint32_t part;
    ArenaLocation location;
  };
  const std::vector<ArenaRef>& arena_refs() const { return arena_refs_; }

  // One cache line: all that queueing and dispatch look at.
  FrameHeader header;
  NodeId from = 0;
  Message* next = nullptr;  // for the queue that holds it

  int64_t deadline_ns = 0;  // when its caller gives up, on the clock of the node that has received it; 0: never

  // Not 0: a message of so many bytes for which there was no memory here. It has a header, and neither body nor parts.
  uint64_t lost_bytes = 0;

  ByteSpan body;
  std::vector<Part> parts;

  std::string_view text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  uint64_t total_bytes() const;  // body and parts, wherever they lie
  FrameRoute route() const;      // empty without kFlagRouted

 private:
  Message() = default;
  static void destroy(Message* message);

  std::vector<ArenaRef> arena_refs_;
  uint64_t record_size_ = 0;
  std::byte* record_ = nullptr;  // trailing storage, or large_'s
  const std::byte* route_ = nullptr;  // in record_; null without kFlagRouted
  bool is_block_ = false;        // its memory is a message block
  std::shared_ptr<std::byte> large_;  // shared: parts of a large record alias it
};

using MessagePtr = Message::Ptr;

// FIFO of messages; not thread-safe.
class MessageQueue {
 public:
  MessageQueue() = default;
  ~MessageQueue() { clear(); }
  MessageQueue(const MessageQueue&) = delete;
  MessageQueue& operator=(const MessageQueue&) = delete;

  bool empty() const { return head_ == nullptr; }
  void push(MessagePtr message) {
    Message* raw = message.release();
    raw->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = raw;
    tail_ = raw;
  }
  const Message* first() const { return head_; }  // null: there is none
  MessagePtr pop() {  // null if there is none
    Message* raw = head_;
    if (raw != nullptr) head_ = raw->next;
    return MessagePtr(raw);
  }
  // The first that `wanted` is true of; null: none.
  template <typename Wanted>
  const Message* find(Wanted&& wanted) const {
    for (const Message* message = head_; message != nullptr; message = message->next) {
      if (wanted(*message)) return message;
    }
    return nullptr;
  }
  // Takes everything from `other`, which must come after what is here.
  void take(MessageQueue& other) {
    if (other.head_ == nullptr) return;
    (head_ == nullptr ? head_ : tail_->next) = other.head_;
    tail_ = other.tail_;
    other.head_ = nullptr;
  }
  // Takes a list by `next`, newest first. Not null.
  void take_reversed(Message* newest) {
    Message* const last = newest;
    Message* oldest = nullptr;
    while (newest != nullptr) {
      Message* next = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = next;
    }
    (head_ == nullptr ? head_ : tail_->next) = oldest;
    tail_ = last;
  }
  void clear() {
    while (!empty()) pop();
  }

 private:
  Message* head_ = nullptr;
  Message* tail_ = nullptr;
};

// ---- Encoding a record (used by every lane) ----

// The header with the sizes of what it stands before filled in.
FrameHeader header_of(const Outgoing& outgoing);

// Size of the record for `outgoing` when the parts whose `locations` entry is 0 (or all, if empty) go inline.
uint64_t record_size_of(const Outgoing& outgoing, std::span<const uint64_t> locations);

// Calls put(data, size) for consecutive pieces that together are the record; padding included.
template <typename Put>
void encode_record(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t record_size, Put&& put) {
  static constexpr std::byte kZeros[8] = {};
  struct {
    uint64_t size;
    FrameHeader header;
  } prologue{record_size, header_of(outgoing)};
  static_assert(sizeof prologue == kRecordPrologue);
  put(&prologue, sizeof prologue);
  if ((outgoing.header.flags & kFlagRouted) != 0) put(&outgoing.route, sizeof outgoing.route);
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    const PartRef ref{outgoing.parts[i].size(), locations.empty() ? 0 : locations[i]};
    put(&ref, sizeof ref);
  }
  auto put_padded = [&](ByteSpan bytes) {
    if (!bytes.empty()) put(bytes.data(), bytes.size());
    if (const uint64_t padding = align8(bytes.size()) - bytes.size(); padding != 0) put(kZeros, padding);
  };
  put_padded(outgoing.body);
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    if (locations.empty() || locations[i] == 0) put_padded(outgoing.parts[i]);
  }
}

// The record as one heap block. Throws std::bad_alloc.
std::vector<std::byte> encode_to_vector(const Outgoing& outgoing, std::span<const uint64_t> locations = {});

// ---- Assembling records from a byte stream (rings and sockets) ----

// Feeds on bytes in any portions, gives whole messages; of one that there is no memory for the header (lost_bytes). A
// malformed stream is reported and then stays failed.
class RecordAssembler {
 public:
  explicit RecordAssembler(ArenaParts arena_parts, uint64_t record_size_max = kRecordSizeMax)
      : arena_parts_(arena_parts), record_size_max_(record_size_max) {}

  // Where the next bytes go (at most `wanted` are sensible), until advance() is told how many came.
  std::span<std::byte> buffer();
  // False: the stream is malformed (see error()). `memory` may be null; of a lane that has arena parts it is.
  bool advance(size_t count, NodeId from, RecordMemory* memory = nullptr);
  MessagePtr take() { return std::move(done_); }  // after advance() returned true: a message, or null
  const std::string& error() const { return error_; }
  // How many bytes have come of a record that is not whole yet.
  uint64_t begun() const { return have_; }

 private:
  bool is_allowed(uint64_t size) const { return valid_record_size(size) && size <= record_size_max_; }
  size_t head_wanted() const;
  bool begin_record(bool in_parts);
  bool begin_part(RecordMemory* memory);
  bool end_record(NodeId from);

  const ArenaParts arena_parts_;
  const uint64_t record_size_max_;
  std::byte head_[kRecordPrologue + sizeof(FrameRoute)];  // of a record that has no memory yet
  uint64_t have_ = 0;  // bytes of the current record, its size word included
  uint64_t size_ = 0;  // all of its bytes, once current_ is there
  MessagePtr current_;
  MessagePtr done_;
  std::string error_;
  // What is in the way of current_->record() having all of its bytes. kLost: there was no memory, and the rest is ignored.
  enum class Rest : uint8_t { kNone, kInParts, kLost };
  Rest rest_ = Rest::kNone;
  size_t next_part_ = 0;
  std::span<std::byte> part_room_;  // that is still to be filled, of the part before that
  std::byte ignored_[1024];
};

}  // namespace monarch
