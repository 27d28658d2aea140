#include "monarch/net/tcp/stripe_reader.h"

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
  explicit Striped(size_t count) : reader(7, 1 << 20), stripes(reader) {
    const ChunkHeader word = encode_chunk(ChunkLane::kStriped, 0);
    EXPECT_TRUE(reader.feed(word, ignore));
    for (size_t i = 0; i < count; ++i) stripes.add();
  }
  ChunkReader reader;
  StripeReader stripes;
};

// Cut anywhere, by any stripes, which bring it in any portions, before and after their turn.
TEST(StripeReader, PutsTheDataTogetherWhicheverComesFirst) {
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
      append(stream, encode_stripe_chunk(static_cast<uint32_t>(size), number++));
      append(stream, ByteSpan(data).subspan(at, size));
      at += size;
    }
    Striped striped(count);
    StripeReader& stripes = striped.stripes;
    uint64_t next = 0;
    const auto take = [&](ChunkLane lane, MessagePtr message) {
      EXPECT_EQ(lane, ChunkLane::kData);
      EXPECT_EQ(message->header.token, next++);
    };
    std::vector<ByteSpan> left(streams.begin(), streams.end());
    for (int tries = 0; next < kRecords; ++tries) {
      ASSERT_LT(tries, 1'000'000) << seed;
      const size_t i = random() % count;
      if (left[i].empty() || !stripes.may_read(i)) continue;
      const auto room = random() % 2 == 0 ? stripes.direct(i) : std::span<std::byte>();
      const size_t size = std::min<size_t>({left[i].size(), 1 + random() % 3000, room.empty() ? SIZE_MAX : room.size()});
      if (room.empty()) {
        ASSERT_TRUE(stripes.feed(i, left[i].first(size), take)) << seed;
      } else {
        std::memcpy(room.data(), left[i].data(), size);
        ASSERT_TRUE(stripes.advance(i, size, take)) << seed;
      }
      left[i] = left[i].subspan(size);
    }
  }
}

TEST(StripeReader, WaitForTheWordThatDataIsStriped) {
  ChunkReader reader(7, 1 << 20);
  StripeReader stripes(reader);
  const size_t stripe = stripes.add();
  const std::vector<std::byte> bytes = record(5, 100);
  int taken = 0;
  const auto take = [&](ChunkLane, MessagePtr) { ++taken; };
  EXPECT_TRUE(stripes.may_read(stripe));
  std::vector<std::byte> stream;
  append(stream, encode_stripe_chunk(static_cast<uint32_t>(bytes.size()), 0));
  append(stream, bytes);
  ASSERT_TRUE(stripes.feed(stripe, stream, take));
  EXPECT_FALSE(stripes.may_read(stripe));
  EXPECT_EQ(taken, 0);
  ASSERT_TRUE(reader.feed(encode_chunk(ChunkLane::kStriped, 0), take));
  ASSERT_TRUE(stripes.go_on(take));
  EXPECT_EQ(taken, 1);
  EXPECT_TRUE(stripes.may_read(stripe));
}

TEST(StripeReader, WhatCannotBeIsMalformed) {
  StripeHeader odd = encode_stripe_chunk(10, 0);
  odd[5] = std::byte{1};
  for (const StripeHeader& header : {encode_stripe_chunk(0, 1), encode_stripe_chunk(kStripeChunkMax + 1, 0), odd}) {
    Striped striped(2);
    EXPECT_FALSE(striped.stripes.feed(1, header, ignore));
    EXPECT_FALSE(striped.reader.error().empty());
    EXPECT_FALSE(striped.stripes.feed(0, encode_stripe_chunk(10, 0), ignore)) << "it stays so";
  }
}

TEST(StripeReader, ASignOfLifeIsNothingElse) {
  Striped striped(2);
  const std::vector<std::byte> bytes = record(5, 100);
  std::vector<std::byte> stream;
  append(stream, encode_stripe_chunk(0, 0));
  append(stream, encode_stripe_chunk(static_cast<uint32_t>(bytes.size()), 0));
  append(stream, bytes);
  append(stream, encode_stripe_chunk(0, 0));
  int taken = 0;
  for (const std::byte& each : stream) {
    ASSERT_TRUE(striped.stripes.feed(1, {&each, 1}, [&](ChunkLane, MessagePtr) { ++taken; }));
    ASSERT_TRUE(striped.stripes.may_read(1));
  }
  EXPECT_EQ(taken, 1);
}

TEST(StripeReader, ANumberThatWasThereIsMalformed) {
  Striped striped(2);
  const std::vector<std::byte> bytes = record(5, 100);
  const auto size = static_cast<uint32_t>(bytes.size());
  std::vector<std::byte> stream;
  append(stream, encode_stripe_chunk(size, 0));
  append(stream, bytes);
  ASSERT_TRUE(striped.stripes.feed(0, stream, ignore));
  EXPECT_FALSE(striped.stripes.feed(1, encode_stripe_chunk(size, 0), ignore));
}

}  // namespace
}  // namespace monarch
