#include "monarch/actor/successions.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(SuccessionsTest, NobodyHasASuccessorAtFirst) {
  Successions known;
  EXPECT_FALSE(known.any());
  EXPECT_EQ(known.latest(7), 7u);
  EXPECT_EQ(known.latest(Members{{{7, 1}}}), nullptr);
  EXPECT_EQ(known.epoch_of(1), 0u);
}

TEST(SuccessionsTest, ASuccessorMayHaveOneToo) {
  Successions known;
  EXPECT_FALSE(known.apply({{{7, 8}}, {}}).empty());
  EXPECT_FALSE(known.apply({{{8, 9}}, {}}).empty());
  EXPECT_EQ(known.latest(7), 9u);
  EXPECT_EQ(known.latest(8), 9u);
  EXPECT_EQ(known.count_of(7), 2u);
  const auto now = known.latest(Members{{{7, 1}, {5, 1}}});
  ASSERT_NE(now, nullptr);
  EXPECT_EQ(now->ids, (std::vector<ActorId>{{9, 1}, {5, 1}}));
  EXPECT_EQ(known.latest(Members{{{5, 1}}}), nullptr);
}

TEST(SuccessionsTest, WhatIsNoNewsIsSaidSo) {
  Successions known;
  EXPECT_FALSE(known.apply({{{7, 8}}, {{10, 1, 1}}}).empty());
  EXPECT_TRUE(known.apply({{{7, 8}}, {{10, 1, 1}}}).empty());
  EXPECT_TRUE(known.apply({{{7, 9}}, {}}).empty()) << "the first one stays";
  EXPECT_EQ(known.latest(7), 8u);
}

TEST(SuccessionsTest, WhoSaysSoCannotMakeACircle) {
  Successions known;
  EXPECT_FALSE(known.apply({{{7, 8}, {8, 9}}, {}}).empty());
  EXPECT_TRUE(known.apply({{{9, 7}}, {}}).empty());
  EXPECT_EQ(known.latest(7), 9u);
}

TEST(SuccessionsTest, AnEpochIsThatOfTheWholeMeshAndOnlyGrows) {
  Successions known;
  EXPECT_FALSE(known.apply({{}, {{10, 4, 2}}}).empty());  // a swarm: indices 10 to 13
  EXPECT_EQ(known.epoch_of(9), 0u);
  EXPECT_EQ(known.epoch_of(10), 2u);
  EXPECT_EQ(known.epoch_of(13), 2u);
  EXPECT_EQ(known.epoch_of(14), 0u);
  EXPECT_TRUE(known.apply({{}, {{10, 4, 1}}}).empty());
  EXPECT_FALSE(known.apply({{}, {{10, 4, 3}}}).empty());
  EXPECT_EQ(known.epoch_of(12), 3u);
}

TEST(SuccessionsTest, ANoticeTravels) {
  Successions known;
  known.apply({{{7, 8}, {8, 9}}, {{10, 4, 2}}});
  const std::string bytes = known.all().encoded();
  auto notice = Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(notice);
  Successions other;
  EXPECT_FALSE(other.apply(*notice).empty());
  EXPECT_EQ(other.latest(7), 9u);
  EXPECT_EQ(other.epoch_of(11), 2u);
}

TEST(SuccessionsTest, ANoticeSaysOfWhatEachHasDied) {
  Successions::Notice notice{{{7, 8}, {9, 10}}, {}};
  notice.why.emplace_back(Failure::Kind::kLost, "one");
  notice.why.emplace_back(Failure::Kind::kLost, "another");
  const std::string bytes = notice.encoded();
  auto read = Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(read);
  Successions known;
  known.apply({{{7, 8}}, {}});
  const auto news = known.apply(*read);
  ASSERT_EQ(news.processes, (std::vector<std::pair<NodeId, NodeId>>{{9, 10}}));
  ASSERT_EQ(news.why.size(), 1u);
  EXPECT_EQ(news.why[0].detail, "another");
}

TEST(SuccessionsTest, WhatIsNoNoticeIsRefused) {
  const auto refused = [](const Successions::Notice& notice) {
    const std::string bytes = notice.encoded();
    return !Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size()));
  };
  EXPECT_TRUE(refused({{{7, 7}}, {}}));
  EXPECT_TRUE(refused({{{0, 7}}, {}}));
  EXPECT_TRUE(refused({{}, {{10, 0, 1}}}));
  EXPECT_TRUE(refused({{}, {{10, 1, Successions::kEpochMax + 1}}}));
  const std::string bytes = "nonsense";
  EXPECT_FALSE(Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size())));
}

}  // namespace
}  // namespace monarch
