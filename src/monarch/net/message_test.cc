#include "monarch/net/message.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <random>

#include "monarch/base/system.h"

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
Fed feed(RecordAssembler& assembler, ByteSpan stream, NextSize next_size, RecordMemory* memory = nullptr) {
  Fed fed;
  while (!stream.empty()) {
    const auto into = assembler.buffer();
    const size_t count = std::min({into.size(), stream.size(), next_size()});
    std::memcpy(into.data(), stream.data(), count);
    stream = stream.subspan(count);
    if (!assembler.advance(count, 7, memory)) {
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

TEST(Message, KeepsItsRouteWhetherItWasReceivedOrMadeHere) {
  const std::string body = "odd";
  std::vector<std::byte> bulk(100, std::byte{2});
  const ByteSpan parts[] = {bulk};
  Outgoing outgoing{FrameHeader{}, as_byte_span(body.data(), body.size()), parts};
  outgoing.header.flags = kFlagRouted;
  outgoing.route = {11, 22, 3, 0};
  RecordAssembler assembler(ArenaParts::kRefused);
  Fed fed = feed(assembler, encode_to_vector(outgoing), [] { return SIZE_MAX; });
  ASSERT_EQ(fed.messages.size(), 1u);
  const MessagePtr made = Message::copy_of(outgoing, 1);
  for (const Message* message : {fed.messages[0].get(), made.get()}) {
    EXPECT_EQ(message->route().origin, 11u);
    EXPECT_EQ(message->route().destination, 22u);
    EXPECT_EQ(message->route().hops, 3u);
    EXPECT_EQ(message->text(), body);
    EXPECT_EQ(message->parts[0].size, bulk.size());
  }
}

TEST(Message, HasAsManyPartsAsItWasGiven) {
  const std::vector<ByteSpan> parts(70'000);
  const MessagePtr message = Message::copy_of({FrameHeader{}, {}, parts}, 1);
  EXPECT_EQ(message->header.part_count, 70'000u);
  EXPECT_EQ(message->parts.size(), 70'000u);
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
    RecordAssembler assembler(ArenaParts::kRefused);
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
    RecordAssembler assembler(ArenaParts::kRefused);
    Fed fed = feed(assembler, as_byte_span(&size, sizeof size), [] { return SIZE_MAX; });
    EXPECT_EQ(fed.error, "frame of " + std::to_string(size) + " bytes is not allowed");
    EXPECT_FALSE(assembler.advance(0, 7));
    EXPECT_EQ(assembler.take(), nullptr);
  }
  RecordAssembler small(ArenaParts::kRefused, 1024);
  const uint64_t size = 1032;
  EXPECT_FALSE(feed(small, as_byte_span(&size, sizeof size), [] { return SIZE_MAX; }).error.empty());
}

TEST(RecordAssembler, AFrameThatDoesNotDecodeIsAnErrorNotAMessage) {
  auto record = encoded(10, 10, 1);
  record[19] = std::byte{99};  // kind
  RecordAssembler assembler(ArenaParts::kRefused);
  Fed fed = feed(assembler, record, [] { return SIZE_MAX; });
  EXPECT_EQ(fed.error, "unknown frame kind");
  EXPECT_TRUE(fed.messages.empty());
  EXPECT_EQ(assembler.take(), nullptr);
}

// A record of two parts of 16 bytes, the second of which lies at `location`.
std::vector<std::byte> with_location(uint64_t location) {
  const std::vector<std::byte> bytes(16, std::byte{2});
  const ByteSpan parts[] = {bytes, bytes};
  const uint64_t locations[] = {0, location};
  return encode_to_vector(Outgoing{FrameHeader{}, {}, parts}, locations);
}

TEST(RecordAssembler, APartInAnArenaIsMalformedWhereThereIsNone) {
  const auto record = with_location(ArenaLocation{1, false, 4096}.pack());
  RecordAssembler without(ArenaParts::kRefused);
  Fed fed = feed(without, record, [] { return SIZE_MAX; });
  EXPECT_EQ(fed.error, "a part in an arena, on a lane that has none");
  EXPECT_TRUE(fed.messages.empty());

  RecordAssembler with(ArenaParts::kAllowed);
  fed = feed(with, record, [] { return SIZE_MAX; });
  ASSERT_EQ(fed.error, "");
  ASSERT_EQ(fed.messages[0]->arena_refs().size(), 1u);
  EXPECT_EQ(fed.messages[0]->arena_refs()[0].part, 1u);
  EXPECT_EQ(fed.messages[0]->arena_refs()[0].location.offset, 4096u);
}

TEST(RecordAssembler, ALocationThatIsNoneIsMalformedEverywhere) {
  for (const uint64_t location : {uint64_t{1}, uint64_t{1} << 62, uint64_t{5} << 40, (uint64_t{1} << 63) - 1}) {
    for (const ArenaParts arena_parts : {ArenaParts::kRefused, ArenaParts::kAllowed}) {
      RecordAssembler assembler(arena_parts);
      EXPECT_NE(feed(assembler, with_location(location), [] { return SIZE_MAX; }).error, "") << location;
    }
  }
}

TEST(Message, NoMemoryForARecordIsNullNotTheEnd) {
  EXPECT_EQ(Message::allocate(uint64_t{1} << 62), nullptr);
}

// Of a record in the middle of which its stream ends, whether or not there was memory for it.
TEST(RecordAssembler, SaysHowMuchHasCome) {
  const std::vector<std::byte> record = encoded(100, 100'000, 1);
  for (const bool memory : {true, false}) {
    RecordAssembler assembler(ArenaParts::kRefused);
    EXPECT_EQ(assembler.begun(), 0u);
    sys::fail_nth(memory ? 0 : 1);
    for (size_t at = 0; at < record.size(); at += 5000) {
      const ByteSpan some = ByteSpan(record).subspan(at, std::min<size_t>(5000, record.size() - at));
      EXPECT_EQ(assembler.begun(), at);
      const Fed fed = feed(assembler, some, [] { return size_t{777}; });
      EXPECT_EQ(fed.error, "");
      for (const MessagePtr& message : fed.messages) EXPECT_EQ(message->lost_bytes != 0, !memory);
    }
    sys::fail_nth(0);
    EXPECT_EQ(assembler.begun(), 0u) << "it is whole";
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these touch memory that is reserved
TEST(RecordAssembler, ASizeThatIsOnlyAnnouncedCostsNoMemory) {
  const auto resident_pages = [] {
    uint64_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident;
  };
  // No more than this: an emulator, qemu-user, keeps 24 bytes for each page that its guest reserves.
  const uint64_t size = uint64_t{1} << 30, before = resident_pages();
  std::vector<std::byte> begun(1000);
  std::memcpy(begun.data(), &size, sizeof size);
  RecordAssembler assembler(ArenaParts::kRefused);
  EXPECT_EQ(feed(assembler, begun, [] { return SIZE_MAX; }).error, "");
  EXPECT_EQ(assembler.begun(), begun.size());
  EXPECT_LT(resident_pages() - before, (16u << 20) / 4096);
}
#endif

// What is read is put where others may write, as they may where a gateway reads to.
struct Place final : RecordMemory {
  std::shared_ptr<std::byte> memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) override {
    asked.push_back({header.token, route.destination, size});
    if (header.token == 3) return nullptr;
    return given = std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
  }
  struct Asked {
    uint64_t token, destination, size;
    bool operator==(const Asked&) const = default;
  };
  std::vector<Asked> asked;
  std::shared_ptr<std::byte> given;  // shared: with the message
};

// Who knows where a large record goes on to is asked for each of its parts; others are read to the heap.
TEST(RecordAssembler, PartsOfALargeRecordAreReadToWhereTheyAreWanted) {
  const std::vector<std::byte> one(200'001, std::byte{5}), two(30'000, std::byte{6}), body(333, std::byte{7});
  const ByteSpan parts[] = {{}, one, two, {}};
  std::vector<std::byte> stream = encoded(10, 100, 1);
  for (const uint64_t token : {2, 3, 4}) {
    Outgoing outgoing{FrameHeader{}, body, parts};
    outgoing.header.token = token;
    if (token == 2) outgoing.header.flags = kFlagRouted;
    outgoing.route = {11, 22, 3, 0};
    const auto record = encode_to_vector(outgoing);
    stream.insert(stream.end(), record.begin(), record.end());
  }
  for (const size_t portion : {size_t{1}, size_t{60}, SIZE_MAX}) {
    Place place;
    RecordAssembler assembler(ArenaParts::kRefused);
    const Fed fed = feed(assembler, stream, [portion] { return portion; }, &place);
    ASSERT_EQ(fed.error, "");
    ASSERT_EQ(fed.messages.size(), 4u);
    EXPECT_EQ(place.asked, (std::vector<Place::Asked>{{2, 22, 200'008}, {2, 22, 30'000}, {3, 0, 200'008}, {3, 0, 30'000},
                                                      {4, 0, 200'008}, {4, 0, 30'000}}));
    for (size_t i = 1; i < 4; ++i) {
      const Message& message = *fed.messages[i];
      ASSERT_EQ(message.parts.size(), 4u);
      EXPECT_TRUE(std::ranges::equal(message.body, body));
      EXPECT_TRUE(std::ranges::equal(ByteSpan(message.parts[1].data, message.parts[1].size), one));
      EXPECT_TRUE(std::ranges::equal(ByteSpan(message.parts[2].data, message.parts[2].size), two));
      EXPECT_EQ(message.parts[0].size + message.parts[3].size, 0u);
      EXPECT_TRUE(message.parts[1].owner.owner_before(message.parts[2].owner) ||
                  message.parts[2].owner.owner_before(message.parts[1].owner))
          << "who keeps one holds no memory of the other";
      EXPECT_EQ(message.from, 7u);
    }
    EXPECT_EQ(fed.messages[1]->route().origin, 11u);
    EXPECT_EQ(fed.messages[3]->parts[2].data, place.given.get());
  }
}

// Which others may write to, so nothing is read there that anybody goes by.
TEST(RecordAssembler, OnlyPartsAreReadToMemoryOfOthers) {
  const std::vector<std::byte> part(65'000, std::byte{5}), small(16, std::byte{6}), body(100'000, std::byte{7});
  const std::vector<ByteSpan> few(1, part), many(10'000, small);
  for (const auto& [what, parts] : {std::pair(ByteSpan(body), std::span<const ByteSpan>(few)), {ByteSpan(), many}}) {
    Place place;
    RecordAssembler assembler(ArenaParts::kRefused);
    Outgoing outgoing{FrameHeader{}, what, parts};
    const Fed fed = feed(assembler, encode_to_vector(outgoing), [] { return SIZE_MAX; }, &place);
    ASSERT_EQ(fed.messages.size(), 1u);
    for (const auto& asked : place.asked) EXPECT_EQ(asked.size, part.size());
    EXPECT_EQ(place.asked.size(), parts.size() == 1 ? 1u : 0u);
    EXPECT_TRUE(std::ranges::equal(fed.messages[0]->body, what));
  }
}

TEST(RecordAssembler, APartThatThereIsNoMemoryForCostsTheMessage) {
  const std::vector<std::byte> part(200'000, std::byte{5});
  const ByteSpan parts[] = {part, part};
  Outgoing outgoing{FrameHeader{}, {}, parts};
  outgoing.header.token = 3;  // of the heap
  outgoing.header.flags = kFlagRouted;
  outgoing.route = {11, 22, 3, 0};
  const auto record = encode_to_vector(outgoing);
  for (const uint64_t nth : {1, 2, 3}) {
    Place place;
    RecordAssembler assembler(ArenaParts::kRefused);
    sys::fail_nth(nth);
    Fed fed = feed(assembler, record, [] { return size_t{1000}; }, &place);
    sys::fail_nth(0);
    ASSERT_EQ(fed.messages.size(), 1u);
    EXPECT_EQ(fed.messages[0]->lost_bytes, nth == 3 ? 0 : record.size());
    EXPECT_EQ(fed.messages[0]->parts.size(), nth == 3 ? 2u : 0u);
    EXPECT_EQ(fed.messages[0]->header.token, 3u);
    EXPECT_EQ(fed.messages[0]->route().destination, 22u);
    fed = feed(assembler, encoded(10, 10, 9), [] { return SIZE_MAX; }, &place);
    ASSERT_EQ(fed.messages.size(), 1u) << "and the stream goes on";
    EXPECT_EQ(fed.messages[0]->header.token, 9u);
  }
}

TEST(RecordAssembler, AHeadThatLiesAboutItsPartsIsRefused) {
  const std::vector<std::byte> part(200'000, std::byte{5});
  const ByteSpan parts[] = {part, part};
  for (const uint64_t lie : {uint64_t{8}, uint64_t{200'008}, uint64_t{1} << 39, UINT64_MAX}) {
    auto record = encode_to_vector(Outgoing{FrameHeader{}, {}, parts});
    std::memcpy(record.data() + kRecordPrologue + sizeof(PartRef), &lie, sizeof lie);
    Place place;
    RecordAssembler assembler(ArenaParts::kRefused);
    EXPECT_NE(feed(assembler, record, [] { return SIZE_MAX; }, &place).error, "");
    EXPECT_TRUE(place.asked.empty());
  }
  auto record = encode_to_vector(Outgoing{FrameHeader{}, {}, parts});
  const uint64_t location = ArenaLocation{1, false, 4096}.pack();
  std::memcpy(record.data() + kRecordPrologue + sizeof(uint64_t), &location, sizeof location);
  Place place;
  RecordAssembler assembler(ArenaParts::kRefused);
  EXPECT_NE(feed(assembler, record, [] { return SIZE_MAX; }, &place).error, "");
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

TEST(Message, ACopyHasAsManyPartsAsItsOriginal) {
  const std::byte byte{7};
  const std::vector<ByteSpan> parts(70'000, ByteSpan(&byte, 1));
  MessagePtr message = Message::copy_of(Outgoing{FrameHeader{}, {}, parts}, 3);
  EXPECT_EQ(message->header.part_count, 70'000u);
  ASSERT_EQ(message->parts.size(), 70'000u);
  EXPECT_EQ(*message->parts.back().data, byte);
}

TEST(Message, SizesBeyond32BitsAreKept) {
  // Address space only: nothing reads it.
  constexpr uint64_t kSize = (uint64_t{4} << 30) + 5;
  void* nothing = mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  const Outgoing outgoing{FrameHeader{}, ByteSpan(static_cast<std::byte*>(nothing), kSize), {}};
  EXPECT_EQ(header_of(outgoing).body_size, kSize);
  EXPECT_EQ(record_size_of(outgoing, {}), align8(kRecordPrologue + kSize));
  munmap(nothing, kSize);
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
