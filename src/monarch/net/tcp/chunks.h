// Both lanes of a link on one stream: each is cut into chunks, so that a control frame waits for the end of one chunk and
// never for that of a frame.
//
//   offset  size
//   0       4     bytes that follow; at most kChunkMax
//   4       1     lane: 0 data, 1 control, or a word behind which nothing follows:
//                 2 the sender lives
//                 3 from here on no data comes here: it comes by stripes (net/tcp/stripe_reader.h)
//                 4 this was the last chunk: the stream is a stripe of another one from here on
//   5       3     zero
//
// A chunk is a run of bytes of its lane, wherever its records begin and end (wire/frame.h).
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "monarch/net/message.h"

namespace monarch {

enum class ChunkLane : uint8_t { kData = 0, kControl = 1, kAlive = 2, kStriped = 3, kStripe = 4 };

inline constexpr size_t kChunkHeader = 8;
inline constexpr uint32_t kChunkMax = 1 << 20;

using ChunkHeader = std::array<std::byte, kChunkHeader>;
ChunkHeader encode_chunk(ChunkLane lane, uint32_t size);

// Feeds on bytes in any portions, gives the messages of both lanes. Nothing that it reads is trusted: what makes no sense
// is reported, and then it stays failed.
class ChunkReader {
 public:
  using Take = std::function<void(ChunkLane lane, MessagePtr message)>;

  // `from` becomes Message::from. A record of the control lane has at most `control_max` bytes. `memory`, which may be
  // null, outlives this: for data.
  ChunkReader(NodeId from, uint64_t control_max, RecordMemory* memory = nullptr);

  // Where the next bytes of the stream belong, if that is in the middle of a chunk; they may be read straight to there
  // (advance()), or be fed like all others. Empty: feed.
  std::span<std::byte> direct();
  // `count` bytes have been read to direct(). False: malformed, see error().
  bool advance(size_t count, const Take& take);
  bool feed(ByteSpan bytes, const Take& take);
  const std::string& error() const { return error_; }
  // kStripe has come, and with it so many of the bytes that were fed last are not read.
  bool is_stripe() const { return is_stripe_; }
  size_t rest() const { return rest_; }

  // ---- Of data that comes by stripes: once kStriped has come ----
  bool is_striped() const { return is_striped_; }
  std::span<std::byte> data_direct() { return data_->buffer(); }
  // As advance().
  bool data_advance(size_t count, const Take& take);
  // Who has put it together says that it makes no sense.
  void fail(const char* why) { error_ = why; }

  // What has come of a data record that is not whole; the last call. Null: nothing, or it makes no sense.
  std::unique_ptr<RecordAssembler> take_begun();
  // The first data that comes belongs to that record. False: there was some already.
  bool go_on_with(std::unique_ptr<RecordAssembler> begun);

 private:
  bool begin_chunk();
  bool took(size_t count, const Take& take);
  RecordAssembler& assembler() { return lane_ == ChunkLane::kControl ? control_ : *data_; }

  const NodeId from_;
  RecordMemory* const memory_;
  std::unique_ptr<RecordAssembler> data_;
  RecordAssembler control_;
  ChunkHeader header_;
  size_t header_size_ = 0;  // bytes of it that have come; kChunkHeader: in the middle of a chunk
  ChunkLane lane_ = ChunkLane::kData;
  uint32_t left_ = 0;  // of the chunk
  bool is_striped_ = false, is_stripe_ = false;
  size_t rest_ = 0;
  std::string error_;
};

}  // namespace monarch
