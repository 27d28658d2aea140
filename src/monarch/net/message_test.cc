#include "monarch/net/message.h"

#include <gtest/gtest.h>

#include <random>

// A size that there is no memory for has to come back as null under the sanitizers too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace monarch {
namespace {

// Feeds `stream` in portions that `next_size` chooses; gives what came out, or the error.
struct Fed {
  std::vector<MessagePtr> messages;
  std::string error;
};
template <typename NextSize>
Fed feed(RecordAssembler& assembler, ByteSpan stream, NextSize next_size) {
  Fed fed;
  while (!stream.empty()) {
    const auto into = assembler.buffer();
    const size_t count = std::min({into.size(), stream.size(), next_size()});
    std::memcpy(into.data(), stream.data(), count);
    stream = stream.subspan(count);
    if (!assembler.advance(count, 7)) {
      fed.error = assembler.error();
      return fed;
    }
    if (MessagePtr message = assembler.take()) fed.messages.push_back(std::move(message));
  }
  return fed;
}

std::vector<std::byte> encoded(size_t body_size, size_t part_size, uint64_t token) {
  std::vector<std::byte> body(body_size, std::byte{1}), part(part_size, std::byte{2});
  const ByteSpan parts[] = {part, {}};
  Outgoing outgoing{FrameHeader{}, body, parts};
  outgoing.header.token = token;
  return encode_to_vector(outgoing);
}

TEST(RecordAssembler, GivesTheSameMessagesWhateverThePortions) {
  std::vector<std::byte> stream;
  const size_t sizes[] = {0, 1, 8, 100, 5000, 70'000, 300'000};
  for (uint64_t i = 0; i < std::size(sizes); ++i) {
    const auto record = encoded(sizes[i], sizes[std::size(sizes) - 1 - i], i);
    stream.insert(stream.end(), record.begin(), record.end());
  }
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    RecordAssembler assembler;
    Fed fed = feed(assembler, stream, [&]() -> size_t {
      if (seed == 0) return SIZE_MAX;
      if (seed == 1) return 7;
      return 1 + random() % (seed % 2 == 0 ? 50 : 100'000);
    });
    ASSERT_EQ(fed.error, "");
    ASSERT_EQ(fed.messages.size(), std::size(sizes));
    for (uint64_t i = 0; i < std::size(sizes); ++i) {
      EXPECT_EQ(fed.messages[i]->header.token, i);
      EXPECT_EQ(fed.messages[i]->from, 7u);
      EXPECT_EQ(fed.messages[i]->body.size(), sizes[i]);
      EXPECT_EQ(fed.messages[i]->parts[0].size, sizes[std::size(sizes) - 1 - i]);
    }
  }
}

TEST(RecordAssembler, StaysFailedAfterABadSizeAndGivesNothingMore) {
  for (uint64_t size : {uint64_t{0}, uint64_t{63}, uint64_t{65}, UINT64_MAX, kRecordSizeMax + 8}) {
    RecordAssembler assembler;
    Fed fed = feed(assembler, as_byte_span(&size, sizeof size), [] { return SIZE_MAX; });
    EXPECT_EQ(fed.error, "frame of " + std::to_string(size) + " bytes is not allowed");
    EXPECT_FALSE(assembler.advance(0, 7));
    EXPECT_EQ(assembler.take(), nullptr);
  }
  RecordAssembler small(1024);
  const uint64_t size = 1032;
  EXPECT_FALSE(feed(small, as_byte_span(&size, sizeof size), [] { return SIZE_MAX; }).error.empty());
}

TEST(RecordAssembler, AFrameThatDoesNotDecodeIsAnErrorNotAMessage) {
  auto record = encoded(10, 10, 1);
  record[20] = std::byte{99};  // kind
  RecordAssembler assembler;
  Fed fed = feed(assembler, record, [] { return SIZE_MAX; });
  EXPECT_EQ(fed.error, "unknown frame kind");
  EXPECT_TRUE(fed.messages.empty());
  EXPECT_EQ(assembler.take(), nullptr);
}

TEST(Message, NoMemoryForARecordIsNullNotTheEnd) {
  EXPECT_EQ(Message::allocate(uint64_t{1} << 62), nullptr);
}

TEST(Message, PartsOutliveTheirMessage) {
  for (size_t size : {size_t{100}, size_t{1} << 20}) {
    std::vector<std::byte> bytes(size, std::byte{4});
    const ByteSpan part(bytes);
    MessagePtr message = Message::copy_of(Outgoing{FrameHeader{}, {}, {&part, 1}}, 3);
    Part kept = message->parts[0];
    message.reset();
    EXPECT_EQ(kept.data[size - 1], std::byte{4});
    kept.data[0] = std::byte{5};
  }
}

TEST(MessageQueue, IsFirstInFirstOutAndTakesAnotherBehindItself) {
  auto numbered = [](uint64_t number) {
    FrameHeader header;
    header.token = number;
    return Message::make(header, "");
  };
  MessageQueue one, two;
  one.push(numbered(1));
  one.push(numbered(2));
  two.push(numbered(3));
  one.take(two);
  one.take(two);
  EXPECT_TRUE(two.empty());
  one.push(numbered(4));
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(one.pop()->header.token, i);
  EXPECT_TRUE(one.empty());
}

}  // namespace
}  // namespace monarch
