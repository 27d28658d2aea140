#include "monarch/actor/kept_answers.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr NodeId kCaller = 1, kOther = 2, kParent = 30, kFirst = 71, kSecond = 72;

OwedAnswer owed(uint32_t rank, NodeId node, std::string_view text = "an answer") {
  FrameHeader header;
  header.kind = FrameKind::kReply;
  header.rank = rank;
  return {rank, node, 100, Message::make(header, text, node), rank + 1};
}

std::vector<uint64_t> tokens(const KeptAnswers::Taken& taken) {
  std::vector<uint64_t> found;
  for (const auto& [key, kept] : taken) found.push_back(key.second);
  return found;
}

struct Kept : ::testing::Test {
  bool add(NodeId caller, uint64_t token, NodeId parent, const std::vector<OwedAnswer>& answers) {
    return kept.add({caller, token}, parent, answers, now_ns);
  }
  KeptAnswers kept;
  int64_t now_ns = 1;
};

TEST_F(Kept, GoToWhoMissesThemAndAreForgottenByWhoDoesNot) {
  for (uint64_t token = 1; token <= 3; ++token) add(kCaller, token, kParent, {owed(4, kFirst), owed(5, kSecond)});
  add(kOther, 1, kParent, {owed(4, kFirst)});
  const std::vector<SeenCall> seen = {{1, {}}, {2, {{5, 1}}}, {3, {{0, 4}, {6, 9}}}, {7, {{4, 1}}}};
  EXPECT_TRUE(kept.take_missing(kCaller, seen, now_ns + KeptAnswers::kOnItsWayNs - 1).empty()) << "it may be coming";
  EXPECT_EQ(kept.size(), 2u) << "with that of the other caller";
  const auto taken = kept.take_missing(kCaller, seen, now_ns + KeptAnswers::kOnItsWayNs);
  ASSERT_EQ(tokens(taken), std::vector<uint64_t>{2});
  EXPECT_EQ(taken[0].second.owed.size(), 2u);
  EXPECT_EQ(kept.size(), 1u) << "of the other caller";
}

TEST_F(Kept, GoWithTheEndOfTheHostThatTheyWereGivenTo) {
  add(kCaller, 1, kParent, {owed(4, kFirst)});
  add(kCaller, 2, kParent + 1, {owed(4, kFirst)});
  EXPECT_EQ(tokens(kept.take_given_to(kParent)), std::vector<uint64_t>{1});
  kept.forget_caller(kCaller);
  EXPECT_TRUE(kept.empty());
}

TEST_F(Kept, TheLastFewGoWithTheEndOfAProcess) {
  for (uint64_t token = 1; token <= 20; ++token) add(kCaller, token, kParent, {owed(4, kFirst), owed(5, kSecond)});
  add(kCaller, 21, kParent, {owed(4, kFirst)});
  EXPECT_EQ(tokens(kept.take_last_of(kSecond)), (std::vector<uint64_t>{14, 15, 16, 17, 18, 19, 20}));
  EXPECT_EQ(tokens(kept.take_last_of(kFirst)), std::vector<uint64_t>{21}) << "the others have gone, or are older";
  EXPECT_EQ(kept.size(), 13u);
}

TEST_F(Kept, WhatIsNotNamedForLongGoesToItsCaller) {
  add(kCaller, 1, kParent, {owed(4, kFirst)});
  now_ns += 5;
  add(kCaller, 2, kParent, {owed(4, kFirst)});
  EXPECT_EQ(kept.unnamed_ns(), 1 + KeptAnswers::kUnnamedNs);
  EXPECT_TRUE(kept.take_unnamed(KeptAnswers::kUnnamedNs).empty());
  EXPECT_EQ(tokens(kept.take_unnamed(1 + KeptAnswers::kUnnamedNs)), std::vector<uint64_t>{1});
  EXPECT_EQ(kept.size(), 1u);
}

TEST_F(Kept, HaveABound) {
  const OwedAnswer small = owed(4, kFirst);
  for (uint64_t token = 1; token <= KeptAnswers::kCallsMax; ++token) ASSERT_TRUE(add(kCaller, token, kParent, {small}));
  EXPECT_FALSE(add(kCaller, KeptAnswers::kCallsMax + 1, kParent, {owed(4, kFirst)}));
  kept.clear();
  const std::string large(KeptAnswers::kCallBytesMax - KeptAnswers::kAnswerCost, 'x');
  EXPECT_FALSE(add(kCaller, 1, kParent, {owed(4, kFirst, large + "x")}));
  uint64_t added = 0;
  while (add(kCaller, added + 1, kParent, {owed(4, kFirst, large)})) ++added;
  EXPECT_EQ(added, KeptAnswers::kBytesMax / KeptAnswers::kCallBytesMax);
  kept.forget({kCaller, 3});
  kept.forget({kCaller, 3});
  EXPECT_TRUE(add(kCaller, 1000, kParent, {owed(4, kFirst, large)}));
  EXPECT_FALSE(add(kCaller, 1001, kParent, {owed(4, kFirst, large)}));
}

}  // namespace
}  // namespace monarch
