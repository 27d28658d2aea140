#include "monarch/base/forked.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace monarch {
namespace {

int before_count = 0, parent_count = 0, child_count = 0;
struct Counting final : ForkWatcher {
  void before_fork() override { ++before_count; }
  void after_fork_in_parent() override { ++parent_count; }
  void after_fork_in_child() override { ++child_count; }
};

int status_of(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// What the child of a fork() has seen: its flag, and how often each hook ran.
int seen() { return (in_forked_child() ? 1 : 0) + 2 * before_count + 8 * parent_count + 32 * child_count; }

TEST(Forked, OnlyTheChildIsOneAndThatOfAChildToo) {
  EXPECT_EQ(status_of([] {
              const pid_t pid = fork();
              if (pid == 0) _exit(seen());
              return pid;
            }()),
            0);  // nobody watches yet: a fork server's children are none
  Counting watcher, other;
  watch_forks(other);
  watch_forks(watcher);
  unwatch_forks(other);
  const pid_t child = fork();
  if (child == 0) {
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(seen());
    _exit(status_of(grandchild) == seen() ? seen() : 0);
  }
  EXPECT_EQ(status_of(child), 1 + 2 + 32);
  EXPECT_EQ(seen(), 2 + 8);
  unwatch_forks(watcher);
  const pid_t unwatched = fork();
  if (unwatched == 0) _exit(seen());
  EXPECT_EQ(status_of(unwatched), 2 + 8);
}

TEST(Forked, NoHookIsForAForkThatBecomesAnotherProgram) {
  const int seen_before = seen();
  Counting watcher;
  watch_forks(watcher);
  pid_t child;
  {
    const ForkToExec becomes_another_program;
    child = fork();
    if (child == 0) _exit(seen() == seen_before && in_fork_to_exec() ? 0 : 1);
  }
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(seen(), seen_before);
  EXPECT_FALSE(in_fork_to_exec());
  unwatch_forks(watcher);
}

}  // namespace
}  // namespace monarch
