// The data of a link on several streams, its *stripes*: cut into chunks, which are numbered from 0 over all stripes. Any
// stripe may carry any chunk, in the order of their numbers on each; they are put together in that order.
//
//   offset  size
//   0       4     bytes that follow, 1 to kStripeChunkMax; 0: a sign of life, with the number 0
//   4       4     zero
//   8       8     number
#pragma once

#include <array>
#include <vector>

#include "monarch/net/tcp/chunks.h"

namespace monarch {

inline constexpr size_t kStripeHeader = 16;
inline constexpr uint32_t kStripeChunkMax = 1 << 20;

using StripeHeader = std::array<std::byte, kStripeHeader>;
StripeHeader encode_stripe_chunk(uint32_t size, uint64_t number);

// Puts together what comes by the stripes of one link, for its reader. Nothing is kept but what was read beyond the end of
// a chunk: a stripe whose next one is not in turn yet is not to be read. Nothing that it reads is trusted.
class StripeReader {
 public:
  // `reader` outlives this.
  explicit StripeReader(ChunkReader& reader) : reader_(reader) {}

  size_t add();  // a stripe; gives its index
  // Whether more may be fed to it. It changes with what others bring, and when the reader learns that data is striped.
  bool may_read(size_t stripe) const;
  // What was read of a stripe before its turn had come and is in turn now is given out. False: see ChunkReader::error().
  bool go_on(const ChunkReader::Take& take);
  // Where the next bytes of the stripe belong, if that is in the middle of a chunk that is in turn. Empty: feed.
  std::span<std::byte> direct(size_t stripe);
  // As ChunkReader's. All that is in turn behind it follows.
  bool advance(size_t stripe, size_t count, const ChunkReader::Take& take);
  bool feed(size_t stripe, ByteSpan bytes, const ChunkReader::Take& take);

 private:
  struct Stripe {
    StripeHeader header{};
    size_t header_size = 0;
    uint32_t left = 0;  // of a chunk whose header is there
    uint64_t number = 0;
    std::vector<std::byte> early;  // what came behind a header that is not in turn
  };
  bool in_turn(const Stripe& stripe) const { return reader_.is_striped() && stripe.number == next_; }
  bool begin_chunk(Stripe& stripe);
  bool took(Stripe& stripe, size_t count, const ChunkReader::Take& take);
  bool read(Stripe& stripe, ByteSpan bytes, const ChunkReader::Take& take);

  ChunkReader& reader_;
  std::vector<Stripe> stripes_;
  uint64_t next_ = 0;  // number of the chunk that is in turn
};

}  // namespace monarch
