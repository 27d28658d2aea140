#include "monarch/net/tcp/chunks.h"

#include <gtest/gtest.h>

#include <random>

namespace monarch {
namespace {

std::vector<std::byte> record(uint64_t token, size_t body_size) {
  const std::vector<std::byte> body(body_size, static_cast<std::byte>(token));
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.token = token;
  return encode_to_vector(outgoing);
}

void append(std::vector<std::byte>& stream, ByteSpan bytes) { stream.insert(stream.end(), bytes.begin(), bytes.end()); }

void append_chunk(std::vector<std::byte>& stream, ChunkLane lane, ByteSpan bytes) {
  append(stream, encode_chunk(lane, static_cast<uint32_t>(bytes.size())));
  append(stream, bytes);
}

// Both lanes cut anywhere, one among the other, with signs of life between.
TEST(ChunkReader, PutsBothLanesTogetherWhateverThePortions) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> lanes[2], stream;
    for (uint64_t i = 0; i < 20; ++i) {
      append(lanes[0], record(i, random() % 5000));
      append(lanes[1], record(100 + i, random() % 50));
    }
    size_t at[2] = {0, 0};
    while (at[0] < lanes[0].size() || at[1] < lanes[1].size()) {
      const size_t lane = random() % 2;
      const size_t size = std::min<size_t>(1 + random() % 3000, lanes[lane].size() - at[lane]);
      if (size != 0) append_chunk(stream, static_cast<ChunkLane>(lane), {lanes[lane].data() + at[lane], size});
      at[lane] += size;
      if (random() % 4 == 0) append_chunk(stream, ChunkLane::kAlive, {});
    }
    ChunkReader reader(7, 1 << 20);
    uint64_t next[2] = {0, 100};
    const auto take = [&](ChunkLane lane, MessagePtr message) {
      EXPECT_EQ(message->header.token, next[static_cast<size_t>(lane)]++);
      EXPECT_EQ(message->from, 7u);
    };
    for (ByteSpan left(stream); !left.empty();) {
      const auto room = random() % 2 == 0 ? reader.direct() : std::span<std::byte>();
      const size_t count = std::min<size_t>({left.size(), 1 + random() % 2000, room.empty() ? SIZE_MAX : room.size()});
      if (room.empty()) {
        ASSERT_TRUE(reader.feed(left.first(count), take)) << seed;
      } else {
        std::memcpy(room.data(), left.data(), count);
        ASSERT_TRUE(reader.advance(count, take)) << seed;
      }
      left = left.subspan(count);
    }
    EXPECT_EQ(next[0], 20u);
    EXPECT_EQ(next[1], 120u);
  }
}

// A stream that ends at any byte, and one that brings the rest of the record, beside which control goes on.
TEST(ChunkReader, ARecordGoesOnInAnotherReaderWhereverTheFirstOneEnds) {
  const std::vector<std::byte> whole = record(3, 400);
  std::vector<std::byte> first;
  append_chunk(first, ChunkLane::kData, record(1, 8));
  append_chunk(first, ChunkLane::kControl, record(2, 8));
  const size_t before = first.size() + kChunkHeader;
  append_chunk(first, ChunkLane::kData, whole);
  for (size_t end = before; end < first.size(); ++end) {
    std::vector<uint64_t> tokens;
    const auto take = [&](ChunkLane, MessagePtr message) {
      tokens.push_back(message->header.token);
      EXPECT_EQ(message->body.size(), tokens.back() == 3 ? 400u : 8u);
    };
    ChunkReader reader(1, 1 << 10), next(1, 1 << 10);
    ASSERT_TRUE(reader.feed(ByteSpan(first).first(end), take));
    auto begun = reader.take_begun();
    ASSERT_EQ(begun != nullptr, end != before);
    if (begun == nullptr) continue;
    ASSERT_EQ(begun->begun(), end - before);
    ASSERT_TRUE(next.go_on_with(std::move(begun)));
    std::vector<std::byte> rest;
    append_chunk(rest, ChunkLane::kControl, record(4, 8));
    append_chunk(rest, ChunkLane::kData, ByteSpan(whole).subspan(end - before));
    append_chunk(rest, ChunkLane::kData, record(5, 8));
    ASSERT_TRUE(next.feed(rest, take));
    ASSERT_EQ(tokens, (std::vector<uint64_t>{1, 2, 4, 3, 5}));
    EXPECT_EQ(next.take_begun(), nullptr);
  }
}

TEST(ChunkReader, WhatHasBegunAlreadyGoesOnWithNothingElse) {
  ChunkReader first(1, 1 << 10), next(1, 1 << 10);
  std::vector<std::byte> stream;
  append_chunk(stream, ChunkLane::kData, ByteSpan(record(1, 100)).first(80));
  const auto take = [](ChunkLane, MessagePtr) {};
  ASSERT_TRUE(first.feed(stream, take));
  ASSERT_TRUE(next.feed(stream, take));
  EXPECT_FALSE(next.go_on_with(first.take_begun()));
}

TEST(ChunkReader, RefusesWhatMakesNoSenseAndStaysSo) {
  const auto refused = [](std::vector<std::byte> stream) {
    ChunkReader reader(1, 1 << 10);
    int taken = 0;
    const auto take = [&](ChunkLane, MessagePtr) { ++taken; };
    const bool refuses = !reader.feed(stream, take);
    return refuses && taken == 0 && !reader.error().empty() && reader.direct().empty() && !reader.feed(stream, take);
  };
  const auto header = [](uint32_t size, int lane, int zero) {
    std::vector<std::byte> bytes;
    append(bytes, encode_chunk(static_cast<ChunkLane>(lane), size));
    bytes[6] = static_cast<std::byte>(zero);
    return bytes;
  };
  EXPECT_TRUE(refused(header(8, 3, 0))) << "no such lane";
  EXPECT_TRUE(refused(header(8, 0, 1))) << "not zero";
  EXPECT_TRUE(refused(header(0, 0, 0))) << "an empty chunk would be work for nothing";
  EXPECT_TRUE(refused(header(8, 2, 0))) << "a sign of life says nothing";
  EXPECT_TRUE(refused(header(kChunkMax + 1, 0, 0)));
  std::vector<std::byte> large;
  append_chunk(large, ChunkLane::kControl, record(1, 2000));
  EXPECT_TRUE(refused(large)) << "above the limit of the control lane";
  std::vector<std::byte> nonsense;
  append_chunk(nonsense, ChunkLane::kData, std::vector<std::byte>(64, std::byte{0xee}));
  EXPECT_TRUE(refused(nonsense));
  ChunkReader reader(1, 1 << 10);
  EXPECT_FALSE(reader.feed(nonsense, [](ChunkLane, MessagePtr) {}));
  EXPECT_EQ(reader.take_begun(), nullptr);
}

}  // namespace
}  // namespace monarch
