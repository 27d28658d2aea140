#include "monarch/wire/cast.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(Cast, ComesBackAsItWas) {
  FrameHeader header;
  header.kind = FrameKind::kRequest;
  header.token = 17;
  header.method = 3;
  const std::string body = "what is called";
  const std::string bytes = encode_cast(header, {{5, 6, 7, 0}, {8, 9, 10, 0}}, as_byte_span(body.data(), body.size()));
  const ByteSpan whole = as_byte_span(bytes.data(), bytes.size());
  auto frame = decode_cast(whole);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->header.token, 17u);
  EXPECT_EQ(frame->header.method, 3u);
  ASSERT_EQ(frame->targets.size(), 2u);
  EXPECT_EQ(frame->targets[1].node, 8u);
  EXPECT_EQ(frame->targets[1].dest, 9u);
  EXPECT_EQ(frame->targets[1].rank, 10u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(frame->body.data()), frame->body.size()), body);
  for (size_t size = 0; size < whole.size() - body.size(); ++size) {
    EXPECT_FALSE(decode_cast(whole.first(size)).ok()) << size;
  }
}

TEST(Cast, WhatIsNotSentToActorsIsRefused) {
  FrameHeader header;
  const auto decoded = [&](const std::vector<CastTarget>& targets) {
    const std::string bytes = encode_cast(header, targets, {});
    return decode_cast(as_byte_span(bytes.data(), bytes.size())).ok();
  };
  EXPECT_TRUE(decoded({{5, 6, 7, 0}}));
  EXPECT_FALSE(decoded({}));
  EXPECT_FALSE(decoded({{0, 6, 7, 0}})) << "nobody";
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kCast, FrameKind::kStopNode, FrameKind::kUndeliverable}) {
    header.kind = kind;
    EXPECT_FALSE(decoded({{5, 6, 7, 0}})) << static_cast<int>(kind);
  }
  header.kind = FrameKind::kOneway;
  header.flags = kFlagRouted;
  EXPECT_FALSE(decoded({{5, 6, 7, 0}}));
}

}  // namespace
}  // namespace monarch
