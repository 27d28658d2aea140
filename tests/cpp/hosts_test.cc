// A C++ controller over hosts: monarch-hostds on loopback addresses, as many machines, and real processes of this program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/monarch.h"

namespace {

using monarch::AttachOptions;
using monarch::HostMesh;
using monarch::ProcOptions;
using monarch::Range;
using monarch::Runtime;
using monarch::SupervisionError;

int g_argc = 0;
char** g_argv = nullptr;

constexpr int64_t kSecondNs = 1'000'000'000;

struct Counter : monarch::Actor {
  explicit Counter(int64_t start) : total(start) {}
  int64_t add(int64_t by) { return total += by; }
  int64_t pid() { return getpid(); }
  std::vector<int64_t> place() { return {coordinate("hosts"), coordinate("gpus")}; }
  std::string variable(std::string name) {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  }
  std::string twice(std::string text) { return text + text; }
  void fail() { throw std::runtime_error("as it was told"); }
  void hang() {
    for (;;) pause();
  }
  void say(std::string text) { std::printf("%s\n", text.c_str()); }
  int64_t total;
};
MONARCH_ACTOR(Counter, add, pid, place, variable, twice, fail, hang, say)

struct Chain : monarch::Actor {
  // Asks the actors of other hosts, from here.
  monarch::Task<int64_t> sum(monarch::ActorMesh<Counter> counters, int64_t by) {
    int64_t sum = 0;
    for (int64_t value : co_await counters.call<&Counter::add>(by)) sum += value;
    co_return sum;
  }
};
MONARCH_ACTOR(Chain, sum)

// Lives in the controller's process, and owns processes on hosts.
struct Owner : monarch::Actor {
  int64_t spawn(std::vector<std::string> addresses, std::string token_file) {
    AttachOptions options;
    options.token_file = token_file;
    auto procs = Runtime::current()->attach_to_workers(addresses, options).spawn_procs({{"gpus", 1}}, "owned");
    counters = procs.spawn<Counter>("counters", 0);
    return counters.slice({{"hosts", 1}, {"gpus", 0}}).call_one<&Counter::pid>().get();
  }
  std::vector<std::string> told() { return failures; }
  bool supervise(const monarch::MeshFailure& failure, bool) override {
    failures.push_back(failure.mesh->name + " " + std::to_string(failure.rank));
    return true;
  }
  monarch::ActorMesh<Counter> counters;
  std::vector<std::string> failures;
};
MONARCH_ACTOR(Owner, spawn, told)

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

template <typename Ready>
bool soon(Ready&& ready) {
  const int64_t until_ns = monarch::monotonic_ns() + 20 * kSecondNs;
  while (!ready()) {
    if (monarch::monotonic_ns() > until_ns) return false;
    usleep(1000);
  }
  return true;
}

// A process that is no child of ours: until its /proc entry is gone or a zombie.
bool is_over(int64_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return true;
  const size_t close = text.rfind(')');
  return close != std::string::npos && text.compare(close + 2, 1, "Z") == 0;
}
void expect_over(const std::vector<int64_t>& pids) {
  for (const int64_t pid : pids) EXPECT_TRUE(soon([pid] { return is_over(pid); })) << pid;
}

// Two monarch-hostds, over TCP or unix sockets, without an interpreter.
class Hosts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    char made[] = "/tmp/monarch-cpp-hosts-XXXXXX";
    folder_ = mkdtemp(made);
    for (int i = 0; i < 2; ++i) start(i);
  }
  void TearDown() override {
    for (const pid_t pid : daemons_) {
      if (pid == 0) continue;
      kill(pid, SIGTERM);
      waitpid(pid, nullptr, 0);
    }
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) left.push_back(entry.path().filename());
    EXPECT_EQ(left, std::vector<std::string>{"token"});
    std::filesystem::remove_all(folder_);
  }

  bool is_tcp() const { return std::string(GetParam()) == "tcp"; }
  void start(int number) {
    const std::string at = is_tcp() ? "tcp://127.0.0." + std::to_string(number + 2) + ":0"
                                    : "ipc://" + folder_ + "/host" + std::to_string(number);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      setenv("MONARCH_TEST_HOST", std::to_string(number).c_str(), 1);
      execl(MONARCH_HOSTD_PROGRAM, MONARCH_HOSTD_PROGRAM, at.c_str(), "--no-python", "--token-file",
            token_file().c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    char line[256];
    const ssize_t size = read(ends[0], line, sizeof line);
    close(ends[0]);
    ASSERT_GT(size, 1);
    daemons_.push_back(pid);
    addresses_.emplace_back(line, static_cast<size_t>(size) - 1);
  }
  std::string token_file() const { return folder_ + "/token"; }
  AttachOptions options() const {
    AttachOptions options;
    options.token_file = token_file();
    options.host_lease = std::chrono::seconds(1);
    return options;
  }
  HostMesh attach(Runtime& runtime) { return runtime.attach_to_workers(addresses_, options()); }

  std::string folder_;
  std::vector<pid_t> daemons_;
  std::vector<std::string> addresses_;
};

INSTANTIATE_TEST_SUITE_P(Over, Hosts, testing::Values("tcp", "ipc"), [](const auto& of) { return std::string(of.param); });

TEST_P(Hosts, AMeshHasTheHostsAsItsFirstDimension) {
  Runtime runtime(g_argc, g_argv);
  const HostMesh hosts = attach(runtime);
  hosts.initialized().get();
  EXPECT_EQ(hosts.size(), 2);
  auto procs = hosts.spawn_procs({{"gpus", 2}}, "trainers");
  EXPECT_EQ(procs.extent().labels(), (std::vector<std::string>{"hosts", "gpus"}));
  auto counters = procs.spawn<Counter>("counters", 5);
  EXPECT_EQ(counters.call<&Counter::add>(1).get().values(), std::vector<int64_t>(4, 6));
  EXPECT_EQ(counters.call<&Counter::place>().get().at({1, 0}), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(counters.call<&Counter::variable>("MONARCH_TEST_HOST").get().values(),
            (std::vector<std::string>{"0", "0", "1", "1"}))
      << "each is started by its own host";
  auto pids = counters.call<&Counter::pid>().get().values();
  std::sort(pids.begin(), pids.end());
  EXPECT_EQ(std::unique(pids.begin(), pids.end()), pids.end());
}

TEST_P(Hosts, SlicesAreCalledCastToAndGathered) {
  Runtime runtime(g_argc, g_argv);
  const HostMesh hosts = attach(runtime);
  auto counters = hosts.spawn_procs({{"gpus", 3}}).spawn<Counter>("counters", 0);
  counters.slice({{"hosts", 1}}).broadcast<&Counter::add>(10);
  counters.slice({{"gpus", Range{1, 3}}}).broadcast<&Counter::add>(1);
  EXPECT_EQ(counters.call<&Counter::add>(0).get().values(), (std::vector<int64_t>{0, 1, 1, 10, 11, 11}));
  EXPECT_EQ((counters.slice({{"hosts", 1}, {"gpus", 2}}).call_one<&Counter::add>(0).get()), 11);
  EXPECT_EQ(counters.choose<&Counter::add>(0).get(), 0);
  auto second = hosts.slice({{"hosts", 1}});
  EXPECT_EQ(second.extent().dim_count(), 0u);
  auto one = second.spawn_procs({}).spawn<Counter>("one", 7);
  EXPECT_EQ(one.call_one<&Counter::variable>("MONARCH_TEST_HOST").get(), "1");
  const std::string large(5 << 20, 'x');
  EXPECT_EQ(one.call_one<&Counter::twice>(large).get(), large + large);
  EXPECT_THROW(hosts.slice({{"hosts", 2}}), std::invalid_argument);
  EXPECT_THROW(hosts.spawn_procs({{"hosts", 2}}), std::invalid_argument);
}

TEST_P(Hosts, ActorsOfOneHostAwaitThoseOfAnother) {
  Runtime runtime(g_argc, g_argv);
  const HostMesh hosts = attach(runtime);
  auto counters = hosts.spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 1);
  auto chains = hosts.spawn_procs({}).spawn<Chain>("chains");
  EXPECT_EQ(chains.slice({{"hosts", 0}}).call_one<&Chain::sum>(counters, 1).get(), 8);
  EXPECT_EQ(chains.slice({{"hosts", 1}}).call_one<&Chain::sum>(counters.slice({{"hosts", 0}}), 1).get(), 6);
  auto here = runtime.this_host().spawn_procs({}).spawn<Chain>("here");
  EXPECT_EQ(here.call_one<&Chain::sum>(counters, 0).get(), 3 + 3 + 2 + 2);
}

TEST_P(Hosts, OptionsOfProcessesReachTheHosts) {
  Runtime runtime(g_argc, g_argv);
  const HostMesh hosts = attach(runtime);
  ProcOptions procs;
  procs.env = {{"MONARCH_TEST_OPTION", "given"}, {"MONARCH_TEST_HOST", std::nullopt}};
  procs.args = std::vector<std::string>{"--of-its-own"};
  auto counters = hosts.spawn_procs({}, procs).spawn<Counter>("counters", 0);
  EXPECT_EQ(counters.call<&Counter::variable>("MONARCH_TEST_OPTION").get().values(), std::vector<std::string>(2, "given"));
  EXPECT_EQ(counters.call<&Counter::variable>("MONARCH_TEST_HOST").get().values(), std::vector<std::string>(2));
  auto here = runtime.this_host().spawn_procs({}, procs).spawn<Counter>("here", 0);
  EXPECT_EQ(here.call_one<&Counter::variable>("MONARCH_TEST_OPTION").get(), "given");
#ifndef __SANITIZE_THREAD__  // which turns vfork into fork, so that nobody is told why a program cannot be run
  procs.program = "/no/such/program";
  auto never = hosts.spawn_procs({}, procs).spawn<Counter>("never", 0);
  EXPECT_HAS(text_of<SupervisionError>([&] { never.call<&Counter::pid>().get(); }), "/no/such/program");
#endif
}

TEST_P(Hosts, OneThatCannotBeAttachedToIsNamedAndTheOthersAreUsable) {
  Runtime runtime(g_argc, g_argv);
  AttachOptions few = options();
  few.ready_timeout = std::chrono::milliseconds(50);
  const std::string missing = is_tcp() ? "tcp://127.0.0.9:9" : "ipc://" + folder_ + "/nobody";
  const HostMesh hosts = runtime.attach_to_workers({addresses_[0], missing}, few);
  EXPECT_HAS(text_of<SupervisionError>([&] { hosts.initialized().get(); }), missing);
  const std::string text = text_of<SupervisionError>([&] { hosts.spawn_procs({{"gpus", 2}}); });
  EXPECT_HAS(text, missing);
  EXPECT_HAS(text, "{'hosts': 1/2}");
  auto counter = hosts.slice({{"hosts", 0}}).spawn_procs({}).spawn<Counter>("counter", 1);
  EXPECT_EQ(counter.call_one<&Counter::add>(1).get(), 2);
}

TEST_P(Hosts, WhatMakesNoAddressOrNoHostsSaysWhatToDo) {
  Runtime runtime(g_argc, g_argv);
  EXPECT_HAS(text_of<std::invalid_argument>([&] { runtime.attach_to_workers({}); }), "tcp://host:4444");
  EXPECT_THROW(runtime.attach_to_workers({"http://somewhere:80"}, options()), std::invalid_argument);
  EXPECT_THROW(runtime.attach_to_workers({"tcp://127.0.0.1:0"}, options()), std::invalid_argument);
  AttachOptions wrong = options();
  wrong.ca_file = "/some/ca.pem";
  EXPECT_HAS(text_of<std::invalid_argument>([&] { runtime.attach_to_workers(addresses_, wrong); }), "go together");
  wrong = options();
  wrong.host_lease = std::chrono::milliseconds(1);
  EXPECT_HAS(text_of<std::invalid_argument>([&] { runtime.attach_to_workers(addresses_, wrong); }), "0.5 s");
  wrong = options();
  wrong.token_file = "token";
  EXPECT_HAS(text_of<std::invalid_argument>([&] { runtime.attach_to_workers(addresses_, wrong); }), "absolute");
  EXPECT_THROW(runtime.this_host().stop(), std::logic_error);
  runtime.this_host().initialized().get();
  EXPECT_EQ(runtime.this_host().size(), 1);
}

TEST_P(Hosts, WhoHasAnotherTokenIsRefused) {
  Runtime runtime(g_argc, g_argv);
  AttachOptions other = options();
  other.token_file = folder_ + "/other";
  std::ofstream(other.token_file, std::ios::binary) << std::string(16, 'x');
  std::filesystem::permissions(other.token_file, std::filesystem::perms(0600));
  other.ready_timeout = std::chrono::milliseconds(50);
  const HostMesh hosts = runtime.attach_to_workers({addresses_[0]}, other);
  EXPECT_HAS(text_of<SupervisionError>([&] { hosts.initialized().get(); }), addresses_[0]);
  std::filesystem::remove(other.token_file);
}

TEST_P(Hosts, AProcessThatIsKilledThereIsSeenWithPidAndSignal) {
  Runtime::Options quiet;
  std::atomic<int> failures{0};
  quiet.on_unhandled_failure = [&](const monarch::MeshFailure&) { ++failures; };
  Runtime runtime(g_argc, g_argv, quiet);
  auto procs = attach(runtime).spawn_procs({{"gpus", 2}}, "trainers");
  auto counters = procs.spawn<Counter>("counters", 0);
  const auto pids = counters.call<&Counter::pid>().get().values();
  auto hanging = counters.slice({{"gpus", 0}}).call<&Counter::hang>();
  ASSERT_EQ(kill(static_cast<pid_t>(pids[2]), SIGKILL), 0);
  try {
    hanging.get();
    FAIL();
  } catch (const SupervisionError& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_HAS(std::string(error.what()), "pid " + std::to_string(pids[2]));
    EXPECT_HAS(std::string(error.what()), "{'hosts': 1/2, 'gpus': 0/2} of procs 'trainers'");
  }
  procs.respawn({2});
  auto again = counters.slice({{"hosts", 1}});
  EXPECT_EQ(again.call<&Counter::add>(3).get().values(), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(again.call<&Counter::variable>("MONARCH_TEST_HOST").get().values(), (std::vector<std::string>{"1", "1"}));
  procs.stop();
  expect_over(pids);
  EXPECT_EQ(failures, 0) << "the call was told of it";
}

TEST_P(Hosts, AHostThatIsLostIsTheCauseOfItsRanks) {
  Runtime::Options quiet;
  std::atomic<int> procs_failed{0}, actors_failed{0};
  quiet.on_unhandled_failure = [&](const monarch::MeshFailure& failure) {
    ++(failure.mesh->is_procs ? procs_failed : actors_failed);
  };
  Runtime runtime(g_argc, g_argv, quiet);
  auto procs = attach(runtime).spawn_procs({{"gpus", 2}}, "trainers");
  auto counters = procs.spawn<Counter>("counters", 0);
  const auto pids = counters.call<&Counter::pid>().get().values();
  kill(daemons_[1], SIGKILL);
  waitpid(std::exchange(daemons_[1], 0), nullptr, 0);
  if (!is_tcp()) std::filesystem::remove(folder_ + "/host1");
  EXPECT_TRUE(soon([&] { return procs_failed == 2 && actors_failed == 2; })) << procs_failed << " " << actors_failed;
  EXPECT_HAS(text_of<SupervisionError>([&] { counters.slice({{"hosts", 1}}).call<&Counter::pid>().get(); }), "host");
  EXPECT_EQ(counters.slice({{"hosts", 0}}).call<&Counter::add>(1).get().values(), (std::vector<int64_t>{1, 1}));
  expect_over({pids[2], pids[3]});
}

TEST_P(Hosts, AnActorThatOwnsProcessesThereIsAskedAboutThem) {
  Runtime runtime(g_argc, g_argv);
  auto owner = runtime.this_proc().spawn<Owner>("owner");
  const int64_t pid = owner.call_one<&Owner::spawn>(addresses_, token_file()).get();
  ASSERT_EQ(kill(static_cast<pid_t>(pid), SIGKILL), 0);
  std::vector<std::string> told;
  EXPECT_TRUE(soon([&] {
    told = owner.call_one<&Owner::told>().get();
    return told.size() == 2;
  }));
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<std::string>{"counters 1", "owned 1"}));
}

TEST_P(Hosts, OneProgramComesAfterTheOtherAndFindsNothingOfIt) {
  std::vector<int64_t> pids;
  for (int round = 0; round < 2; ++round) {
    Runtime runtime(g_argc, g_argv);
    auto counters = attach(runtime).spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
    const auto more = counters.call<&Counter::pid>().get().values();
    pids.insert(pids.end(), more.begin(), more.end());
    counters.slice({{"hosts", 0}, {"gpus", 0}}).broadcast<&Counter::hang>();  // a busy actor does not hold up the end
  }
  expect_over(pids);
}

// A controller that is killed takes its workers along, on other hosts too.
TEST_P(Hosts, NothingIsLeftWhenTheControllerIsKilled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan allows a child of a process with threads none of its own";
#endif
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t controller = fork();
  if (controller == 0) {
    Runtime runtime(g_argc, g_argv);
    auto counters = attach(runtime).spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0);
    for (const int64_t pid : counters.call<&Counter::pid>().get()) {
      if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    }
    for (;;) pause();
  }
  std::vector<int64_t> pids(4);
  for (int64_t& pid : pids) ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  kill(controller, SIGKILL);
  waitpid(controller, nullptr, 0);
  expect_over(pids);
  close(ends[0]);
  close(ends[1]);
}

TEST_P(Hosts, StopLetsGoOfThemAndShutdownEndsThem) {
  Runtime runtime(g_argc, g_argv);
  HostMesh hosts = attach(runtime);
  auto counters = hosts.spawn_procs({{"gpus", 1}}).spawn<Counter>("counters", 0);
  auto pids = counters.call<&Counter::pid>().get().values();
  hosts.stop("it is enough");
  expect_over(pids);
  EXPECT_HAS(text_of<SupervisionError>([&] { counters.call<&Counter::pid>().get(); }), "stopped: it is enough");
  EXPECT_THROW(hosts.spawn_procs({}), SupervisionError);
  hosts = attach(runtime);
  pids = hosts.spawn_procs({}).spawn<Counter>("counters", 0).call<&Counter::pid>().get().values();
  hosts.slice({{"hosts", 1}}).shutdown();
  expect_over({pids[1]});
  EXPECT_FALSE(is_over(pids[0]));
  int status = -1;
  waitpid(std::exchange(daemons_[1], 0), &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_P(Hosts, LinesThatArePrintedThereAreShownHere) {
  std::fflush(stdout);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int own_stdout = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  {
    Runtime runtime(g_argc, g_argv);
    const HostMesh hosts = attach(runtime);
    hosts.spawn_procs({{"gpus", 2}}).spawn<Counter>("counters", 0).call<&Counter::say>("hello").get();
    hosts.stop();
  }
  dup2(own_stdout, STDOUT_FILENO);
  close(own_stdout);
  std::string text(1 << 16, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], text.data(), text.size()), 0)));
  close(ends[0]);
  for (int rank = 0; rank < 4; ++rank) EXPECT_HAS(text, "[" + std::to_string(rank) + "] hello\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 3 && std::string_view(argv[argc - 2]) == "--monarch-worker") Runtime worker(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  g_argc = argc;
  g_argv = argv;
  return RUN_ALL_TESTS();
}
