#include "monarch/host/stacks/thread_stacks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Waits for its end, or computes until then; may block all signals.
class Subject {
 public:
  explicit Subject(bool computes, bool blocks_signals = false)
      : thread_([this, computes, blocks_signals] {
          if (blocks_signals) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, nullptr);
          }
          id_ = this_thread();
          id_.notify_all();
          pollfd end{end_.get(), POLLIN, 0};
          while (!ends_) {
            if (!computes) poll(&end, 1, -1);  // which TSan lets signals interrupt
          }
        }) {
    id_.wait(0);
  }
  ~Subject() {
    ends_ = true;
    eventfd_write(end_.get(), 1);
    thread_.join();
  }
  pid_t id() const { return id_; }

 private:
  std::atomic<pid_t> id_{0};
  std::atomic<bool> ends_{false};
  const UniqueFd end_ = sys::make_eventfd();
  std::thread thread_;
};

class ThreadStacksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(reactor_.start());
    reactor_.post_and_wait([this] { stacks_.emplace(reactor_); });
  }
  void TearDown() override {
    reactor_.post_and_wait([this] { stacks_.reset(); });
  }
  std::vector<ThreadStack> take(int askers = 1) {
    std::mutex mutex;
    std::condition_variable condition;
    std::vector<std::vector<ThreadStack>> taken;
    reactor_.post([&] {
      for (int i = 0; i < askers; ++i) {
        stacks_->take([&](const std::vector<ThreadStack>& threads) {
          std::lock_guard lock(mutex);
          taken.push_back(threads);
          condition.notify_one();
        });
      }
    });
    std::unique_lock lock(mutex);
    condition.wait(lock, [&] { return taken.size() == static_cast<size_t>(askers); });
    return taken.back();
  }
  static ThreadStack of(const std::vector<ThreadStack>& threads, pid_t id) {
    for (const ThreadStack& thread : threads) {
      if (thread.thread == id) return thread;
    }
    ADD_FAILURE() << "no thread " << id;
    return {};
  }

  Reactor reactor_;
  std::optional<ThreadStacks> stacks_;
};

TEST_F(ThreadStacksTest, AThreadThatWaitsAndOneThatComputesWriteTheirs) {
  const Subject waits(false), computes(true);
  const auto threads = take();
  for (const pid_t id : {waits.id(), computes.id()}) {
    const ThreadStack stack = of(threads, id);
    EXPECT_TRUE(stack.taken);
    EXPECT_GT(stack.code.size(), 1u);
    EXPECT_FALSE(stack.name.empty());
  }
  EXPECT_EQ(of(threads, computes.id()).state, 'R');
}

TEST_F(ThreadStacksTest, AThreadThatBlocksAllSignalsIsNamedAndHoldsNobodyUp) {
  const Subject blocks(false, true), waits(false);
  const int64_t begun_ns = monotonic_ns();
  const auto threads = take();
  EXPECT_LT(monotonic_ns() - begun_ns, ThreadStacks::kThreadLimitNs);  // it was not even asked
  EXPECT_FALSE(of(threads, blocks.id()).taken);
  EXPECT_TRUE(of(threads, waits.id()).taken);
}

TEST_F(ThreadStacksTest, AllWhoAskAreServed) {
  const Subject waits(false);
  for (int round = 0; round < 10; ++round) EXPECT_TRUE(of(take(3), waits.id()).taken);
}

TEST_F(ThreadStacksTest, ThreadsThatComeAndGoDisturbNothing) {
  std::atomic<bool> ends = false;
  std::thread makes([&] {
    while (!ends) std::thread([] {}).join();
  });
  const Subject waits(false);
  for (int round = 0; round < 100; ++round) EXPECT_TRUE(of(take(), waits.id()).taken);
  ends = true;
  makes.join();
}

TEST_F(ThreadStacksTest, WithoutTheHandlerOfItsSignalNoneIsSent) {
  const Subject waits(false);
  EXPECT_TRUE(of(take(), waits.id()).taken);
  const int signal = ThreadStacks::signal_number();
  struct sigaction ours, none = {};
  none.sa_handler = SIG_DFL;  // which would end the process
  ASSERT_EQ(sigaction(signal, &none, &ours), 0);
  EXPECT_FALSE(of(take(), waits.id()).taken);
  ASSERT_EQ(sigaction(signal, &ours, nullptr), 0);
  EXPECT_TRUE(of(take(), waits.id()).taken);
}

// ---- What the language writes may fault ----

char* unreadable = nullptr;
std::atomic<int> faults_left{0};
int text_of_language = -1;
void write_or_fault(int) {
  if (faults_left-- > 0) text_of_language = *unreadable;
  static_cast<void>(!write(text_of_language, "frame", 5));
}

// In a process of its own, which has that writer for good: whether both of its threads have `text` in the end.
void expect_texts(int faults, const std::string& text) {
  const pid_t child = fork();
  if (child == 0) {
    UniqueFd file = sys::make_memfd("text", 0);
    text_of_language = file.get();
    unreadable = static_cast<char*>(sys::map(4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
    signal(ThreadStacks::signal_number(), &write_or_fault);
    signal(SIGSEGV, SIG_DFL);
    if (!ThreadStacks::add_writer(std::move(file))) _exit(3);
    faults_left = faults;
    Reactor reactor;
    reactor.start();
    ThreadStacks stacks(reactor);
    const Subject computes(true);
    std::latch done(1);
    int right = 0;
    reactor.post([&] {
      stacks.take([&](const std::vector<ThreadStack>& threads) {
        for (const ThreadStack& each : threads) right += each.taken && each.text == text;
        done.count_down();
      });
    });
    done.wait();
    struct sigaction after = {};
    sigaction(SIGSEGV, nullptr, &after);
    _exit(right != 2 ? 1 : after.sa_handler != SIG_DFL ? 2 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TornStacks, AreAskedForAgain) { expect_texts(3, "frame"); }
TEST(TornStacks, ThatCannotBeReadEndNobody) { expect_texts(1'000'000, ""); }

TEST(LookAtProcess, SaysWhatTheKernelKnows) {
  EXPECT_EQ(look_at_process(getpid()).state, 'R');
  EXPECT_EQ(look_at_process(INT32_MAX).state, '?');
}

}  // namespace
}  // namespace monarch
