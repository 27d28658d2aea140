#include "monarch/base/mutex.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

namespace monarch {
namespace {

constexpr LockRank kOuter{100};
constexpr LockRank kInner{200};

TEST(Mutex, IsTakenInTheOrderOfItsRankAndGivenBackInAny) {
  Mutex outer(kOuter), inner(kInner);
  for (int i = 0; i < 3; ++i) {
    outer.lock();
    inner.lock();
    outer.assert_held();
    inner.assert_held();
    outer.unlock();
    inner.unlock();
  }
  std::lock_guard alone(inner);
}

TEST(Mutex, IsTriedOutOfOrderSinceNobodyWaitsThere) {
  Mutex outer(kOuter), inner(kInner);
  std::lock_guard held(inner);
  ASSERT_TRUE(outer.try_lock());
  outer.unlock();
  std::thread other([&] { EXPECT_FALSE(inner.try_lock()); });
  other.join();
}

TEST(Mutex, EachThreadHasItsOwnOrder) {
  Mutex outer(kOuter), inner(kInner);
  std::lock_guard held(inner);
  std::thread other([&] { std::lock_guard free(outer); });
  other.join();
}

#if defined(MONARCH_LOCK_CHECKS)

TEST(MutexDeathTest, OutOfOrderEndsTheProcessWithBothNames) {
  Mutex outer(kOuter), inner(kInner);
  inner.lock();
  EXPECT_DEATH(outer.lock(), "out of order: lock 100 while lock 200 is held");
  inner.unlock();
}

TEST(MutexDeathTest, TwoOfOneRankHaveNoOrder) {
  Mutex one(kOuter), other(kOuter);
  one.lock();
  EXPECT_DEATH(other.lock(), "out of order: lock 100 while lock 100 is held");
  one.unlock();
}

TEST(MutexDeathTest, TwiceByOneThreadEndsTheProcess) {
  Mutex mutex(kOuter);
  mutex.lock();
  EXPECT_DEATH(mutex.lock(), "taken twice");
  mutex.unlock();
}

TEST(MutexDeathTest, ALockThatIsNotHeldIsNotGivenBackAndNotClaimed) {
  Mutex mutex(kOuter);
  EXPECT_DEATH(mutex.unlock(), "does not hold");
  EXPECT_DEATH(mutex.assert_held(), "must be held");
}

#endif

}  // namespace
}  // namespace monarch
