#include "monarch/base/result.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::kBug, "odd"};
  return value / 2;
}

TEST(Result, CarriesAValue) {
  auto result = half(4);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, 2);
}

TEST(Result, CarriesAnError) {
  auto result = half(3);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "odd");
}

TEST(ResultDeathTest, TakingTheValueOfAnErrorAborts) { EXPECT_DEATH((void)half(3).value(), "CHECK failed"); }

}  // namespace
}  // namespace monarch
