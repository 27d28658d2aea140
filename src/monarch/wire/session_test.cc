#include "monarch/wire/session.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(SessionFrame, ComesBackAsItWas) {
  for (uint32_t word = 1; word <= 6; ++word) {
    const FrameHeader header = encode_session({static_cast<SessionWord>(word), 0xfeedfacecafe, 7, {UINT64_MAX, 3}});
    EXPECT_TRUE(is_session_frame(header.kind));
    const auto frame = decode_session(header);
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(static_cast<uint32_t>(frame->word), word);
    EXPECT_EQ(frame->session, 0xfeedfacecafeu);
    EXPECT_EQ(frame->link, 7u);
    EXPECT_EQ(frame->received.data, UINT64_MAX);
    EXPECT_EQ(frame->received.control, 3u);
    EXPECT_FALSE(decode_acknowledge(header).has_value());
  }
  for (const SessionWord word : {SessionWord::kResume, SessionWord::kGoOn}) {
    const auto frame = decode_session(encode_session({word, 1, 2, {3, 4}, true, 1 << 20}));
    ASSERT_TRUE(frame.has_value());
    EXPECT_TRUE(frame->goes_on_inside);
    EXPECT_EQ(frame->begun, 1u << 20);
    EXPECT_FALSE(frame->takes_stripes) << "who does not say so";
  }
  const auto striped = decode_session(encode_session({SessionWord::kOpen, 1, 2, {}, false, 0, true}));
  ASSERT_TRUE(striped.has_value());
  EXPECT_TRUE(striped->takes_stripes && !striped->goes_on_inside);
  const auto received = decode_acknowledge(encode_acknowledge({5, 6}));
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->data, 5u);
  EXPECT_EQ(received->control, 6u);
}

TEST(SessionFrame, WhatItDoesNotSayIsMalformed) {
  const FrameHeader good = encode_session({SessionWord::kGoOn, 1, 1, {}});
  const FrameHeader ack = encode_acknowledge({});
  auto broken = [](FrameHeader header, auto change) {
    change(header);
    return !decode_session(header).has_value() && !decode_acknowledge(header).has_value();
  };
  for (const FrameHeader& header : {good, ack}) {
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.body_size = 8; }));
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.part_count = 1; }));
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.flags = kFlagRouted; }));
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.time_left_ns = 1; }));
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.kind = FrameKind::kPing; }));
    EXPECT_TRUE(broken(header, [](FrameHeader& h) { h.method = 7; }));
  }
  EXPECT_TRUE(broken(good, [](FrameHeader& h) { h.method = 0; }));
  EXPECT_TRUE(broken(good, [](FrameHeader& h) { h.epoch = 1, h.time_left_ns = kRecordSizeMax; }));
  for (const SessionWord word : {SessionWord::kOpen, SessionWord::kUnknown, SessionWord::kOver, SessionWord::kStripe}) {
    EXPECT_TRUE(broken(encode_session({word, 1, 1, {}, true, 1}), [](FrameHeader&) {})) << "nothing goes on here";
  }
  EXPECT_TRUE(broken(ack, [](FrameHeader& h) { h.dest = 1; }));
  EXPECT_TRUE(broken(ack, [](FrameHeader& h) { h.rank = 1; }));
}

}  // namespace
}  // namespace monarch
