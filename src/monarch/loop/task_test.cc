#include "monarch/loop/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace monarch {
namespace {

Task<int> number(int x) { co_return x; }
Task<int> sum_to(int count) {
  int sum = 0;
  for (int i = 1; i <= count; ++i) sum += co_await number(i);
  co_return sum;
}
Task<std::string> fails() {
  throw std::runtime_error("no");
  co_return "";
}
Task<void> nothing(int& calls) {
  ++calls;
  co_return;
}
Task<int> catches(int& calls) {
  co_await nothing(calls);
  try {
    co_await fails();
  } catch (const std::runtime_error&) {
    ++calls;
  }
  co_return calls;
}
Task<int> suspends(std::shared_ptr<int> kept) {
  co_await std::suspend_always{};
  co_return *kept;
}
Task<int> awaits_one_that_suspends(std::shared_ptr<int> kept) {
  const int value = co_await suspends(kept);
  co_return value + *kept;
}

TEST(Task, DoesNothingUntilItIsStarted) {
  int calls = 0;
  Task<void> task = nothing(calls);
  EXPECT_EQ(calls, 0);
  task.start();
  EXPECT_TRUE(task.done());
  EXPECT_EQ(calls, 1);
}

TEST(Task, CarriesValuesThroughManyAwaits) {
  Task<int> task = sum_to(10'000);
  task.start();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.take(), 50'005'000);
}

TEST(Task, CarriesAnExceptionToItsAwaiter) {
  int calls = 0;
  Task<int> task = catches(calls);
  task.start();
  EXPECT_EQ(task.take(), 2);
  Task<std::string> alone = fails();
  alone.start();
  EXPECT_THROW(alone.take(), std::runtime_error);
}

TEST(Task, DestroysWhatIsSuspendedInside) {
  auto kept = std::make_shared<int>(1);
  {
    Task<int> task = awaits_one_that_suspends(kept);
    task.start();
    EXPECT_FALSE(task.done());
    EXPECT_GT(kept.use_count(), 1);
  }
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(Task, NeverStartedIsDestroyedWithItsArguments) {
  auto kept = std::make_shared<int>(1);
  (void)suspends(kept);
  EXPECT_EQ(kept.use_count(), 1);
}

}  // namespace
}  // namespace monarch
