#include "monarch/wire/tree_cast.h"

#include <gtest/gtest.h>

#include <vector>

namespace monarch {
namespace {

template <typename Entry>
ByteSpan bytes_of(const std::vector<Entry>& entries) {
  return as_byte_span(entries.data(), entries.size() * sizeof(Entry));
}

struct TreeCastFrame : ::testing::Test {
  TreeCastFrame() {
    cast.header.kind = FrameKind::kRequest;
    cast.header.token = 17;
    cast.origin = 2;
    cast.sender = 3;
    cast.fan_out = 4;
    cast.body = as_byte_span(body.data(), body.size());
  }
  std::string encoded() {
    cast.hosts = bytes_of(hosts);
    cast.targets = bytes_of(targets);
    return encode_tree_cast(cast);
  }
  bool decodes() {
    const std::string bytes = encoded();
    return decode_tree_cast(as_byte_span(bytes.data(), bytes.size())).ok();
  }
  const std::string body = "what is called";
  std::vector<TreeHost> hosts{{5, 7, 1, 10, 1, 0}, {6, 8, 9, 11, 2, 0}};
  std::vector<CastTarget> targets{{50, 500, 0, 0}, {60, 600, 1, 0}, {61, 601, 2, 0}};
  TreeCast cast;
};

TEST_F(TreeCastFrame, ComesBackAsItWas) {
  const std::string bytes = " " + encoded();  // at an odd address
  const ByteSpan whole = as_byte_span(bytes.data() + 1, bytes.size() - 1);
  auto back = decode_tree_cast(whole);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->header.token, 17u);
  EXPECT_EQ(back->origin, 2u);
  EXPECT_EQ(back->sender, 3u);
  EXPECT_EQ(back->fan_out, 4u);
  ASSERT_EQ(back->host_count(), 2u);
  EXPECT_EQ(back->host(1).gateway, 6u);
  EXPECT_EQ(back->host(1).session, 8u);
  EXPECT_EQ(back->host(1).number, 9u);
  EXPECT_EQ(back->host(1).after, 11u);
  ASSERT_EQ(back->target_count(), 3u);
  EXPECT_EQ(back->target(2).node, 61u);
  EXPECT_EQ(back->target(2).rank, 2u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(back->body.data()), back->body.size()), body);
  for (size_t size = 0; size < whole.size() - body.size(); ++size) {
    EXPECT_FALSE(decode_tree_cast(whole.first(size)).ok()) << size;
  }
}

TEST_F(TreeCastFrame, WhatCannotBeIsRefused) {
  EXPECT_TRUE(decodes());
  hosts[1].targets = 1'000'000;
  EXPECT_FALSE(decodes()) << "more targets than bytes";
  hosts[1].targets = 0;
  EXPECT_FALSE(decodes()) << "nothing for one";
  hosts[1].targets = 2;
  hosts[1].gateway = 0;
  EXPECT_FALSE(decodes()) << "nobody";
  hosts[1].gateway = 6;
  hosts[1].session = 0;
  EXPECT_FALSE(decodes()) << "of no session";
  hosts[1].number = 0;
  EXPECT_FALSE(decodes()) << "numbered but for one";
  hosts[0].number = 0;
  EXPECT_FALSE(decodes()) << "numbers are missing";
  cast.origin = 0;
  EXPECT_TRUE(decodes()) << "it is yet to be numbered";
  cast.fan_out = 1;
  EXPECT_FALSE(decodes()) << "a chain";
  cast.fan_out = kFanOutMin;
  cast.sender = 0;
  EXPECT_FALSE(decodes());
  cast.sender = 3;
  hosts.clear();
  EXPECT_FALSE(decodes());
}

TEST_F(TreeCastFrame, WhatIsNotSentToActorsIsRefused) {
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kCast, FrameKind::kStopNode, FrameKind::kTreeCast}) {
    cast.header.kind = kind;
    EXPECT_FALSE(decodes()) << static_cast<int>(kind);
  }
  cast.header.kind = FrameKind::kOneway;
  cast.header.flags = kFlagRouted;
  EXPECT_FALSE(decodes());
}

}  // namespace
}  // namespace monarch
