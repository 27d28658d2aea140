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

TEST(KeptAnswers, GoToWhoMissesThemAndAreForgottenByWhoDoesNot) {
  KeptAnswers kept;
  for (uint64_t token = 1; token <= 3; ++token) kept.add({kCaller, token}, kParent, {owed(4, kFirst), owed(5, kSecond)});
  kept.add({kOther, 1}, kParent, {owed(4, kFirst)});
  const auto taken = kept.take_missing(kCaller, {{1, {}}, {2, {{5, 1}}}, {3, {{0, 4}, {6, 9}}}, {7, {{4, 1}}}});
  ASSERT_EQ(tokens(taken), std::vector<uint64_t>{2});
  EXPECT_EQ(taken[0].second.owed.size(), 2u);
  EXPECT_EQ(kept.size(), 1u) << "of the other caller";
}

TEST(KeptAnswers, GoWithTheEndOfAHostOrAProcess) {
  KeptAnswers kept;
  kept.add({kCaller, 1}, kParent, {owed(4, kFirst)});
  kept.add({kCaller, 2}, kParent + 1, {owed(4, kFirst), owed(5, kSecond)});
  kept.add({kCaller, 3}, kParent + 1, {owed(4, kFirst)});
  EXPECT_EQ(tokens(kept.take_with(kParent)), std::vector<uint64_t>{1});
  EXPECT_EQ(tokens(kept.take_with(kSecond)), std::vector<uint64_t>{2});
  kept.forget_caller(kCaller);
  EXPECT_TRUE(kept.empty());
}

TEST(KeptAnswers, HaveABound) {
  KeptAnswers kept;
  constexpr uint64_t kCalls = KeptAnswers::kCallsMax + 2;
  for (uint64_t token = 1; token <= kCalls; ++token) kept.add({kCaller, token}, kParent, {owed(4, kFirst)});
  EXPECT_EQ(tokens(kept.take_excess()), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(kept.size(), KeptAnswers::kCallsMax);
  kept.clear();
  const std::string large(KeptAnswers::kBytesMax / 4, 'x');
  for (uint64_t token = 1; token <= 5; ++token) kept.add({kCaller, token}, kParent, {owed(4, kFirst, large)});
  EXPECT_EQ(tokens(kept.take_excess()), std::vector<uint64_t>{1});
  kept.forget({kCaller, 3});
  kept.forget({kCaller, 3});
  EXPECT_EQ(kept.size(), 3u);
  kept.add({kCaller, 6}, kParent, {owed(4, kFirst, large)});
  EXPECT_TRUE(kept.take_excess().empty());
}

}  // namespace
}  // namespace monarch
