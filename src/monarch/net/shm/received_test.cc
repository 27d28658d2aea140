#include "monarch/net/shm/received.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>
#include <mutex>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr uint64_t kSlab = 64 * 1024;

class Returned final : public LeaseReturn {
 public:
  void give_back(std::vector<std::unique_ptr<Lease>> leases) override {
    std::lock_guard lock(mutex_);
    for (const auto& lease : leases) locations_.push_back(lease->location);
  }
  std::vector<uint64_t> locations() {
    std::lock_guard lock(mutex_);
    return locations_;
  }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> locations_;
};

// A peer's segment of four slabs, one lease for each that a test asks for, and children that do what they are told.
class ReceivedTest : public testing::Test {
 protected:
  struct Child {
    pid_t pid;
    UniqueFd go;  // the child goes on when this has a byte
  };

  ReceivedTest() {
    reactor_.start();
    UniqueFd fd = std::move(*make_shared_memory("test", 4 * kSlab));
    peers_ = std::move(*map_shared_memory(fd.get(), 0));
    auto here = map_shared_memory(fd.get(), 0);
    segment_ = received_->add(std::move(*here), std::move(fd));
  }
  ~ReceivedTest() override { reactor_.stop(); }

  std::byte* peers() { return static_cast<std::byte*>(peers_.get()); }

  std::unique_ptr<Lease> begin(uint64_t slab) {
    segment_->begin_lease((slab + 1) * kSlab);
    return std::unique_ptr<Lease>(new Lease{nullptr, segment_, slab, kSlab, received_->forks()});
  }
  // As a link does it. True: it may go back.
  bool end(std::unique_ptr<Lease> lease) {
    lease->segment->end_lease();
    lease->segment = nullptr;
    lease->died = received_->forks();
    return lease->born == lease->died || !received_->hold(lease, back_);
  }
  // The child waits until it may go on, and ends with what `run` returns.
  Child fork_child(const std::function<int()>& run) {
    UniqueFd go[2];
    EXPECT_TRUE(sys::make_pipe(go));
    received_->before_fork();
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      note_forked_child();
      received_->after_fork_in_child();
      char byte;
      _exit(read(go[0].get(), &byte, 1) == 1 ? run() : 99);
    }
    received_->after_fork_in_parent();
    return {pid, std::move(go[1])};
  }
  static void let_go_on(const Child& child) { EXPECT_EQ(write(child.go.get(), "", 1), 1); }
  static int ended(const Child& child) {
    int status = -1;
    return waitpid(child.pid, &status, 0) == child.pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static int status_of(const Child& child) {
    let_go_on(child);
    return ended(child);
  }
  bool comes_back(const std::vector<uint64_t>& locations) {
    const int64_t limit_ns = monotonic_ns() + 20'000'000'000;
    while (back_->locations() != locations && monotonic_ns() < limit_ns) reactor_.post_and_wait([] {});
    return back_->locations() == locations;
  }

  Reactor reactor_;
  std::shared_ptr<Received> received_ = std::make_shared<Received>(reactor_);  // shared: the reactor knows it weakly
  std::shared_ptr<Returned> back_ = std::make_shared<Returned>();              // shared: the same
  Mapping peers_;
  std::shared_ptr<ReceivedSegment> segment_;  // shared: with leases
};

TEST_F(ReceivedTest, WhatAChildWritesIsItsOwn) {
  auto lease = begin(1);
  std::memset(peers() + kSlab, 1, kSlab);
  const Child child = fork_child([&] {
    std::byte* own = segment_->begin() + kSlab;
    if (own[0] != std::byte{1}) return 1;
    std::memset(own, 9, kSlab);
    return own[kSlab - 1] == std::byte{9} ? 0 : 2;
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(segment_->begin()[kSlab], std::byte{1});
  EXPECT_EQ(peers()[2 * kSlab - 1], std::byte{1});
}

TEST_F(ReceivedTest, WhatAChildMayHoldGoesBackAfterItsEnd) {
  auto before = begin(1);
  ASSERT_TRUE(end(begin(3)));
  const Child child = fork_child([] { return 0; });
  EXPECT_TRUE(end(begin(2))) << "the child has never seen it";
  EXPECT_FALSE(end(std::move(before)));
  EXPECT_EQ(received_->held(), 1u);
  EXPECT_TRUE(back_->locations().empty());
  EXPECT_EQ(status_of(child), 0);
  EXPECT_TRUE(comes_back({1}));
  EXPECT_EQ(received_->held(), 0u);
}

TEST_F(ReceivedTest, WhatIsDroppedAfterTheEndOfTheChildGoesBackAtOnce) {
  auto lease = begin(1);
  auto probe = begin(2);
  const Child child = fork_child([] { return 0; });
  EXPECT_FALSE(end(std::move(probe)));
  EXPECT_EQ(status_of(child), 0);
  ASSERT_TRUE(comes_back({2}));
  EXPECT_TRUE(end(std::move(lease)));
}

TEST_F(ReceivedTest, SeveralChildrenAreAllWaitedForAndNoneThatCameLater) {
  auto first = begin(1);
  const Child one = fork_child([] { return 0; });
  auto second = begin(2);
  const Child two = fork_child([] { return 0; });
  EXPECT_FALSE(end(std::move(first)));
  EXPECT_FALSE(end(std::move(second)));
  auto third = begin(3);
  const Child three = fork_child([] { return 0; });
  EXPECT_EQ(status_of(two), 0);
  EXPECT_TRUE(comes_back({2}));
  EXPECT_EQ(status_of(one), 0);
  EXPECT_TRUE(comes_back({2, 1}));
  EXPECT_FALSE(end(std::move(third)));
  EXPECT_EQ(status_of(three), 0);
  EXPECT_TRUE(comes_back({2, 1, 3}));
}

TEST_F(ReceivedTest, WhatAChildHasForkedCountsAsTheChild) {
  auto lease = begin(1);
  UniqueFd go[2];
  ASSERT_TRUE(sys::make_pipe(go));
  const Child child = fork_child([&] {
    if (fork() != 0) return 0;
    char byte;
    return read(go[0].get(), &byte, 1) == 1 ? 0 : 1;
  });
  EXPECT_FALSE(end(std::move(lease)));
  EXPECT_EQ(status_of(child), 0);
  reactor_.post_and_wait([] {});
  EXPECT_EQ(received_->held(), 1u);
  EXPECT_EQ(write(go[1].get(), "", 1), 1);
  EXPECT_TRUE(comes_back({1}));
}

TEST_F(ReceivedTest, AChildThatHasBecomeAnotherProgramHoldsNothing) {
  auto lease = begin(1);
  UniqueFd input[2];
  ASSERT_TRUE(sys::make_pipe(input));
  const Child child = fork_child([&] {
    dup2(input[0].get(), 0);
    execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  EXPECT_FALSE(end(std::move(lease)));
  let_go_on(child);
  EXPECT_TRUE(comes_back({1}));
  input[1].reset();
  EXPECT_EQ(ended(child), 0);
}

TEST_F(ReceivedTest, AForkWithNothingInUseCostsNothing) {
  ASSERT_TRUE(end(begin(1)));
  sys::fail_nth(0);
  received_->before_fork();
  received_->after_fork_in_parent();
  EXPECT_EQ(sys::calls_seen(), 0u);
  EXPECT_EQ(received_->forks(), 0u);
}

TEST_F(ReceivedTest, AForkThatFailsHoldsNothing) {
  auto lease = begin(1);
  received_->before_fork();
  received_->after_fork_in_parent();
  if (!end(std::move(lease))) {
    EXPECT_TRUE(comes_back({1}));
  }
}

TEST_F(ReceivedTest, WithoutADescriptorAForkGoesOnAndTheChildKeepsWhatItHas) {
  auto lease = begin(1);
  std::memset(peers() + kSlab, 1, kSlab);
  sys::fail_nth(2);  // the first is this test's own pipe
  const Child child = fork_child([&] { return segment_->begin()[kSlab] == std::byte{1} ? 0 : 1; });
  sys::fail_nth(0);
  EXPECT_FALSE(end(std::move(lease)));
  EXPECT_EQ(status_of(child), 0);
  reactor_.post_and_wait([] {});
  EXPECT_EQ(received_->held(), 1u) << "for as long as this process lives";
}

TEST_F(ReceivedTest, NoDescriptorIsKeptWhereFewAreLeft) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  UniqueFd fd = std::move(*make_shared_memory("test", kSlab));
  auto here = map_shared_memory(fd.get(), 0);
  const int number = fd.get();
  const rlimit low{static_cast<rlim_t>(number) + 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  segment_ = received_->add(std::move(*here), std::move(fd));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(fcntl(number, F_GETFD), 0);
  auto lease = begin(0);
  const Child child = fork_child([&] {
    signal(SIGSEGV, [](int) { _exit(7); });
    *static_cast<volatile std::byte*>(segment_->begin()) = std::byte{9};
    return 0;
  });
  EXPECT_EQ(status_of(child), 7);
}

// The last resort: it must not write into what is its parent's.
TEST_F(ReceivedTest, WithoutMemoryForThatAChildCanOnlyRead) {
  auto lease = begin(1);
  std::memset(peers() + kSlab, 1, kSlab);
  sys::fail_nth(3);  // this test's pipe, the fork's, and then what the child maps
  const Child child = fork_child([&] {
    if (segment_->begin()[kSlab] != std::byte{1}) return 1;
    signal(SIGSEGV, [](int) { _exit(7); });
    *static_cast<volatile std::byte*>(segment_->begin() + kSlab) = std::byte{9};
    return 0;
  });
  sys::fail_nth(0);
  EXPECT_EQ(status_of(child), 7);
  EXPECT_EQ(peers()[kSlab], std::byte{1});
}

}  // namespace
}  // namespace monarch
