#include "monarch/wire/frame.h"

#include <gtest/gtest.h>

#include <vector>

namespace monarch {
namespace {

// A request with a body of 3 bytes, an inline part of 5 and one in the arena: the bytes as they are on the wire.
std::vector<uint8_t> golden() {
  return {
      112, 0, 0, 0, 0, 0, 0, 0,                                // record_size
      3, 0, 0, 0, 0, 0, 0, 0,                                  // body_size
      2, 0, 0,                                                 // part_count
      1,                                                       // kind: request
      5, 0, 0, 0,                                              // flags: pickle | view
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,          // dest
      9, 0, 0, 0, 0, 0, 0, 0,                                  // sender
      10, 0, 0, 0, 1, 0, 0, 0,                                 // token
      7, 0, 0, 0,                                              // method
      6, 0, 0, 0,                                              // rank
      0, 0, 0, 0, 0, 0, 0, 0,                                  // time_left_ns
      5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,          // part 0: 5 bytes, inline
      0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0, 0x80,    // part 1: 64 KiB in segment 2 at 4096
      'a', 'b', 'c', 0, 0, 0, 0, 0,                            // body, padded
      'h', 'e', 'l', 'l', 'o', 0, 0, 0,                        // part 0, padded
  };
}

std::vector<std::byte> record() {
  const auto bytes = golden();
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(Frame, DecodesTheGoldenBytes) {
  const auto bytes = record();
  auto view = decode_frame(bytes);
  ASSERT_TRUE(view.ok()) << view.error().message;
  const FrameHeader& header = view->header;
  EXPECT_EQ(header.kind, FrameKind::kRequest);
  EXPECT_EQ(header.flags, kFlagPickle | kFlagView);
  EXPECT_EQ(header.dest, 0x1122334455667788u);
  EXPECT_EQ(header.sender, 9u);
  EXPECT_EQ(header.token, 0x10000000au);
  EXPECT_EQ(header.method, 7u);
  EXPECT_EQ(header.rank, 6u);
  ASSERT_EQ(header.part_count, 2u);
  EXPECT_EQ(std::memcmp(view->body.data(), "abc", 3), 0);
  EXPECT_EQ(view->part(0).size, 5u);
  EXPECT_EQ(std::memcmp(bytes.data() + view->inline_offset, "hello", 5), 0);
  const ArenaLocation at = ArenaLocation::unpack(view->part(1).location);
  EXPECT_EQ(at.segment, 2u);
  EXPECT_EQ(at.offset, 4096u);
  EXPECT_FALSE(at.shared);
  EXPECT_EQ(at.pack(), view->part(1).location);
}

TEST(Frame, RefusesEveryTruncationAndEveryWrongLength) {
  const auto whole = record();
  for (size_t size = 0; size < whole.size(); ++size) {
    std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(decode_frame(cut).ok()) << size;
    if (size < 8) continue;
    std::memcpy(cut.data(), &size, sizeof size);  // a lie that is consistent
    EXPECT_FALSE(decode_frame(cut).ok()) << size;
  }
  auto longer = whole;
  longer.resize(longer.size() + 8);
  const uint64_t size = longer.size();
  std::memcpy(longer.data(), &size, sizeof size);
  EXPECT_FALSE(decode_frame(longer).ok());
}

TEST(Frame, RefusesSizesThatOverflow) {
  struct Lie {
    size_t at;
    uint64_t value;
    size_t width;
  };
  for (const Lie& lie : {Lie{8, UINT64_MAX, 8}, Lie{8, UINT64_MAX - 63, 8}, Lie{16, 0xffffff, 3}, Lie{16, 100, 3},
                         Lie{64, UINT64_MAX, 8}, Lie{64, uint64_t{1} << 63, 8}, Lie{80, UINT64_MAX, 8},
                         Lie{19, 0, 1}, Lie{19, 200, 1}, Lie{20, kFlagRouted, 4}}) {
    auto bytes = record();
    std::memcpy(bytes.data() + lie.at, &lie.value, lie.width);
    EXPECT_FALSE(decode_frame(bytes).ok()) << lie.at << " " << lie.value;
  }
}

// The same with a route between the header and the parts.
std::vector<std::byte> routed_record() {
  std::vector<std::byte> bytes = record();
  const FrameRoute route{0x1111, 0x2222, 3, 0};
  const auto* extension = reinterpret_cast<const std::byte*>(&route);
  bytes.insert(bytes.begin() + kRecordPrologue, extension, extension + sizeof route);
  const uint64_t size = bytes.size();
  const uint32_t flags = kFlagPickle | kFlagView | kFlagRouted;
  std::memcpy(bytes.data(), &size, sizeof size);
  std::memcpy(bytes.data() + 20, &flags, sizeof flags);
  return bytes;
}

TEST(Frame, ARouteStandsBetweenTheHeaderAndTheParts) {
  const auto bytes = routed_record();
  auto view = decode_frame(bytes);
  ASSERT_TRUE(view.ok()) << view.error().message;
  FrameRoute route;
  std::memcpy(&route, view->route, sizeof route);
  EXPECT_EQ(route.origin, 0x1111u);
  EXPECT_EQ(route.destination, 0x2222u);
  EXPECT_EQ(route.hops, 3u);
  EXPECT_EQ(std::memcmp(view->body.data(), "abc", 3), 0);
  EXPECT_EQ(view->part(0).size, 5u);
  EXPECT_EQ(std::memcmp(bytes.data() + view->inline_offset, "hello", 5), 0);
  EXPECT_EQ(decode_frame(record())->route, nullptr);
}

TEST(Frame, RefusesARouteThatReachesBeyondIt) {
  for (size_t size = 0; size < routed_record().size(); size += 8) {
    auto cut = routed_record();
    cut.resize(size);
    if (size >= 8) std::memcpy(cut.data(), &size, sizeof size);
    EXPECT_FALSE(decode_frame(cut).ok()) << size;
  }
}

TEST(Frame, ARecordSizeIsSaneOrItIsNot) {
  EXPECT_FALSE(valid_record_size(0));
  EXPECT_FALSE(valid_record_size(kRecordPrologue - 8));
  EXPECT_TRUE(valid_record_size(kRecordPrologue));
  EXPECT_FALSE(valid_record_size(kRecordPrologue + 1));
  EXPECT_TRUE(valid_record_size(kRecordSizeMax));
  EXPECT_FALSE(valid_record_size(kRecordSizeMax + 8));
}

}  // namespace
}  // namespace monarch
