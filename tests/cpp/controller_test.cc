// A C++ controller and its workers: real processes of this very program.
#include <fcntl.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "monarch/monarch.h"

namespace {

using monarch::Range;
using monarch::Runtime;

int g_argc = 0;
char** g_argv = nullptr;

struct Counter : monarch::Actor {
  explicit Counter(int64_t start) : total(start) {}
  int64_t add(int64_t by) { return total += by; }
  int64_t pid() { return getpid(); }
  int64_t place() { return coordinate("gpus"); }
  void fail(std::string what) { throw std::invalid_argument(what); }
  std::string variable(std::string name) {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  }
  std::string twice(std::string text) { return text + text; }
  void hang() {
    for (;;) pause();
  }
  void say(std::string text) { std::printf("%s %lld\n", text.c_str(), static_cast<long long>(rank())); }
  int64_t total;
};
MONARCH_ACTOR(Counter, add, pid, place, fail, variable, twice, hang, say)

struct Chain : monarch::Actor {
  // Asks the actors of other processes, from here.
  monarch::Task<int64_t> sum(monarch::ActorMesh<Counter> counters, int64_t by) {
    int64_t sum = 0;
    for (int64_t value : co_await counters.call<&Counter::add>(by)) sum += value;
    co_return sum;
  }
};
MONARCH_ACTOR(Chain, sum)

template <typename Error, typename Run>
std::string text_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "(it did not throw)";
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Waits for the end of a process that is no child of ours: until its /proc entry is gone or a zombie.
bool ends_within(pid_t pid, int64_t limit_ns) {
  const int64_t until_ns = monarch::monotonic_ns() + limit_ns;
  while (monarch::monotonic_ns() < until_ns) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(stat, text)) return true;
    const size_t close = text.rfind(')');
    if (close != std::string::npos && text.compare(close + 2, 1, "Z") == 0) return true;
    sched_yield();
  }
  return false;
}

TEST(Controller, CallsActorsInFourProcesses) {
  Runtime runtime(g_argc, g_argv);
  auto procs = monarch::this_host().spawn_procs({{"hosts", 2}, {"gpus", 2}}, "trainers");
  auto counters = procs.spawn<Counter>("counters", 5);
  auto sums = counters.call<&Counter::add>(1).get();
  EXPECT_EQ(sums.values(), std::vector<int64_t>(4, 6));
  EXPECT_EQ(counters.call<&Counter::place>().get().at({1, 1}), 1);
  auto pids = counters.call<&Counter::pid>().get();
  std::vector<int64_t> distinct(pids.begin(), pids.end());
  std::sort(distinct.begin(), distinct.end());
  EXPECT_EQ(std::unique(distinct.begin(), distinct.end()), distinct.end());
  EXPECT_EQ(std::count(distinct.begin(), distinct.end(), getpid()), 0);
}

TEST(Controller, ActorsOfOneProcessAwaitThoseOfOthers) {
  Runtime runtime(g_argc, g_argv);
  auto counters = runtime.this_host().spawn_procs({{"gpus", 3}}).spawn<Counter>("counters", 0);
  auto chains = runtime.this_host().spawn_procs({{"gpus", 2}}).spawn<Chain>("chains");
  EXPECT_EQ(chains.slice({{"gpus", 0}}).call_one<&Chain::sum>(counters, 2).get(), 6);
  EXPECT_EQ(chains.slice({{"gpus", 1}}).call_one<&Chain::sum>(counters.slice({{"gpus", Range{1, 3}}}), 2).get(), 8);
}

TEST(Controller, ErrorsAndLargeValuesCrossProcesses) {
  setenv("MONARCH_TEST_VARIABLE", "inherited", 1);
  Runtime runtime(g_argc, g_argv);
  auto counter = runtime.this_host().spawn_procs({}).spawn<Counter>("counter", 0);
  const std::string text = text_of<monarch::ActorError>([&] { counter.call_one<&Counter::fail>("bad").get(); });
  EXPECT_HAS(text, "fail() of Counter 'counter' raised std::invalid_argument: bad");
  EXPECT_EQ(counter.call_one<&Counter::variable>("MONARCH_TEST_VARIABLE").get(), "inherited");
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(counter.call_one<&Counter::twice>(large).get(), large + large);
}

TEST(Controller, AKilledProcessIsSeenAtOnceWithPidAndSignal) {
  Runtime runtime(g_argc, g_argv);
  auto procs = runtime.this_host().spawn_procs({{"gpus", 4}}, "trainers");
  auto counters = procs.spawn<Counter>("counters", 0);
  const auto pids = counters.call<&Counter::pid>().get();
  auto hanging = counters.call<&Counter::hang>();
  const int64_t start_ns = monarch::monotonic_ns();
  ASSERT_EQ(kill(static_cast<pid_t>(pids[2]), SIGKILL), 0);
  try {
    hanging.get();
    FAIL();
  } catch (const monarch::SupervisionError& error) {
    EXPECT_LT(monarch::monotonic_ns() - start_ns, 2'000'000'000);
    EXPECT_EQ(error.rank(), 2);
    EXPECT_HAS(std::string(error.what()), "pid " + std::to_string(pids[2]));
    EXPECT_HAS(std::string(error.what()), "Killed(sig=9)");
    EXPECT_HAS(std::string(error.what()), "{'gpus': 2/4} of procs 'trainers'");
  }
  // Later calls to it fail at once; another process takes calls and new actors.
  EXPECT_THROW(counters.slice({{"gpus", 2}}).call_one<&Counter::pid>().get(), monarch::SupervisionError);
  auto more = procs.slice({{"gpus", 1}}).spawn<Counter>("more", 1);
  EXPECT_EQ(more.call_one<&Counter::pid>().get(), pids[1]);
}

// What a controller has caught is no news on stderr.
TEST(Controller, ADeathThatACallWasToldOfIsNotToldAgain) {
  testing::internal::CaptureStderr();
  {
    Runtime runtime(g_argc, g_argv);
    auto counters = runtime.this_host().spawn_procs({{"gpus", 2}}, "trainers").spawn<Counter>("counters", 0);
    const auto pids = counters.call<&Counter::pid>().get();
    ASSERT_EQ(kill(static_cast<pid_t>(pids[1]), SIGKILL), 0);
    EXPECT_THROW(counters.call<&Counter::hang>().get(), monarch::SupervisionError);
  }
  monarch::flush_log();
  const std::string caught = testing::internal::GetCapturedStderr();
  EXPECT_EQ(caught, "");
  testing::internal::CaptureStderr();
  {
    Runtime runtime(g_argc, g_argv);
    auto procs = runtime.this_host().spawn_procs({{"gpus", 2}}, "trainers");
    const auto pids = procs.spawn<Counter>("counters", 0).call<&Counter::pid>().get();
    ASSERT_EQ(kill(static_cast<pid_t>(pids[1]), SIGUSR1), 0);  // by SIGKILL it might have ended as it was asked to
    EXPECT_TRUE(ends_within(static_cast<pid_t>(pids[1]), 2'000'000'000));
  }
  monarch::flush_log();
  const std::string unheard = testing::internal::GetCapturedStderr();
  EXPECT_HAS(unheard, "sig=10");
}

TEST(Controller, WhatHasDiedIsMadeAnewInItsPlace) {
  Runtime::Options options;
  options.on_unhandled_failure = [](const monarch::MeshFailure&) {};
  Runtime runtime(g_argc, g_argv, options);
  auto procs = runtime.this_host().spawn_procs({{"gpus", 3}});
  auto counters = procs.spawn<Counter>("counters", 10);
  auto chain = procs.slice({{"gpus", 0}}).spawn<Chain>("chain");
  const auto before = counters.call<&Counter::pid>().get().values();
  EXPECT_EQ(chain.call_one<&Chain::sum>(counters, 1).get(), 33);
  EXPECT_HAS(text_of<std::invalid_argument>([&] { procs.respawn({1}); }), "rank 1 of 'procs' has not ended");
  auto hit = counters.slice({{"gpus", 1}});
  for (int round = 0; round < 3; ++round) {
    const auto pid = static_cast<pid_t>(hit.call_one<&Counter::pid>().get());
    auto hanging = hit.call_one<&Counter::hang>();
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    EXPECT_THROW(hanging.get(), monarch::SupervisionError);
    procs.respawn({1});
    EXPECT_EQ(chain.call_one<&Chain::sum>(counters, 0).get(), 11 + 10 + 11) << "two have kept what they had";
  }
  const auto after = counters.call<&Counter::pid>().get().values();
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  EXPECT_EQ(after[2], before[2]);
  procs.stop();
}

TEST(Controller, StopEndsTheProcessesAndSaysWhy) {
  Runtime runtime(g_argc, g_argv);
  auto procs = runtime.this_host().spawn_procs({{"gpus", 2}});
  auto counters = procs.spawn<Counter>("counters", 0);
  const auto pids = counters.call<&Counter::pid>().get();
  procs.slice({{"gpus", 0}}).stop("no longer needed");
  EXPECT_TRUE(ends_within(static_cast<pid_t>(pids[0]), 0) || kill(static_cast<pid_t>(pids[0]), 0) != 0);
  EXPECT_HAS(text_of<monarch::SupervisionError>([&] { counters.call<&Counter::pid>().get(); }),
             "stopped: no longer needed");
  EXPECT_EQ(counters.slice({{"gpus", 1}}).call_one<&Counter::pid>().get(), pids[1]);
  EXPECT_THROW(runtime.this_proc().stop(), std::logic_error);
}

TEST(Controller, WhatActorsPrintStandsBeforeWhatMainPrintsNext) {
  std::fflush(stdout);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int own_stdout = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  {
    Runtime runtime(g_argc, g_argv);
    auto counters = runtime.this_host().spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
    auto second = counters.slice({{"gpus", 1}});
    for (int i = 0; i < 100; ++i) {
      second.call_one<&Counter::say>("actor").get();
      EXPECT_EQ(write(STDOUT_FILENO, "main\n", 5), 5);
    }
    counters.broadcast<&Counter::say>("unheard");
  }
  dup2(own_stdout, STDOUT_FILENO);
  close(own_stdout);
  std::string text(1 << 16, '\0'), expected;
  text.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], text.data(), text.size()), 0)));
  close(ends[0]);
  for (int i = 0; i < 100; ++i) expected += "[1] actor 1\nmain\n";
  ASSERT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_HAS(text, "[0] unheard 0\n");
  EXPECT_HAS(text, "[1] unheard 1\n");
}

TEST(Controller, NothingIsLeftWhenTheRuntimeEnds) {
  std::vector<int64_t> pids;
  {
    Runtime runtime(g_argc, g_argv);
    auto counters = runtime.this_host().spawn_procs({{"gpus", 4}}).spawn<Counter>("counters", 0);
    pids = counters.call<&Counter::pid>().get().values();
    counters.slice({{"gpus", 3}}).broadcast<&Counter::hang>();  // a busy actor does not hold up the end
  }
  for (int64_t pid : pids) EXPECT_TRUE(ends_within(static_cast<pid_t>(pid), 2'000'000'000)) << pid;
  EXPECT_EQ(Runtime::current(), nullptr);
  EXPECT_THROW(monarch::this_host(), std::logic_error);
}

// A controller that is killed takes its workers along: it runs in a process of its own.
TEST(Controller, NothingIsLeftWhenTheControllerIsKilled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan allows a child of a process with threads none of its own";
#endif
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t controller = fork();
  if (controller == 0) {
    Runtime runtime(g_argc, g_argv);
    auto counters = runtime.this_host().spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
    const auto pids = counters.call<&Counter::pid>().get();
    for (int64_t pid : pids) {
      if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    }
    for (;;) pause();
  }
  int64_t pids[2] = {0, 0};
  for (int64_t& pid : pids) ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  kill(controller, SIGKILL);
  waitpid(controller, nullptr, 0);
  for (int64_t pid : pids) EXPECT_TRUE(ends_within(static_cast<pid_t>(pid), 2'000'000'000)) << pid;
  close(ends[0]);
  close(ends[1]);
}

TEST(Controller, DimensionsThatMakeNoMeshSayWhatToDo) {
  Runtime runtime(g_argc, g_argv);
  auto host = runtime.this_host();
  EXPECT_HAS(text_of<std::invalid_argument>([&] { host.spawn_procs({{"gpus", 0}}); }),
             "dimension 'gpus' has size 0; give each dimension 1 or more");
  EXPECT_HAS(text_of<std::invalid_argument>([&] { host.spawn_procs({{"gpus", -2}}); }), "size -2");
  EXPECT_THROW(host.spawn_procs({{"gpus", 1}, {"gpus", 1}}), std::invalid_argument);
}

// What nobody deals with ends the program; in a child, as it is this one.
TEST(Controller, AFailureThatNoCallTellsEndsTheProgram) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", g_argv[0], "--gtest_also_run_disabled_tests", "--gtest_filter=*DISABLED_FailsUnseen", nullptr);
    _exit(9);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(Controller, DISABLED_FailsUnseen) {
  Runtime runtime(g_argc, g_argv);
  auto counters = runtime.this_host().spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
  counters.slice({{"gpus", 1}}).broadcast<&Counter::fail>("unseen");
  sleep(20);
  _exit(0);
}

TEST(Controller, AProgramMayDecideAboutFailuresItself) {
  std::atomic<int> failures{0};
  Runtime::Options options;
  options.on_unhandled_failure = [&](const monarch::MeshFailure& failure) {
    failures += failure.rank == 1 && failure.mesh->name == "counters" ? 1 : 100;
  };
  Runtime runtime(g_argc, g_argv, options);
  auto counters = runtime.this_host().spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
  counters.slice({{"gpus", 1}}).broadcast<&Counter::fail>("unseen");
  const int64_t until_ns = monarch::monotonic_ns() + 20'000'000'000;
  while (failures == 0 && monarch::monotonic_ns() < until_ns) sched_yield();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(counters.slice({{"gpus", 0}}).call_one<&Counter::add>(1).get(), 1);
}

TEST(Controller, AnInnerRuntimeReplacesTheOuterOne) {
  Runtime outer(g_argc, g_argv);
  {
    Runtime inner(g_argc, g_argv, {.actor_threads = 1, .transport = "unix"});
    EXPECT_EQ(Runtime::current(), &inner);
    auto counter = monarch::this_host().spawn_procs({}).spawn<Counter>("counter", 1);
    EXPECT_EQ(counter.call_one<&Counter::add>(1).get(), 2);
    const pid_t child = fork();  // which takes locks of both
    if (child == 0) _exit(0);
    ASSERT_GT(child, 0);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(counter.call_one<&Counter::add>(1).get(), 3);
  }
  EXPECT_EQ(Runtime::current(), &outer);
}

// A test that hangs says where main() waits, and what there is of processes and threads, before ctest ends it.
void say_where_it_hangs(int) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  if (_Fork() == 0) execlp("ps", "ps", "-eLo", "pid,ppid,lwp,stat,wchan:24,comm", nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 3 && std::string_view(argv[argc - 2]) == "--monarch-worker") Runtime worker(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  signal(SIGALRM, say_where_it_hangs);
  alarm(240);
  g_argc = argc;
  g_argv = argv;
  return RUN_ALL_TESTS();
}
