// Lives that are given back, and what /proc says then, of processes that end or do not.
#include "monarch/host/start/life.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"
#include "monarch/host/start/life_watch.h"
#include "monarch/host/start/process.h"

namespace monarch {
namespace {

constexpr int64_t kPatienceNs = 10'000'000'000;

// A child of this test that holds its life, and does what it is told when a byte comes.
class Holder {
 public:
  explicit Holder(const std::function<void()>& work, bool holds = true) {
    UniqueFd record = make_shared_memory("life", kLifeBytes).value();
    EXPECT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_STREAM, ends_));
    process_.pid = fork();
    if (process_.pid == 0) {
      if (holds) hold_life(record.get());
      say();
      hear();
      work();
      say();
      for (;;) pause();
    }
    process_.pidfd = sys::open_pidfd(process_.pid);
    life_ = map_life(record.get());
    ends_[1].reset();
    hear();
  }
  ~Holder() {
    kill(process_.pid, SIGKILL);
    reap(process_);
  }
  void say() { EXPECT_EQ(write(ends_[process_.pid == 0].get(), "x", 1), 1); }
  void hear() {
    char byte;
    EXPECT_EQ(read(ends_[process_.pid == 0].get(), &byte, 1), 1);
  }
  const Process& process() const { return process_; }
  Mapping take_life() { return std::move(life_); }
  bool has_ended() {
    pollfd fd{process_.pidfd.get(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }

 private:
  UniqueFd ends_[2];
  Process process_;
  Mapping life_;
};

class LifeTest : public ::testing::Test {
 protected:
  bool is_told_of(uint64_t key, int times = 1) {
    std::unique_lock lock(mutex_);
    condition_.wait_for(lock, std::chrono::nanoseconds(kPatienceNs), [&] { return told_[key] >= times; });
    return told_[key] == times;
  }
  // Everything that was to be told before has been, when it is told of this.
  void expect_silence(uint64_t key) {
    Holder other([] { _exit(0); });
    watch_.add(999, other.take_life());
    other.say();
    EXPECT_TRUE(is_told_of(999));
    std::lock_guard lock(mutex_);
    EXPECT_EQ(told_[key], 0);
    told_[999] = 0;
  }
  // As soon as it is told, or a moment later where a thread that ends the others is not at its own end yet.
  std::optional<ExitStatus> ending_of(const Holder& holder) {
    std::optional<ExitStatus> status;
    for (int tries = 0; !status && tries < 1000; ++tries) {
      status = read_ending(holder.process());
      if (!status) std::this_thread::yield();
    }
    return status;
  }

  std::mutex mutex_;
  std::condition_variable condition_;
  std::map<uint64_t, int> told_;
  LifeWatch watch_{[this](uint64_t key) {
    std::lock_guard lock(mutex_);
    ++told_[key];
    condition_.notify_all();
  }};
};

// As it does where no sanitizer has a handler for it.
void segfault() {
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

void in_a_thread(const std::function<void()>& work) {
  std::thread(work).join();
}

TEST_F(LifeTest, IsGivenBackByEveryKindOfEndAndProcSaysWhich) {
  struct Case {
    std::function<void()> work;
    int code, signal;
  };
  const Case cases[] = {
      {[] { raise(SIGKILL); }, 0, SIGKILL},
      {segfault, 0, SIGSEGV},
      {[] { abort(); }, 0, SIGABRT},
      {[] { _exit(3); }, 3, 0},
      {[] { _exit(0); }, 0, 0},
      {[] { in_a_thread([] { _exit(5); }); }, 5, 0},
      {[] { in_a_thread([] { _exit(0); }); }, 0, 0},
      {[] { in_a_thread(segfault); }, 0, SIGSEGV},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    Holder holder(cases[i].work);
    EXPECT_EQ(read_ending(holder.process()), std::nullopt);
    ASSERT_TRUE(watch_.add(i, holder.take_life()));
    holder.say();
    ASSERT_TRUE(is_told_of(i)) << i;
    const auto status = ending_of(holder);
    ASSERT_TRUE(status && status->known) << i;
    EXPECT_EQ(status->code, cases[i].code) << i;
    EXPECT_EQ(status->signal, cases[i].signal) << i;
    const ExitStatus reaped = reap(holder.process());
    EXPECT_EQ(reaped.code, cases[i].code) << i;
    EXPECT_EQ(reaped.signal, cases[i].signal) << i;
    EXPECT_EQ(read_ending(holder.process()), std::nullopt) << "the number may be somebody else's by now";
  }
}

TEST_F(LifeTest, IsToldLongBeforeAllOfALargeProcessIsGone) {
  bool before = false;
  for (int tries = 0; tries < 5 && !before; ++tries) {
    Holder holder([] {
      constexpr size_t kBytes = size_t{512} << 20;
      void* memory = sys::map(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
      if (memory != MAP_FAILED) std::memset(memory, 1, kBytes);
    });
    ASSERT_TRUE(watch_.add(1, holder.take_life()));
    holder.say();
    holder.hear();
    kill(holder.process().pid, SIGKILL);
    ASSERT_TRUE(is_told_of(1));
    const auto status = read_ending(holder.process());
    before = status && status->signal == SIGKILL && !holder.has_ended();
    std::lock_guard lock(mutex_);
    told_.clear();
  }
  EXPECT_TRUE(before);
}

TEST_F(LifeTest, OfAProcessThatBecomesAnotherProgramIsGivenBackAndItLives) {
  for (const bool by_thread : {false, true}) {
    const uint64_t key = by_thread ? 2 : 1;
    Holder holder([by_thread] {
      const auto become = [] { execl("/bin/sleep", "sleep", "100", nullptr); };
      by_thread ? in_a_thread(become) : become();
    });
    watch_.add(key, holder.take_life());
    holder.say();
    EXPECT_TRUE(is_told_of(key));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(read_ending(holder.process()), std::nullopt);
    EXPECT_FALSE(holder.has_ended());
  }
}

// The new program's thread takes over the number of the main thread, which has just ended, while somebody reads.
TEST_F(LifeTest, OfAProcessWhoseThreadBecomesAnotherProgramIsNeverAnEnd) {
  for (int i = 0; i < 300; ++i) {
    Holder holder([] { in_a_thread([] { execl("/bin/sleep", "sleep", "100", nullptr); }); });
    watch_.add(i, holder.take_life());
    holder.say();
    const auto is_told = [&] {
      std::lock_guard lock(mutex_);
      return told_[i] > 0;
    };
    const int64_t until_ns = monotonic_ns() + kPatienceNs;
    for (bool told = false; !told && monotonic_ns() < until_ns;) {
      told = is_told();
      for (int reads = 0; reads < (told ? 50 : 1); ++reads) ASSERT_EQ(read_ending(holder.process()), std::nullopt) << i;
    }
    ASSERT_TRUE(is_told());
  }
}

TEST_F(LifeTest, OfAMainThreadThatEndsAloneIsGivenBackAndItsProcessLives) {
  for (const int code : {0, 5}) {
    Holder holder([code] {
      std::thread([] {
        for (;;) pause();
      }).detach();
      syscall(SYS_exit, code);
    });
    watch_.add(1, holder.take_life());
    holder.say();
    EXPECT_TRUE(is_told_of(1, code == 0 ? 1 : 2));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(read_ending(holder.process()), std::nullopt) << code;
    kill(holder.process().pid, SIGSTOP);  // which its main thread has then ended with, says /proc
    EXPECT_EQ(waitpid(holder.process().pid, nullptr, WUNTRACED), holder.process().pid);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(read_ending(holder.process()), std::nullopt) << code;
    EXPECT_FALSE(holder.has_ended());
  }
}

// Each starts the next one and ends: whoever has read which there are finds that one has gone.
void* begin_next(void*) {
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_t next;
  while (pthread_create(&next, &detached, begin_next, nullptr) != 0) sched_yield();
  return nullptr;
}

TEST_F(LifeTest, ThreadsThatFollowEachOtherAreNoEnd) {
  Holder holder([] {
    begin_next(nullptr);
    syscall(SYS_exit, 0);
  });
  watch_.add(1, holder.take_life());
  holder.say();
  EXPECT_TRUE(is_told_of(1));
  int ended = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (read_ending(holder.process()) || has_ended(holder.process())) ++ended;
  }
  EXPECT_EQ(ended, 0);
  EXPECT_FALSE(holder.has_ended());
}

// With the last descriptor its folder is opened, and then none of its threads can be read.
TEST(Process, HasNotEndedWhereItCannotBeRead) {
  Holder holder([] {}, /*holds=*/false);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = UniqueFd(dup(0)).get();
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const bool ended = has_ended(holder.process());
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_FALSE(ended);
}

TEST_F(LifeTest, IsNotGivenBackByForksThreadsOrStops) {
  Holder holder([] {
    for (int i = 0; i < 5; ++i) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      waitpid(child, nullptr, 0);
      in_a_thread([] {});
    }
  });
  watch_.add(1, holder.take_life());
  holder.say();
  holder.hear();
  kill(holder.process().pid, SIGSTOP);
  waitpid(holder.process().pid, nullptr, WUNTRACED);
  EXPECT_EQ(read_ending(holder.process()), std::nullopt);
  expect_silence(1);
}

TEST_F(LifeTest, KeepsTheCLibrarysListOfRobustMutexesWhole) {
  Mapping page = map_shared_memory(make_shared_memory("mutex", kLifeBytes).value().get(), kLifeBytes).value();
  auto* other = static_cast<pthread_mutex_t*>(page.get());
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(other, &robust);
  Holder holder([other] {
    pthread_mutex_lock(other);
    raise(SIGKILL);
  });
  watch_.add(1, holder.take_life());
  holder.say();
  EXPECT_TRUE(is_told_of(1));
  EXPECT_EQ(pthread_mutex_lock(other), EOWNERDEAD);
}

TEST_F(LifeTest, MayBeWatchedBeforeItIsHeld) {
  UniqueFd record = make_shared_memory("life", kLifeBytes).value();
  ASSERT_TRUE(watch_.add(1, map_life(record.get())));
  expect_silence(1);
  const pid_t child = fork();
  if (child == 0) {
    hold_life(record.get());
    _exit(1);
  }
  EXPECT_TRUE(is_told_of(1));
  waitpid(child, nullptr, 0);
}

TEST_F(LifeTest, ManyAtOnceAreToldByAFewThreads) {
  constexpr uint64_t kCount = 2 * LifeWatch::kLivesPerThread + 10;
  std::vector<std::unique_ptr<Holder>> holders;
  for (uint64_t key = 0; key < kCount; ++key) {
    holders.push_back(std::make_unique<Holder>([] {}));
    ASSERT_TRUE(watch_.add(key, holders.back()->take_life()));
  }
  watch_.remove(7);
  for (const auto& holder : holders) kill(holder->process().pid, SIGKILL);
  for (uint64_t key = 0; key < kCount; ++key) {
    if (key == 7) continue;
    EXPECT_TRUE(is_told_of(key)) << key;
  }
  expect_silence(7);
}

TEST_F(LifeTest, WhoWritesIntoItAllTheTimeIsWatchedNoMore) {
  UniqueFd record = make_shared_memory("life", kLifeBytes).value();
  Mapping writable = map_shared_memory(record.get(), kLifeBytes).value();
  std::atomic<uint32_t>& hostile = life_word(writable);
  ASSERT_TRUE(watch_.add(1, map_life(record.get())));
  for (uint32_t i = 1; i < 1000; ++i) {
    hostile = i & FUTEX_TID_MASK;
    futex_wake(hostile, 1, /*shared=*/true);
    std::this_thread::yield();
  }
  expect_silence(1);
}

TEST_F(LifeTest, EitherFutexTellsAndTheOtherSaysNothingMore) {
  for (const size_t first : {size_t{0}, size_t{1}}) {
    UniqueFd record = make_shared_memory("life", kLifeBytes).value();
    Mapping writable = map_shared_memory(record.get(), kLifeBytes).value();
    ASSERT_TRUE(watch_.add(first, map_life(record.get())));
    for (const size_t number : {first, 1 - first}) {
      life_word(writable, number) = FUTEX_OWNER_DIED;
      futex_wake(life_word(writable, number), 1, /*shared=*/true);
      EXPECT_TRUE(is_told_of(first));
    }
    expect_silence(999'999);  // of nothing else, and by now of that
    EXPECT_TRUE(is_told_of(first)) << "once";
  }
}

std::vector<cpu_set_t> processors_of_threads() {
  std::vector<cpu_set_t> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    cpu_set_t set;
    if (sched_getaffinity(std::stoi(thread.path().filename()), sizeof set, &set) == 0) found.push_back(set);
  }
  return found;
}

// Where all but one processor are at work on something that they do not leave, somebody hears of it.
TEST_F(LifeTest, IsWatchedByThreadsThatShareNoProcessor) {
  cpu_set_t all, both;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one processor";
  Holder holder([] {});
  ASSERT_TRUE(watch_.add(1, holder.take_life()));
  expect_silence(1);  // the threads run
  std::vector<cpu_set_t> parts;
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  while (parts.size() < 2 && monotonic_ns() < until_ns) {
    parts = processors_of_threads();
    std::erase_if(parts, [&](const cpu_set_t& set) { return CPU_EQUAL(&set, &all); });
  }
  ASSERT_EQ(parts.size(), 2u);
  CPU_AND(&both, &parts[0], &parts[1]);
  EXPECT_EQ(CPU_COUNT(&both), 0);
  CPU_OR(&both, &parts[0], &parts[1]);
  EXPECT_TRUE(CPU_EQUAL(&both, &all));
}

std::atomic<int> failures{0};

// As for want of memory, or for pages that are gone.
TEST(LifeWatchTest, IsNotGivenUpForErrorsThatPass) {
  if (futex_wait_any(nullptr, 0) == ENOSYS) GTEST_SKIP() << "a kernel without futex_waitv";
  std::atomic<int> told{0};
  LifeWatch watch([&](uint64_t) { told = 1, told.notify_all(); }, [](FutexWaiter* waiters, uint32_t count) {
    return ++failures < 60 ? failures % 2 == 0 ? EFAULT : ENOMEM : futex_wait_any(waiters, count);
  });
  Holder holder([] { _exit(1); });
  ASSERT_TRUE(watch.add(1, holder.take_life()));
  while (failures < 60) std::this_thread::yield();
  holder.say();
  told.wait(0);
  EXPECT_EQ(told, 1);
}

TEST(LifeWatchTest, WithoutTheSystemCallNothingIsToldAndNobodyWaits) {
  std::atomic<int> told{0};
  LifeWatch watch([&](uint64_t) { ++told; }, [](FutexWaiter*, uint32_t) { return ENOSYS; });
  const int64_t until_ns = monotonic_ns() + kPatienceNs;
  while (watch.add(1, map_life(make_shared_memory("life", kLifeBytes).value().get())) && monotonic_ns() < until_ns) {
  }
  Holder holder([] { _exit(1); });
  EXPECT_FALSE(watch.add(2, holder.take_life())) << "its thread has ended";
  holder.say();
  reap(holder.process());
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace monarch
