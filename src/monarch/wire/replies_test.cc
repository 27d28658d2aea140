#include "monarch/wire/replies.h"

#include <gtest/gtest.h>

#include "monarch/wire/cast.h"

namespace monarch {
namespace {

Result<std::vector<ReplyEntry>> again(const std::vector<ReplyEntry>& entries, size_t part_count) {
  const std::string bytes = encode_replies(entries);
  return decode_replies(as_byte_span(bytes.data(), bytes.size()), part_count);
}

TEST(Replies, ComeBackAsTheyWere) {
  auto entries = again({{4, kFlagArrays, 2, 0}, {2, kFlagReduce, 0, 0}, {7, kFlagPickle, 1, 0}}, 3);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].rank, 4u);
  EXPECT_EQ((*entries)[1].flags, kFlagReduce);
  EXPECT_EQ((*entries)[2].parts, 1u);
}

TEST(Replies, OfWhatCannotBeAreRefused) {
  EXPECT_FALSE(decode_replies({}, 0).ok());
  EXPECT_FALSE(decode_replies(as_byte_span("seventeen bytes..", 17), 0).ok());
  EXPECT_FALSE(again({{0, 0, 1, 0}}, 2).ok()) << "a part of nobody's";
  EXPECT_FALSE(again({{0, 0, UINT32_MAX, 0}, {1, 0, 1, 0}}, 0).ok());
  EXPECT_FALSE(again({{kEveryRank, 0, 1, 0}}, 1).ok());
  EXPECT_FALSE(again({{0, kFlagRouted, 1, 0}}, 1).ok());
  EXPECT_FALSE(again({{0, 0, 1, 5}}, 1).ok());
  EXPECT_FALSE(again({{0, 0, 0, 0}}, 0).ok()) << "an answer without a value that nothing stands for";
}

}  // namespace
}  // namespace monarch
