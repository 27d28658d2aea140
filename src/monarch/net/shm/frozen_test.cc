// The books that a link keeps of frozen memory: what it has shown, and what it was shown.
#include <gtest/gtest.h>

#include "monarch/base/system.h"
#include "monarch/net/shm/frozen_loans.h"
#include "monarch/net/shm/frozen_view.h"

namespace monarch {
namespace {

std::shared_ptr<Freezable> frozen() {
  auto memory = Freezable::make(8192).value();
  EXPECT_TRUE(memory->freeze().ok());
  return memory;
}
UniqueFd fd_of(const std::shared_ptr<Freezable>& memory) { return sys::duplicate(memory->fd()); }

TEST(FrozenLoans, ANumberIsUsedAgainWhenThePeerHasTakenTheWordOfItsEnd) {
  FrozenLoans loans;
  const auto first = frozen(), second = frozen(), third = frozen();
  auto* const loan = loans.lend(first, 0);
  const uint32_t number = loan->number;
  EXPECT_EQ(loans.find(first->id()), loan);
  EXPECT_EQ(loans.find_number(number), loan);
  loans.end(*loan, 100);
  EXPECT_EQ(loans.find(first->id()), nullptr);
  EXPECT_EQ(loans.find_number(number), nullptr);
  EXPECT_NE(loans.lend(second, 99)->number, number);
  auto* const again = loans.lend(third, 100);
  EXPECT_EQ(again->number, number);
  EXPECT_GT(again->serial, 1U);
}

TEST(FrozenLoans, HaveABound) {
  FrozenLoans loans;
  std::vector<std::shared_ptr<Freezable>> kept;
  for (uint32_t i = 0; i < kFrozenNumbers; ++i) {
    kept.push_back(frozen());
    ASSERT_NE(loans.lend(kept.back(), 0), nullptr);
  }
  EXPECT_EQ(loans.lend(frozen(), 0), nullptr);
  EXPECT_EQ(loans.find_number(UINT64_MAX), nullptr);
  EXPECT_EQ(loans.find_number(0), nullptr);
}

TEST(FrozenView, TakesOnlyNumbersThatThereAreAndNoneTwice) {
  FrozenView view;
  const auto memory = frozen();
  EXPECT_FALSE(view.add(0, 1, true, fd_of(memory)).ok());
  EXPECT_FALSE(view.add(kFrozenFirst + kFrozenNumbers, 1, true, fd_of(memory)).ok());
  EXPECT_FALSE(view.add(UINT64_MAX, 1, true, fd_of(memory)).ok());
  EXPECT_FALSE(view.add(kFrozenFirst, 0, true, fd_of(memory)).ok());
  EXPECT_FALSE(view.lose(kFrozenFirst - 1, 1).ok());
  EXPECT_TRUE(view.add(kFrozenFirst, 1, true, fd_of(memory)).ok());
  EXPECT_TRUE(view.add(kFrozenFirst, 1, true, fd_of(memory)).ok());  // it was asked for twice
  EXPECT_FALSE(view.add(kFrozenFirst, 2, true, fd_of(memory)).ok());
  EXPECT_EQ(view.find(kFrozenFirst + 1), nullptr);
  EXPECT_EQ(view.forget(kFrozenFirst + 1), nullptr);
  EXPECT_EQ(view.forget(7), nullptr);
}

TEST(FrozenView, AnOldOfferChangesNothing) {
  FrozenView view;
  const auto first = frozen(), second = frozen();
  ASSERT_TRUE(view.lose(kFrozenFirst, 1).ok());
  EXPECT_EQ(view.lost(), std::vector<uint32_t>{kFrozenFirst});
  ASSERT_TRUE(view.add(kFrozenFirst, 1, true, fd_of(first)).ok());
  EXPECT_TRUE(view.lost().empty());
  EXPECT_NE(view.forget(kFrozenFirst), nullptr);
  EXPECT_TRUE(view.add(kFrozenFirst, 1, true, fd_of(first)).ok());
  EXPECT_EQ(view.find(kFrozenFirst), nullptr);
  EXPECT_TRUE(view.add(kFrozenFirst, 2, true, fd_of(second)).ok());
  EXPECT_EQ(Freezable::use(view.find(kFrozenFirst)), second);
  EXPECT_TRUE(view.lose(kFrozenFirst, 1).ok());
  EXPECT_FALSE(view.has_lost(kFrozenFirst));
}

}  // namespace
}  // namespace monarch
