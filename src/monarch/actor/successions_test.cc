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
  EXPECT_TRUE(known.apply({{{7, 8}}, {}}));
  EXPECT_TRUE(known.apply({{{8, 9}}, {}}));
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
  EXPECT_TRUE(known.apply({{{7, 8}}, {{10, 1, 1}}}));
  EXPECT_FALSE(known.apply({{{7, 8}}, {{10, 1, 1}}}));
  EXPECT_FALSE(known.apply({{{7, 9}}, {}})) << "the first one stays";
  EXPECT_EQ(known.latest(7), 8u);
}

TEST(SuccessionsTest, WhoSaysSoCannotMakeACircle) {
  Successions known;
  EXPECT_TRUE(known.apply({{{7, 8}, {8, 9}}, {}}));
  EXPECT_FALSE(known.apply({{{9, 7}}, {}}));
  EXPECT_EQ(known.latest(7), 9u);
}

TEST(SuccessionsTest, AnEpochIsThatOfTheWholeMeshAndOnlyGrows) {
  Successions known;
  EXPECT_TRUE(known.apply({{}, {{10, 4, 2}}}));  // a swarm: indices 10 to 13
  EXPECT_EQ(known.epoch_of(9), 0u);
  EXPECT_EQ(known.epoch_of(10), 2u);
  EXPECT_EQ(known.epoch_of(13), 2u);
  EXPECT_EQ(known.epoch_of(14), 0u);
  EXPECT_FALSE(known.apply({{}, {{10, 4, 1}}}));
  EXPECT_TRUE(known.apply({{}, {{10, 4, 3}}}));
  EXPECT_EQ(known.epoch_of(12), 3u);
}

TEST(SuccessionsTest, ANoticeTravels) {
  Successions known;
  known.apply({{{7, 8}, {8, 9}}, {{10, 4, 2}}});
  const std::string bytes = known.all().encoded();
  auto notice = Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(notice);
  Successions other;
  EXPECT_TRUE(other.apply(*notice));
  EXPECT_EQ(other.latest(7), 9u);
  EXPECT_EQ(other.epoch_of(11), 2u);
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
