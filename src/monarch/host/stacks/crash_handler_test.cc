#include "monarch/host/stacks/crash_handler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>

#include "monarch/base/system.h"

// In the table of symbols that dladdr() knows.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void monarch_test_crash(int number) {
  raise(number);
  [[maybe_unused]] volatile int after = number;  // so that the call before is no jump
}

namespace monarch {
namespace {

// As faulthandler: writes to a descriptor, then the process dies of the signal.
int language_fd = -1;
void language_handler(int number) {
  [[maybe_unused]] const ssize_t count = write(language_fd, "  File \"x.py\", line 1 in f\n", 26);
  signal(number, SIG_DFL);
  raise(number);
}

class CrashHandler : public testing::Test {
 protected:
  CrashHandler() {
    file_ = sys::make_memfd("last-words", 0);
    sys::truncate(file_.get(), sizeof(LastWords));
    memory_ = mmap(nullptr, sizeof(LastWords), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  }
  ~CrashHandler() override { munmap(memory_, sizeof(LastWords)); }

  LastWords& left() { return *static_cast<LastWords*>(memory_); }

  // How a process has ended that did this.
  int status_of(const std::function<void()>& work, bool with_language = true, void (*handler)(int) = language_handler) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(10);
      for (const int number : {SIGSEGV, SIGABRT, SIGFPE}) signal(number, SIG_DFL);  // not a sanitizer's
      language_fd = with_language ? dup(file_.get()) : -1;
      for (const int number : {SIGSEGV, SIGABRT}) {
        if (with_language) signal(number, handler);
      }
      note_crashes(left(), language_fd, offsetof(LastWords, language));
      work();
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }

  UniqueFd file_;
  void* memory_ = nullptr;
};

TEST_F(CrashHandler, WritesTheFramesAndHasTheLanguageWriteItsOwn) {
  for (const int number : {SIGSEGV, SIGABRT}) {
    const int status = status_of([&] { monarch_test_crash(number); });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    const std::string stack = read_stack(left(), true);
    EXPECT_TRUE(stack.starts_with("Python stack, innermost first:\n  File \"x.py\", line 1 in f\nC stack")) << stack;
    EXPECT_EQ(stack.find("on_crash"), std::string::npos) << stack;
  }
}

TEST_F(CrashHandler, ACoreIsWrittenWhereOneIsWanted) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &before), 0);
  if (before.rlim_max == 0) GTEST_SKIP() << "cores are forbidden here";
  for (const rlim_t size : {rlim_t{0}, before.rlim_max}) {
    const int status = status_of(
        [&] {
          const rlimit limit{size, before.rlim_max};
          setrlimit(RLIMIT_CORE, &limit);
          monarch_test_crash(SIGSEGV);
        },
        true, [](int) { _exit(prctl(PR_GET_DUMPABLE)); });
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 1 || size == 0)) << size << " bytes, status " << status;
  }
}

TEST_F(CrashHandler, WithoutALanguageThereAreNativeFrames) {
  const int status = status_of([] { monarch_test_crash(SIGFPE); }, /*with_language=*/false);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGFPE) << status;
  EXPECT_TRUE(read_stack(left(), true).starts_with("C stack, innermost first:\n  ")) << read_stack(left(), true);
}

TEST_F(CrashHandler, WhatASignalOfKillHasMetIsNoCause) {
  const int status = status_of([] { kill(getpid(), SIGSEGV); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_EQ(read_stack(left(), true), "Python stack, innermost first:\n  File \"x.py\", line 1 in f");
}

std::atomic<bool> first_is_in{false}, second_begins{false};
void slow_language_handler(int number) {
  first_is_in = true;
  while (!second_begins) usleep(1000);
  usleep(50'000);  // it would end the process meanwhile
  language_handler(number);
}

TEST_F(CrashHandler, TheSecondThreadThatCrashesWaitsForTheFirst) {
  const int status = status_of([] {
    std::thread second([] {
      while (!first_is_in) usleep(1000);
      second_begins = true;
      monarch_test_crash(SIGABRT);
    });
    monarch_test_crash(SIGSEGV);
    second.join();
  }, /*with_language=*/true, slow_language_handler);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_NE(read_stack(left(), true).find("x.py"), std::string::npos);
}

TEST_F(CrashHandler, AChildThatCrashesIsNotItsParent) {
  const int status = status_of([] {
    const pid_t child = fork();
    if (child == 0) {
      const UniqueFd null = sys::open_file("/dev/null", 2);
      dup2(null.get(), STDERR_FILENO);
      raise(SIGSEGV);
      _exit(0);
    }
    int how = 0;
    waitpid(child, &how, 0);
    _exit(WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV ? 7 : 8);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(read_stack(left(), true), "");
}

// As a recursion without end does, on a thread.
[[gnu::noinline]] int recurse(volatile char* above) {
  volatile char here[4096];
  here[0] = above == nullptr ? 1 : above[0];
  if (here[0] != 1) return 0;  // never
  return recurse(here) + here[0];
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() GTEST_SKIP() << "it has a stack for handlers of its own"
#else
#define SKIP_UNDER_SANITIZERS() (void)0
#endif

TEST_F(CrashHandler, AThreadMayCrashAtTheEndOfItsStack) {
  SKIP_UNDER_SANITIZERS();
  const int status = status_of([] {
    pthread_t thread;
    pthread_create(&thread, nullptr, [](void*) -> void* {
      const CrashStack stack;
      return reinterpret_cast<void*>(static_cast<intptr_t>(recurse(nullptr)));
    }, nullptr);
    pthread_join(thread, nullptr);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_NE(read_stack(left(), true), "");
}

}  // namespace
}  // namespace monarch
