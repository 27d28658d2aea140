// A received message: a private copy of one record, decoded. Queued by intrusive link; freed by whoever handled it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/ids.h"
#include "monarch/wire/frame.h"

namespace monarch {

class Message {
 public:
  struct Deleter {
    void operator()(Message* message) const { destroy(message); }
  };
  using Ptr = std::unique_ptr<Message, Deleter>;

  // Room for a record of `record_size` bytes, to be filled through record() and then decoded. Null: no memory.
  static Ptr allocate(uint64_t record_size);
  // A message made here (a failure, a local delivery), as if it had been received from `from`. There is no record of it:
  // only header, body and parts.
  static Ptr copy_of(const Outgoing& outgoing, NodeId from);
  // As copy_of, for a body that is text or a few bytes.
  static Ptr make(FrameHeader header, std::string_view body, NodeId from = 0);

  std::byte* record() { return record_; }
  uint64_t record_size() const { return record_size_; }

  // Decodes record(). Inline parts become parts(); arena parts get size and no data: the link resolves them through
  // arena_refs(). False: malformed, with `why`.
  bool decode(std::string* why);

  struct ArenaRef {
    uint32_t part;
    ArenaLocation location;
  };
  const std::vector<ArenaRef>& arena_refs() const { return arena_refs_; }

  // One cache line: all that queueing and dispatch look at.
  FrameHeader header;
  NodeId from = 0;
  Message* next = nullptr;  // for the queue that holds it

  ByteSpan body;
  std::vector<Part> parts;

  std::string_view text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  uint64_t total_bytes() const;  // body and parts, wherever they lie

 private:
  Message() = default;
  static void destroy(Message* message);

  std::vector<ArenaRef> arena_refs_;
  uint64_t record_size_ = 0;
  std::byte* record_ = nullptr;  // trailing storage, or large_'s
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
  MessagePtr pop() {  // null if there is none
    Message* raw = head_;
    if (raw != nullptr) head_ = raw->next;
    return MessagePtr(raw);
  }
  // Takes everything from `other`, which must come after what is here.
  void take(MessageQueue& other) {
    if (other.head_ == nullptr) return;
    (head_ == nullptr ? head_ : tail_->next) = other.head_;
    tail_ = other.tail_;
    other.head_ = nullptr;
  }
  void clear() {
    while (!empty()) pop();
  }

 private:
  Message* head_ = nullptr;
  Message* tail_ = nullptr;
};

// ---- Encoding a record (used by every lane) ----

// Size of the record for `outgoing` when the parts whose `locations` entry is 0 (or all, if empty) go inline.
uint64_t record_size_of(const Outgoing& outgoing, std::span<const uint64_t> locations);

// Calls put(data, size) for consecutive pieces that together are the record; padding included.
template <typename Put>
void encode_record(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t record_size, Put&& put) {
  static constexpr std::byte kZeros[8] = {};
  struct {
    uint64_t size;
    FrameHeader header;
  } prologue{record_size, outgoing.header};
  static_assert(sizeof prologue == kRecordPrologue);
  MONARCH_CHECK(outgoing.parts.size() <= kPartsMax);
  prologue.header.body_size = outgoing.body.size();
  prologue.header.part_count = static_cast<uint32_t>(outgoing.parts.size());
  put(&prologue, sizeof prologue);
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

// The record as one heap block.
std::vector<std::byte> encode_to_vector(const Outgoing& outgoing, std::span<const uint64_t> locations = {});

// ---- Assembling records from a byte stream (rings and sockets) ----

// Feeds on bytes in any portions, gives whole messages. A malformed stream, or one whose record there is no memory for,
// is reported and then stays failed.
class RecordAssembler {
 public:
  explicit RecordAssembler(uint64_t record_size_max = kRecordSizeMax) : record_size_max_(record_size_max) {}

  // Where the next bytes go (at most `wanted` are sensible), until advance() is told how many came.
  std::span<std::byte> buffer();
  // False: the stream is malformed (see error()).
  bool advance(size_t count, NodeId from);
  MessagePtr take() { return std::move(done_); }  // after advance() returned true: a message, or null
  const std::string& error() const { return error_; }

 private:
  uint64_t record_size_max_;
  std::byte size_bytes_[8];
  size_t have_ = 0;  // bytes of the current record, its size word included
  MessagePtr current_;
  MessagePtr done_;
  std::string error_;
};

}  // namespace monarch
