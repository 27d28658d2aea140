#include "monarch/actor/answer_notices.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr int64_t kMs = 1'000'000, kFirst = AnswerNotices::kFirstNs, kLast = AnswerNotices::kLastNs;

std::vector<uint64_t> tokens(const std::vector<AnswerNotices::Call>& calls) {
  std::vector<uint64_t> found;
  for (const auto& call : calls) found.push_back(call.token);
  return found;
}

TEST(AnswerNotices, ComeLessAndLessOftenWhileACallHasNotEnded) {
  AnswerNotices notices;
  notices.add(7, {1, 2}, 0, 0);
  std::vector<int64_t> at;
  for (int i = 0; i < 8; ++i) {
    at.push_back(notices.next_ns());
    EXPECT_TRUE(notices.take_due(at.back() - (i == 0)).size() == (i == 0 ? 0u : 1u));
    if (i == 0) {
      ASSERT_EQ(notices.take_due(at.back()).size(), 1u);
    }
    notices.put_back({7, nullptr, 0, i == 0 ? kFirst : std::min(kFirst << i, kLast), 0}, at.back());
  }
  EXPECT_EQ(at[0], kFirst);
  EXPECT_EQ(at[1], 3 * kFirst);
  EXPECT_EQ(at[2], 7 * kFirst);
  EXPECT_EQ(at[7] - at[6], kLast);
}

TEST(AnswerNotices, OfACallThatWasNotSentAtFirstThereIsOne) {
  AnswerNotices notices;
  notices.add(7, {1, 2}, 0, 0);
  notices.add(7, {1, 2}, 0, 0);
  EXPECT_EQ(tokens(notices.take_due(kFirst)), std::vector<uint64_t>{7});
}

TEST(AnswerNotices, ComeBeforeADeadline) {
  AnswerNotices notices;
  notices.add(7, {1}, 5000 * kMs, 0);
  const auto due = notices.take_due(kFirst);
  ASSERT_EQ(due.size(), 1u);
  notices.put_back({7, due[0].gateways, 5000 * kMs, kLast, 0}, kFirst);
  EXPECT_EQ(notices.next_ns(), 5000 * kMs - kFirst);
}

TEST(AnswerNotices, OfCallsThatAreDueSoonGoTogether) {
  AnswerNotices notices;
  notices.put_back({1, nullptr, 0, kLast, 0}, 0);
  notices.put_back({2, nullptr, 0, kLast, 0}, 3000 * kMs);
  notices.put_back({3, nullptr, 0, kLast, 0}, 8000 * kMs);
  EXPECT_EQ(tokens(notices.take_due(10'000 * kMs)), (std::vector<uint64_t>{1, 2}));
}

TEST(AnswerNotices, AreHurriedAndYetRest) {
  AnswerNotices notices;
  notices.add(1, {1}, 0, 0);
  notices.hurry(10 * kMs);
  EXPECT_EQ(notices.next_ns(), 10 * kMs);
  const auto due = notices.take_due(10 * kMs);
  ASSERT_EQ(due.size(), 1u);
  notices.put_back(due[0], 10 * kMs);
  EXPECT_EQ(notices.next_ns(), 10 * kMs + kFirst) << "once more, for what was on its way";
  notices.add(2, {1}, 0, 11 * kMs);
  notices.hurry(12 * kMs);
  EXPECT_EQ(notices.next_ns(), 10 * kMs + AnswerNotices::kRestNs);
}

TEST(AnswerNotices, OfCallsToTheSameHostsShareThem) {
  AnswerNotices notices;
  notices.add(1, {1, 2}, 0, 0);
  notices.add(2, {1, 2}, 0, 0);
  notices.add(3, {1, 3}, 0, 0);
  const auto due = notices.take_due(kFirst);
  ASSERT_EQ(due.size(), 3u);
  EXPECT_EQ(due[0].gateways, due[1].gateways);
  EXPECT_NE(due[0].gateways, due[2].gateways);
}

}  // namespace
}  // namespace monarch
