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

Result<std::vector<SeenCall>> seen_again(const std::vector<SeenCall>& calls) {
  const std::string bytes = encode_seen(calls);
  return decode_seen(as_byte_span(bytes.data(), bytes.size()));
}

TEST(Seen, ComesBackAsItWas) {
  auto calls = seen_again({{7, {}}, {9, {{0, 2}, {5, 1}}}});
  ASSERT_TRUE(calls.ok());
  ASSERT_EQ(calls->size(), 2u);
  EXPECT_EQ((*calls)[0].token, 7u);
  EXPECT_TRUE((*calls)[0].missing.empty());
  EXPECT_EQ((*calls)[1].missing, (std::vector<RankRange>{{0, 2}, {5, 1}}));
}

TEST(Seen, KnowsWhoIsMissing) {
  const SeenCall call{9, {{1, 2}, {5, 1}}};
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    if (call.is_missing(rank)) missing.push_back(rank);
  }
  EXPECT_EQ(missing, (std::vector<uint32_t>{1, 2, 5}));
  EXPECT_FALSE((SeenCall{9, {}}).is_missing(0));
}

TEST(Seen, OfWhatCannotBeIsRefused) {
  EXPECT_FALSE(decode_seen(as_byte_span("seventeen bytes..", 17)).ok());
  EXPECT_FALSE(seen_again({{0, {}}}).ok());
  EXPECT_FALSE(seen_again({{7, {{3, 0}}}}).ok());
  EXPECT_FALSE(seen_again({{7, {{3, 2}, {4, 1}}}}).ok());
  EXPECT_FALSE(seen_again({{7, {{UINT32_MAX, 1}}}}).ok());
  std::string cut = encode_seen({{7, {{3, 2}}}});
  cut.resize(cut.size() - 8);
  EXPECT_FALSE(decode_seen(as_byte_span(cut.data(), cut.size())).ok());
}

}  // namespace
}  // namespace monarch
