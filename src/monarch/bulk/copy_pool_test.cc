#include "monarch/bulk/copy_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace monarch::testing {
namespace {

TEST(CopyPool, WhoeverWaitsForWorkMayDoItThatNobodyHasBegun) {
  CopyPool pool(1);
  std::promise<void> begun, goes_on;
  const uint64_t first = pool.offer([&] {
    begun.set_value();
    goes_on.get_future().wait();
  });
  begun.get_future().wait();
  std::vector<int> done;
  std::promise<void> last;
  pool.run([&] { done.push_back(1); });
  std::thread::id here;
  const uint64_t wanted = pool.offer([&] {
    here = std::this_thread::get_id();
    done.push_back(2);
  });
  pool.run([&] {
    done.push_back(3);
    last.set_value();
  });
  pool.run_here(first);  // somebody is at it
  pool.run_here(wanted);
  EXPECT_EQ(here, std::this_thread::get_id());
  pool.run_here(wanted);
  pool.run_here(wanted + 100);
  EXPECT_EQ(done, std::vector<int>{2});
  goes_on.set_value();
  last.get_future().wait();
  EXPECT_EQ(done, (std::vector<int>{2, 1, 3}));
}

TEST(CopyPool, WorkIsDoneAtOnceWhereThereIsNoThread) {
  CopyPool pool(1);
  pool.stop();
  bool done = false;
  const uint64_t number = pool.offer([&] { done = true; });
  EXPECT_TRUE(done);
  pool.run_here(number);
}

}  // namespace
}  // namespace monarch::testing
