#include "monarch/net/shm/arena_budget.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "monarch/net/shm/arena.h"

namespace monarch {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A process with a share of its own, which it has until it is told to end.
class Member {
 public:
  Member(const UniqueFd& budget_fd, uint64_t bytes) {
    int ready[2], end[2];
    MONARCH_CHECK(pipe2(ready, O_CLOEXEC) == 0 && pipe2(end, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(end[1]);
      auto budget = JobBudget::join(budget_fd.get());
      char got = budget.ok() && (*budget)->reserve(bytes) ? 'y' : 'n';
      [[maybe_unused]] ssize_t count = write(ready[1], &got, 1);
      count = read(end[0], &got, 1);
      _exit(0);
    }
    close(ready[1]);
    close(end[0]);
    end_.reset(end[1]);
    char answer = 'n';
    got_it_ = read(ready[0], &answer, 1) == 1 && answer == 'y';
    close(ready[0]);
  }
  ~Member() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  bool got_it() const { return got_it_; }

 private:
  pid_t pid_;
  UniqueFd end_;
  bool got_it_;
};

TEST(JobBudget, IsOneForAllProcesses) {
  UniqueFd fd = std::move(*JobBudget::make(64 * kMiB));
  auto mine = std::move(*JobBudget::join(fd.get()));
  Member one(fd, 20 * kMiB), two(fd, 20 * kMiB);
  EXPECT_TRUE(one.got_it() && two.got_it());
  EXPECT_EQ(mine->bytes_reserved(), 40 * kMiB);
  EXPECT_FALSE(mine->reserve(30 * kMiB));
  EXPECT_TRUE(mine->reserve(24 * kMiB));
  EXPECT_FALSE(mine->reserve(1));
  Member three(fd, 2 * kMiB);
  EXPECT_FALSE(three.got_it());
  mine->give_back(24 * kMiB);
  Member four(fd, 2 * kMiB);
  EXPECT_TRUE(four.got_it());
  EXPECT_FALSE(mine->reserve(UINT64_MAX));
}

TEST(JobBudget, WhatTheDeadHadIsForTheLiving) {
  UniqueFd fd = std::move(*JobBudget::make(64 * kMiB));
  auto mine = std::move(*JobBudget::join(fd.get()));
  Member one(fd, 60 * kMiB);
  ASSERT_TRUE(one.got_it());
  EXPECT_FALSE(mine->reserve(64 * kMiB));
  one.kill();
  EXPECT_TRUE(mine->reserve(64 * kMiB));
  mine->give_back(64 * kMiB);
  for (int round = 0; round < 5; ++round) {
    Member next(fd, 64 * kMiB);
    EXPECT_TRUE(next.got_it()) << round;
  }
}

TEST(JobBudget, AnArenaKeepsToItsShare) {
  UniqueFd fd = std::move(*JobBudget::make(64 * kMiB));
  auto mine = std::move(*JobBudget::join(fd.get()));
  Member other(fd, 40 * kMiB);
  Arena arena(1024 * kMiB, nullptr, mine);
  EXPECT_FALSE(arena.allocate(30 * kMiB).has_value());
  EXPECT_TRUE(arena.allocate(20 * kMiB).has_value());
  other.kill();
  EXPECT_TRUE(arena.allocate(40 * kMiB).has_value());
  EXPECT_EQ(mine->bytes_reserved(), arena.bytes_reserved());
}

}  // namespace
}  // namespace monarch
