#include "monarch/net/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

// A clock that is turned by hand.
class ManualTimers final : public Timers {
 public:
  int64_t now_ns() override { return now_ns_; }
  TimerId after(int64_t delay_ns, std::function<void()> task) override {
    tasks_.emplace(now_ns_ + delay_ns, std::pair(++last_, std::move(task)));
    return last_;
  }
  void cancel(TimerId id) override {
    std::erase_if(tasks_, [id](const auto& entry) { return entry.second.first == id; });
  }
  // What is due within `span_ns`, and what that starts.
  void turn(int64_t span_ns) {
    const int64_t end_ns = now_ns_ + span_ns;
    while (!tasks_.empty() && tasks_.begin()->first <= end_ns) {
      auto next = tasks_.extract(tasks_.begin());
      now_ns_ = next.key();
      next.mapped().second();
    }
    now_ns_ = end_ns;
  }
  bool idle() const { return tasks_.empty(); }

 private:
  int64_t now_ns_ = 0;
  TimerId last_ = 0;
  std::multimap<int64_t, std::pair<TimerId, std::function<void()>>> tasks_;
};

class FixedBudget final : public ArenaBudget {
 public:
  explicit FixedBudget(uint64_t bytes) : left_(bytes) {}
  bool reserve(uint64_t bytes) override {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void give_back(uint64_t bytes) override { left_ += bytes; }
  uint64_t left() const { return left_; }

 private:
  uint64_t left_;
};

// What the system holds for a segment.
uint64_t bytes_in_memory(const Arena& arena, uint32_t segment = 0) {
  struct stat status {};
  fstat(arena.segment_fd(segment), &status);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

std::vector<Slab> fill(Arena& arena, uint64_t total, uint64_t each) {
  std::vector<Slab> slabs;
  for (uint64_t done = 0; done < total; done += each) {
    slabs.push_back(arena.allocate(each).value());
    std::memset(slabs.back().data, 1, each);
  }
  return slabs;
}
void free_all(Arena& arena, const std::vector<Slab>& slabs) {
  for (const Slab& slab : slabs) ASSERT_TRUE(arena.release(slab.key()));
}

TEST(Arena, SlabsNeverOverlapAndHoldWhatWasAskedFor) {
  Arena arena(uint64_t{512} << 20);
  std::mt19937 random(3);
  struct Held {
    Slab slab;
    uint64_t size;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 4000; ++i) {
    if (held.size() > 60 || (random() % 3 == 0 && !held.empty())) {
      std::swap(held[random() % held.size()], held.back());
      const Held& last = held.back();
      ASSERT_EQ(last.slab.data[0], last.mark);
      ASSERT_EQ(last.slab.data[last.size - 1], last.mark);
      ASSERT_TRUE(arena.release(last.slab.key()));
      held.pop_back();
      continue;
    }
    const uint64_t size = 1 + random() % (1u << (random() % 22));
    auto slab = arena.allocate(size);
    ASSERT_TRUE(slab.has_value());
    const auto mark = static_cast<std::byte>(i);
    slab->data[0] = slab->data[size - 1] = mark;
    held.push_back({*slab, size, mark});
  }
  for (const Held& last : held) {
    ASSERT_EQ(last.slab.data[last.size - 1], last.mark);
    ASSERT_TRUE(arena.release(last.slab.key()));
  }
  EXPECT_EQ(arena.bytes_held(), 0u);
}

TEST(Arena, WastesLessThanAPage) {
  Arena arena(uint64_t{1} << 30);
  for (uint64_t size = 4096; size < 3'000'000; size += size / 7 + 13) {
    auto slab = arena.allocate(size);
    ASSERT_TRUE(slab.has_value());
    EXPECT_GE(arena.bytes_held(), size);
    EXPECT_LT(arena.bytes_held(), size + 4096) << size;
    arena.release(slab->key());
  }
}

TEST(Arena, UsesAFreedSlabAgain) {
  Arena arena(uint64_t{256} << 20);
  auto first = arena.allocate(1 << 20);
  arena.release(first->key());
  auto second = arena.allocate((1 << 20) - 100);
  EXPECT_EQ(second->key(), first->key());
}

TEST(Arena, KeepsToItsCapAndSaysWhenItIsFull) {
  Arena arena(2 << 20);
  EXPECT_FALSE(arena.allocate(4 << 20).has_value());
  EXPECT_FALSE(arena.allocate(UINT64_MAX).has_value());
  std::vector<Slab> slabs;
  while (auto slab = arena.allocate(64 * 1024)) slabs.push_back(*slab);
  EXPECT_EQ(slabs.size(), 32u);
  EXPECT_LE(arena.bytes_reserved(), uint64_t{2} << 20);
  arena.release(slabs.back().key());
  EXPECT_TRUE(arena.allocate(40 * 1024).has_value()) ;
}

TEST(Arena, CountsHoldersAndIgnoresLies) {
  Arena arena(1 << 20);
  auto slab = arena.allocate(5000);
  arena.hold(slab->key());
  EXPECT_TRUE(arena.release(slab->key()));
  EXPECT_GT(arena.bytes_held(), 0u);
  EXPECT_TRUE(arena.release(slab->key()));
  EXPECT_EQ(arena.bytes_held(), 0u);
  EXPECT_FALSE(arena.release(slab->key()));
  EXPECT_FALSE(arena.release(12345));
  EXPECT_FALSE(arena.release(uint64_t{7} << 40));
  EXPECT_FALSE(arena.release(UINT64_MAX));
}

TEST(Arena, MemoryIsHeldByItsUserAndByWhomItIsLentTo) {
  auto arena = std::make_shared<Arena>(64 * kMiB);  // shared: memory of it outlives what has made it
  std::shared_ptr<std::byte> memory = arena->memory(kMiB);
  ASSERT_NE(memory, nullptr);
  const uint64_t held = arena->bytes_held();
  const auto lent = arena->hold_at({memory.get(), kMiB - 1});
  ASSERT_TRUE(lent);
  EXPECT_EQ(lent->data, memory.get());

  const std::vector<std::byte> elsewhere(100);
  EXPECT_FALSE(arena->hold_at(elsewhere));
  EXPECT_FALSE(arena->hold_at({memory.get() + 4096, 100})) << "not its beginning";
  EXPECT_FALSE(arena->hold_at({memory.get() + 8, 100}));
  EXPECT_FALSE(arena->hold_at({memory.get(), kMiB + 1})) << "beyond its end";

  memory.reset();
  EXPECT_EQ(arena->bytes_held(), held) << "it is lent";
  EXPECT_TRUE(arena->release(lent->key()));
  EXPECT_EQ(arena->bytes_held(), 0u);
  EXPECT_FALSE(arena->release(lent->key())) << "it is nobody's";
}

// A peer has only to announce how much it will send.
TEST(Arena, WhatIsReadToItHasAQuarterOfIt) {
  auto arena = std::make_shared<Arena>(64 * kMiB);  // shared: memory of it outlives what has made it
  EXPECT_EQ(arena->memory(16 * kMiB + 1), nullptr);
  auto first = arena->memory(10 * kMiB), second = arena->memory(6 * kMiB);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(arena->memory(1), nullptr);
  const auto lent = arena->hold_at({first.get(), kMiB});
  first.reset();
  EXPECT_NE(arena->memory(10 * kMiB), nullptr) << "what only receivers have does not count";
  EXPECT_TRUE(arena->release(lent->key()));
  second.reset();
  EXPECT_EQ(arena->bytes_held(), 0u);
  std::vector<std::shared_ptr<std::byte>> small;
  while (auto memory = arena->memory(8)) small.push_back(std::move(memory));
  EXPECT_EQ(arena->bytes_held(), 16 * kMiB) << "pages, and not what was asked for";
}

TEST(Arena, ItsTimersAreLeftAloneOnceTheyAreStopped) {
  ManualTimers timers;
  auto arena = std::make_shared<Arena>(1024 * kMiB, &timers);  // shared: its timer asks whether it is still there
  arena->stop_timers();
  free_all(*arena, fill(*arena, 64 * kMiB, 16 * kMiB));
  EXPECT_TRUE(timers.idle());
}

TEST(Arena, WhatServedSmallPartsServesLargeOnes) {
  Arena arena(64 * kMiB);
  free_all(arena, fill(arena, 64 * kMiB, 16 * kKiB));
  EXPECT_EQ(arena.bytes_held(), 0u);
  const auto large = arena.allocate(64 * kMiB);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(arena.allocate(1).has_value());
  EXPECT_TRUE(arena.release(large->key()));
  free_all(arena, fill(arena, 64 * kMiB, 1 * kMiB));
}

TEST(Arena, PartsOfAnySizeLeaveNoHolesBehind) {
  Arena arena(64 * kMiB);
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<Slab> slabs;
    while (auto slab = arena.allocate(1 + random() % (3 * kMiB))) slabs.push_back(*slab);
    std::shuffle(slabs.begin(), slabs.end(), random);
    free_all(arena, slabs);
    ASSERT_EQ(arena.bytes_held(), 0u);
    const auto all = arena.allocate(64 * kMiB);
    ASSERT_TRUE(all.has_value()) << round;
    arena.release(all->key());
  }
}

// A burst of other sizes leaves warm memory for what comes next: no more is taken from the system.
TEST(Arena, ABurstOfSmallPartsIsUsedAgainByLargeOnes) {
  Arena arena(1024 * kMiB);
  free_all(arena, fill(arena, 256 * kMiB, 64 * kKiB));
  const uint64_t reserved = arena.bytes_reserved();
  for (int round = 0; round < 10; ++round) free_all(arena, fill(arena, 160 * kMiB, 16 * kMiB));
  EXPECT_EQ(arena.bytes_reserved(), reserved);
  EXPECT_EQ(bytes_in_memory(arena), reserved);
}

TEST(Arena, GivesMemoryBackAfterAQuietMomentAndKeepsSomeWarm) {
  ManualTimers timers;
  auto arena = std::make_shared<Arena>(1024 * kMiB, &timers);  // shared: its timer asks whether it is still there
  free_all(*arena, fill(*arena, 256 * kMiB, 16 * kMiB));
  EXPECT_EQ(bytes_in_memory(*arena), 256 * kMiB);
  timers.turn(4 * Arena::kPeriodNs);
  EXPECT_EQ(arena->bytes_reserved(), Arena::kWarmBytes);
  EXPECT_EQ(bytes_in_memory(*arena), Arena::kWarmBytes);
  EXPECT_TRUE(timers.idle()) << "nothing to give back must cost nothing";
  free_all(*arena, fill(*arena, 256 * kMiB, 64 * kKiB));
  EXPECT_FALSE(timers.idle());
}

TEST(Arena, KeepsWhatIsUsedAgainAndAgain) {
  ManualTimers timers;
  auto arena = std::make_shared<Arena>(1024 * kMiB, &timers);  // shared: as above
  for (int i = 0; i < 10; ++i) {
    free_all(*arena, fill(*arena, 128 * kMiB, 32 * kMiB));
    timers.turn(Arena::kPeriodNs / 2);
    EXPECT_EQ(arena->bytes_reserved(), 128 * kMiB);
  }
}

TEST(Arena, TouchesNothingThatIsHeldWhenItGivesBack) {
  ManualTimers timers;
  auto arena = std::make_shared<Arena>(256 * kMiB, &timers);  // shared: as above
  std::vector<Slab> slabs = fill(*arena, 128 * kMiB, 1 * kMiB);
  std::vector<Slab> kept;
  for (size_t i = 0; i < slabs.size(); ++i) {
    if (i % 16 == 5) {
      kept.push_back(slabs[i]);
    } else {
      arena->release(slabs[i].key());
    }
  }
  timers.turn(4 * Arena::kPeriodNs);
  EXPECT_LE(arena->bytes_reserved(), Arena::kWarmBytes + kept.size() * Arena::kChunkBytes);
  for (const Slab& slab : kept) {
    for (uint64_t i = 0; i < 1 * kMiB; ++i) ASSERT_EQ(slab.data[i], std::byte{1});
  }
  EXPECT_TRUE(timers.idle());
  free_all(*arena, kept);
}

TEST(Arena, AnEndedOneIsNotMissedByItsTimer) {
  ManualTimers timers;
  auto arena = std::make_shared<Arena>(256 * kMiB, &timers);  // shared: as above
  free_all(*arena, fill(*arena, 64 * kMiB, 1 * kMiB));
  EXPECT_FALSE(timers.idle());
  arena.reset();
  timers.turn(4 * Arena::kPeriodNs);
  EXPECT_TRUE(timers.idle());
}

TEST(Arena, KeepsToTheBudgetAndUsesWhatIsIdleElsewhereFirst) {
  auto budget = std::make_shared<FixedBudget>(64 * kMiB);  // shared: with the arena
  {
    Arena arena(1024 * kMiB, nullptr, budget);
    auto slabs = fill(arena, 64 * kMiB, 1 * kMiB);
    EXPECT_FALSE(arena.allocate(1).has_value());
    EXPECT_EQ(budget->left(), 0u);
    // All but the last of each 32 MiB: 31 MiB in a row are free, twice; 40 are not, but in new address space they are.
    const Slab first = slabs[31], second = slabs[63];
    std::erase_if(slabs, [&](const Slab& slab) { return slab.key() == first.key() || slab.key() == second.key(); });
    free_all(arena, slabs);
    const auto large = arena.allocate(40 * kMiB);
    ASSERT_TRUE(large.has_value());
    EXPECT_LE(arena.bytes_reserved(), 64 * kMiB);
    EXPECT_EQ(first.data[0], std::byte{1});
    EXPECT_EQ(second.data[0], std::byte{1});
  }
  EXPECT_EQ(budget->left(), 64 * kMiB);
}

TEST(Arena, NoDescriptorForItIsAFullArenaAndNotForEver) {
  Arena arena(64 * kMiB);
  for (uint64_t nth = 1; nth <= 4; ++nth) {
    sys::fail_nth(nth);
    EXPECT_FALSE(arena.allocate(kMiB).has_value()) << nth;
    EXPECT_EQ(sys::calls_seen(), nth);
  }
  sys::fail_nth(0);
  EXPECT_TRUE(arena.allocate(kMiB).has_value());
}

// Nobody who holds or gives back a slab waits while the system takes memory back for somebody else.
TEST(Arena, GivesBackForALargeSlabWithoutHoldingUpOthers) {
  constexpr uint64_t kRun = uint64_t{200} << 20;
  bool free_meanwhile = false;
  for (int attempt = 0; attempt < 5 && !free_meanwhile; ++attempt) {  // a thread that has no core is slow too
    Arena arena(2 * kRun + (uint64_t{20} << 20));
    // Two idle runs, each too short for what comes.
    const auto before = arena.allocate(kRun), small = arena.allocate(4096), behind = arena.allocate(kRun);
    for (const auto& slab : {before, behind}) {
      std::memset(slab->data, 1, kRun);
      arena.release(slab->key());
    }
    std::atomic<bool> over{false};
    std::atomic<int64_t> longest_ns{0};
    std::atomic<int> rounds{0};
    std::thread other([&] {
      while (!over) {
        const int64_t start_ns = monotonic_ns();
        arena.hold(small->key());
        arena.release(small->key());
        longest_ns = std::max<int64_t>(longest_ns, monotonic_ns() - start_ns);
        ++rounds;
      }
    });
    while (rounds == 0) sched_yield();
    const int64_t start_ns = monotonic_ns();
    const auto large = arena.allocate(kRun / 2 * 3);
    const int64_t took_ns = monotonic_ns() - start_ns;
    over = true;
    other.join();
    ASSERT_TRUE(large.has_value()) << attempt;
    free_meanwhile = longest_ns < took_ns / 2;
  }
  EXPECT_TRUE(free_meanwhile);
}

}  // namespace
}  // namespace monarch
