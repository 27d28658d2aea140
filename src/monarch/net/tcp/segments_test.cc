#include "monarch/net/tcp/segments.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace monarch {
namespace {

void append(std::vector<std::byte>& stream, ByteSpan bytes) { stream.insert(stream.end(), bytes.begin(), bytes.end()); }

std::vector<std::byte> record(uint64_t token, size_t body_size) {
  const std::vector<std::byte> body(body_size, static_cast<std::byte>(token));
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.token = token;
  return encode_to_vector(outgoing);
}

void ignore(ChunkLane, MessagePtr) {}

// A reader whose data is striped.
struct Striped {
  explicit Striped(size_t stripes) : reader(7, 1 << 20), segments(reader) {
    const ChunkHeader word = encode_chunk(ChunkLane::kStriped, 0);
    EXPECT_TRUE(reader.feed(word, ignore));
    for (size_t i = 0; i < stripes; ++i) segments.add();
  }
  ChunkReader reader;
  Segments segments;
};

// Cut anywhere, by any stripes, which bring it in any portions, before and after their turn.
TEST(Segments, PutsTheDataTogetherWhicheverComesFirst) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    constexpr uint64_t kRecords = 30;
    const size_t count = 1 + random() % 4;
    std::vector<std::byte> data;
    for (uint64_t i = 0; i < kRecords; ++i) append(data, record(i, random() % 5000));
    std::vector<std::vector<std::byte>> streams(count);
    uint64_t number = 0;
    for (size_t at = 0; at < data.size();) {
      const size_t size = std::min<size_t>(1 + random() % 4000, data.size() - at);
      std::vector<std::byte>& stream = streams[random() % count];
      append(stream, encode_segment(static_cast<uint32_t>(size), number++));
      append(stream, ByteSpan(data).subspan(at, size));
      at += size;
    }
    Striped striped(count);
    Segments& segments = striped.segments;
    uint64_t next = 0;
    const auto take = [&](ChunkLane lane, MessagePtr message) {
      EXPECT_EQ(lane, ChunkLane::kData);
      EXPECT_EQ(message->header.token, next++);
    };
    std::vector<ByteSpan> left(streams.begin(), streams.end());
    for (int tries = 0; next < kRecords; ++tries) {
      ASSERT_LT(tries, 1'000'000) << seed;
      const size_t i = random() % count;
      if (left[i].empty() || !segments.may_read(i)) continue;
      const auto room = random() % 2 == 0 ? segments.direct(i) : std::span<std::byte>();
      const size_t size = std::min<size_t>({left[i].size(), 1 + random() % 3000, room.empty() ? SIZE_MAX : room.size()});
      if (room.empty()) {
        ASSERT_TRUE(segments.feed(i, left[i].first(size), take)) << seed;
      } else {
        std::memcpy(room.data(), left[i].data(), size);
        ASSERT_TRUE(segments.advance(i, size, take)) << seed;
      }
      left[i] = left[i].subspan(size);
    }
    EXPECT_FALSE(segments.is_due());
  }
}

TEST(Segments, WaitForTheWordThatDataIsStriped) {
  ChunkReader reader(7, 1 << 20);
  Segments segments(reader);
  const size_t stripe = segments.add();
  const std::vector<std::byte> bytes = record(5, 100);
  int taken = 0;
  const auto take = [&](ChunkLane, MessagePtr) { ++taken; };
  EXPECT_TRUE(segments.may_read(stripe));
  EXPECT_FALSE(segments.is_due());
  std::vector<std::byte> stream;
  append(stream, encode_segment(static_cast<uint32_t>(bytes.size()), 0));
  append(stream, bytes);
  ASSERT_TRUE(segments.feed(stripe, stream, take));
  EXPECT_FALSE(segments.may_read(stripe));
  EXPECT_TRUE(segments.is_due());
  EXPECT_EQ(taken, 0);
  ASSERT_TRUE(reader.feed(encode_chunk(ChunkLane::kStriped, 0), take));
  ASSERT_TRUE(segments.go_on(take));
  EXPECT_EQ(taken, 1);
  EXPECT_TRUE(segments.may_read(stripe));
}

TEST(Segments, WhatCannotBeIsMalformed) {
  SegmentHeader odd = encode_segment(10, 0);
  odd[5] = std::byte{1};
  for (const SegmentHeader& header : {encode_segment(0, 0), encode_segment(kSegmentMax + 1, 0), odd}) {
    Striped striped(2);
    EXPECT_FALSE(striped.segments.feed(1, header, ignore));
    EXPECT_FALSE(striped.reader.error().empty());
    EXPECT_FALSE(striped.segments.feed(0, encode_segment(10, 0), ignore)) << "it stays so";
  }
}

TEST(Segments, ANumberThatWasThereIsMalformed) {
  Striped striped(2);
  const std::vector<std::byte> bytes = record(5, 100);
  const auto size = static_cast<uint32_t>(bytes.size());
  std::vector<std::byte> stream;
  append(stream, encode_segment(size, 0));
  append(stream, bytes);
  ASSERT_TRUE(striped.segments.feed(0, stream, ignore));
  EXPECT_FALSE(striped.segments.feed(1, encode_segment(size, 0), ignore));
}

}  // namespace
}  // namespace monarch
