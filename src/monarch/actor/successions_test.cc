#include "monarch/actor/successions.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(SuccessionsTest, WhoIsThereNowIsRememberedUntilSomethingChanges) {
  Successions known;
  known.apply({{{7, 8}}, {}});
  const Members named{{{7, 1}}}, others{{{5, 1}}};
  const auto now = known.latest(named);
  EXPECT_EQ(known.latest(named), now);
  EXPECT_EQ(known.latest(others), nullptr);
  known.apply({{{8, 9}, {5, 6}}, {}});
  EXPECT_EQ(known.latest(named)->ids[0].node, 9u);
  EXPECT_EQ(known.latest(others)->ids[0].node, 6u);
  Successions other;
  other.apply({{{7, 10}}, {}});
  EXPECT_EQ(other.latest(named)->ids[0].node, 10u);
  EXPECT_EQ(known.latest(named)->ids[0].node, 9u);
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

size_t said(const Successions& known) { return known.all().processes.size(); }

TEST(SuccessionsTest, AfterManyThousandRespawnsEachCostsWhatTheFirstOnesDid) {
  constexpr NodeId kFirst = 1'000'000, kRespawns = 6000;
  Successions known;
  size_t most = 0;
  for (NodeId node = kFirst; node < kFirst + kRespawns; ++node) {
    EXPECT_EQ(known.apply({{{node, node + 1}}, {}}).processes.size(), 1u);
    most = std::max(most, said(known));
  }
  EXPECT_LE(most, Successions::kBetweenMax + 1) << "what is kept, and what each new link is told";
  for (const NodeId named : {kFirst, kFirst + kRespawns - 1, kFirst + kRespawns - 10}) {
    EXPECT_EQ(known.latest(named), kFirst + kRespawns);
    EXPECT_EQ(known.count_of(named), kFirst + kRespawns - named);
  }
  Successions younger;
  younger.apply(known.all());
  EXPECT_EQ(younger.latest(kFirst), kFirst + kRespawns);
  EXPECT_EQ(younger.count_of(kFirst), kRespawns);
}

TEST(SuccessionsTest, WhoIsNamedAgainAndAgainIsKept) {
  Successions known, elsewhere;
  for (NodeId node = 1; node < 100; ++node) {
    const Successions::Notice notice{{{node, node + 1}}, {}};
    known.apply(notice);
    elsewhere.apply(notice);
    if (node >= 5) known.apply(known.named({5}));
  }
  EXPECT_EQ(known.latest(5), 100u);
  EXPECT_EQ(known.latest(6), 6u) << "it is forgotten";
  EXPECT_EQ(elsewhere.latest(5), 5u);
  elsewhere.apply(known.named({5}));
  EXPECT_EQ(elsewhere.latest(5), 100u);
  EXPECT_EQ(elsewhere.count_of(5), 95u);
  EXPECT_TRUE(known.named({1, 100, 777}).empty()) << "the first and the last one are kept anyway";
}

TEST(SuccessionsTest, WhatComesInAnotherOrderIsUnderstood) {
  Successions known;
  EXPECT_FALSE(known.apply({{{8, 9}}, {}}).empty());
  EXPECT_FALSE(known.apply({{{7, 8}}, {}}).empty());
  EXPECT_FALSE(known.apply({{{10, 11}}, {}}).empty());
  EXPECT_FALSE(known.apply({{{9, 10}}, {}}).empty());
  EXPECT_TRUE(known.apply({{{8, 12}}, {}}).empty());
  Successions::Notice far{{{7, 13}}, {}};
  far.steps = {6};  // there were two in between of which nobody speaks any more
  EXPECT_FALSE(known.apply(far).empty());
  for (const NodeId node : {7, 8, 9, 10, 11, 13}) EXPECT_EQ(known.latest(node), 13u);
  EXPECT_EQ(known.count_of(11), 2u);
}

TEST(SuccessionsTest, OfWhatWasStoppedLittleIsKeptAndOfTheDeadMore) {
  constexpr NodeId kCount = 10'000;
  Successions known;
  for (NodeId node = 10; node < 10 + 10 * kCount; node += 10) {
    known.apply({{{node, node + 1}}, {}});
    known.ended(node, false);  // late: it is not the last
    known.ended(node + 1, true);
  }
  EXPECT_EQ(said(known), Successions::kStoppedMax);
  for (NodeId node = 10; node < 10 + 10 * kCount; node += 10) {
    known.apply({{{node + 2, node + 3}}, {}});
    known.ended(node + 3, false);
  }
  EXPECT_EQ(said(known), Successions::kStoppedMax + Successions::kDeadMax);
  const NodeId last = 10 * kCount;
  EXPECT_FALSE(known.apply({{{last + 3, last + 4}}, {}}).empty());
  for (NodeId node = 10; node < 10 + 10 * kCount; node += 10) {
    known.apply({{{node + 5, node + 6}}, {}});
    known.ended(node + 6, false);
  }
  EXPECT_EQ(known.latest(last + 2), last + 4) << "who has been replaced has not ended";
}

TEST(SuccessionsTest, EpochsOfMeshesThatHaveEndedAreForgotten) {
  Successions known;
  known.apply({{}, {{10, 4, 2}, {20, 1, 3}}});
  EXPECT_EQ(known.meshes(), (std::vector<ActorIndex>{10, 20}));
  known.forget_meshes({10});
  EXPECT_EQ(known.meshes(), (std::vector<ActorIndex>{20}));
  EXPECT_EQ(known.epoch_of(11), 0u);
}

TEST(SuccessionsTest, WhatIsNoNoticeIsRefused) {
  const auto refused = [](const Successions::Notice& notice) {
    const std::string bytes = notice.encoded();
    return !Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size()));
  };
  EXPECT_TRUE(refused({{{7, 7}}, {}}));
  EXPECT_TRUE(refused({{{0, 7}}, {}}));
  Successions::Notice steps{{{7, 8}}, {}};
  steps.steps = {0};
  EXPECT_TRUE(refused(steps));
  steps.steps = {1, 1};
  EXPECT_TRUE(refused(steps));
  EXPECT_TRUE(refused({{}, {{10, 0, 1}}}));
  EXPECT_TRUE(refused({{}, {{10, 1, Successions::kEpochMax + 1}}}));
  const std::string bytes = "nonsense";
  EXPECT_FALSE(Successions::Notice::decode(as_byte_span(bytes.data(), bytes.size())));
}

}  // namespace
}  // namespace monarch
