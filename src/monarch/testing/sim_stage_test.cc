#include "monarch/testing/sim_stage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"
#include "monarch/loop/bell.h"
#include "monarch/loop/driver.h"
#include "monarch/loop/reactor.h"

namespace monarch::testing {
namespace {

constexpr int64_t kPatienceNs = 100'000'000;
constexpr int64_t kLimitNs = 10'000'000'000;

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  return stat.find(") S ") != std::string::npos;
}

bool never(const void*) { return false; }

// A driver as simulations of one program share it, and what stands on it. None of it is ever destroyed: threads that
// never end refer to it.
struct Shared {
  Reactor reactor;
  OwnBell bell = OwnBell::make().value();
  Driver driver{reactor, bell.bell(), bell.event_fd.get()};
};

struct Stand {
  explicit Stand(Driver& driver) : world(1, {}, nullptr, &driver) { driver.wait_on(stage); }
  SimWorld world;
  NodeId script = world.add_node(0);
  SimStage stage{world, script, kPatienceNs, [] { return false; }};
};

TEST(SimStage, WhoComesBackAfterItsSimulationHasNoPartInTheNext) {
  Driver& driver = (new Shared)->driver;
  UniqueFd ends[2];
  ASSERT_TRUE(sys::make_pipe(ends));
  Stand& given_up = *new Stand(driver);
  std::atomic<pid_t> back{0};
  const auto player = given_up.stage.enlist(given_up.script, "late");
  std::thread([&given_up, &driver, &back, player, fd = ends[0].get()] {
    given_up.stage.enter(player);
    char byte;
    if (read(fd, &byte, 1) != 1) return;
    back = gettid();
    Waiter waiter;
    driver.wait(waiter, never, nullptr, kNoDeadline);
  }).detach();
  Waiter waiter;
  EXPECT_EQ(driver.wait(waiter, never, nullptr, kNoDeadline), WaitResult::kInterrupted);
  EXPECT_EQ(given_up.stage.broken(), SimStage::Broken::kStuck);
  EXPECT_EQ(given_up.stage.culprit(), "late");
  Stand& next = *new Stand(driver);
  const uint64_t before = next.stage.progress();
  ASSERT_EQ(write(ends[1].get(), "x", 1), 1);
  const int64_t until_ns = monotonic_ns() + kLimitNs;
  while ((back == 0 || !sleeps(back)) && monotonic_ns() < until_ns) std::this_thread::yield();
  EXPECT_TRUE(back != 0 && sleeps(back));
  EXPECT_EQ(next.stage.progress(), before);
}

}  // namespace
}  // namespace monarch::testing
