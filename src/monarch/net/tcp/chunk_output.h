// What is on its way to one channel: runs of bytes of records, each behind a header that says what they are
// (net/tcp/chunks.h, net/tcp/stripe_reader.h). No lock and no thread of its own.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "monarch/net/channel.h"
#include "monarch/net/message.h"
#include "monarch/net/tcp/stripe_reader.h"

namespace monarch {

// One frame, of which not everything has its place on a channel yet.
struct OutRecord {
  // `kept`: all that `outgoing` refers to stays as it is for as long as the record's keeper is held. Throws bad_alloc.
  static std::shared_ptr<OutRecord> make(const Outgoing& outgoing, bool kept);
  // The peer has so much of it, which is not all.
  void leave_out(uint64_t begun);

  std::vector<iovec> pieces;  // what has no place yet begins at `next`
  size_t next = 0;
  uint64_t left = 0;     // bytes that have no place yet
  bool borrows = false;  // some pieces are the caller's
  std::unique_ptr<std::byte[]> bytes;  // that pieces point to
  std::shared_ptr<const void> keeper;  // of what else they point to; shared: with the session that may send it again
};
using OutRecords = std::deque<std::shared_ptr<OutRecord>>;  // shared: by its pieces on channels and the queue

class ChunkOutput {
 public:
  explicit ChunkOutput(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}

  Channel& channel() { return *channel_; }
  std::unique_ptr<Channel> take_channel() { return std::move(channel_); }
  // Bytes that have their place and are not written.
  uint64_t committed() const { return committed_; }
  bool empty() const { return pieces_.empty(); }

  // A header behind which nothing comes.
  void add_word(ChunkLane lane);
  void add_stripe_sign();  // of life
  // As much of the records as fits. The bytes of records in it.
  uint32_t add_chunk(ChunkLane lane, OutRecords& records);
  uint32_t add_stripe_chunk(uint64_t number, OutRecords& records);

  // kBroken: its reader says so.
  enum class Written { kSome, kNoRoom, kShortage, kBroken };
  // Writes at most so much; tells how many bytes of records went.
  Written write(uint64_t room, uint64_t* of_records);

  // Gives each piece of `record` that is not written to `keep`, and how much of the record began with it.
  template <typename Keep>
  void each_piece(const OutRecord& record, Keep keep) {
    for (Piece& piece : pieces_) {
      if (piece.record.get() == &record) keep(piece.bytes, piece.left);
    }
  }
  void clear() {
    pieces_.clear();
    committed_ = 0;
  }

  static constexpr uint32_t kChunkBytes = 256 << 10;

 private:
  struct Piece {
    iovec bytes;
    StripeHeader header;               // that bytes points to, of the first piece of a chunk
    std::shared_ptr<OutRecord> record;  // whose bytes these are; null: they are a header
    uint64_t left = 0;                  // of it, from here on
  };
  Piece& add_header(size_t size);
  uint32_t add_bytes(OutRecords& records);

  std::unique_ptr<Channel> channel_;
  std::deque<Piece> pieces_;
  uint64_t committed_ = 0;
};

inline bool is_shortage(int error) { return error == ENOBUFS || error == ENOMEM; }
inline bool is_no_room(int error) { return error == EAGAIN || error == EWOULDBLOCK; }
// Parts of so many bytes stay where they are, of a record that is not copied as a whole.
inline constexpr size_t kPieceMin = 4 << 10;

}  // namespace monarch
