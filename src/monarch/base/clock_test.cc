#include "monarch/base/clock.h"

#include <gtest/gtest.h>
#include <time.h>

namespace monarch {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(WallClock, IsWrittenInUtcWithMilliseconds) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(999'999), "1970-01-01T00:00:00.000Z") << "less than a millisecond is left out";
  EXPECT_EQ(utc_text(1'709'210'096 * kSecond + 7'890'123), "2024-02-29T12:34:56.007Z");
  EXPECT_EQ(utc_text(-1), "1969-12-31T23:59:59.999Z") << "a machine without a battery";
  EXPECT_EQ(utc_text(INT64_MAX).size(), utc_text(0).size());
}

TEST(WallClock, IsThatOfTheMachine) {
  SystemClock clock;
  const time_t before = time(nullptr);
  const int64_t now_s = clock.wall_ns() / kSecond;
  EXPECT_LE(before - 1, now_s);  // time() may be a tick behind
  EXPECT_GE(time(nullptr) + 1, now_s);
}

}  // namespace
}  // namespace monarch
