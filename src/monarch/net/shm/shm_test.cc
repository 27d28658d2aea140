// The pieces of the shared-memory link by themselves: sealed memory, the view of an arena, the ring.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/net/shm/arena_view.h"
#include "monarch/net/shm/lease.h"
#include "monarch/net/shm/own_bell.h"
#include "monarch/net/shm/ring.h"
#include "monarch/net/shm/shm_link.h"

namespace monarch {
namespace {

TEST(SharedMemory, CannotBeTruncatedAndUnsealedIsRefused) {
  auto fd = make_shared_memory("test", 8192);
  ASSERT_TRUE(fd.ok());
  EXPECT_NE(ftruncate(fd->get(), 0), 0);
  EXPECT_TRUE(map_shared_memory(fd->get(), 8192).ok());
  EXPECT_FALSE(map_shared_memory(fd->get(), 8193).ok());
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  auto mapped = map_shared_memory(unsealed.get(), 4096);
  ASSERT_FALSE(mapped.ok());
  EXPECT_EQ(mapped.error().code, ErrorCode::kMalformed);
  EXPECT_FALSE(map_shared_memory(-1, 0).ok());
}

// Who rings it is a reactor, perhaps.
TEST(OwnBell, OfAPeerIsAnEventfdAtWhichNobodyWaits) {
  OwnBell own = OwnBell::make().value();
  const auto taken = [&](UniqueFd event) { return OwnBell::of_peer(sys::duplicate(own.page_fd.get()), std::move(event)); };
  EXPECT_TRUE(taken(sys::duplicate(own.event_fd.get())).ok());
  UniqueFd pipe[2];
  ASSERT_TRUE(sys::make_pipe(pipe, O_NONBLOCK));
  UniqueFd waits(eventfd(0, EFD_CLOEXEC));
  for (UniqueFd* wrong : {&pipe[1], &waits}) {
    auto refused = taken(std::move(*wrong));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed);
  }
}

TEST(ArenaView, ResolvesOnlyWhatLiesInside) {
  ArenaView view;
  Reactor reactor;
  Received received(reactor);
  auto fd = make_shared_memory("test", 8192);
  ASSERT_TRUE(view.add(3, std::move(*fd), received).ok());
  EXPECT_FALSE(view.add(3, std::move(*make_shared_memory("test", 8192)), received).ok());
  EXPECT_FALSE(view.add(1 << 20, std::move(*make_shared_memory("test", 8192)), received).ok());
  EXPECT_FALSE(view.add(4, UniqueFd(), received).ok());
  EXPECT_NE(view.resolve({3, false, 0}, 8192, received), nullptr);
  EXPECT_NE(view.resolve({3, false, 8192}, 0, received), nullptr);
  EXPECT_EQ(view.resolve({3, false, 1}, 8192, received), nullptr);
  EXPECT_EQ(view.resolve({3, false, 8193}, 0, received), nullptr);
  EXPECT_EQ(view.resolve({3, false, 0}, UINT64_MAX, received), nullptr);
  EXPECT_EQ(view.resolve({2, false, 0}, 1, received), nullptr);
  EXPECT_EQ(view.resolve({99, false, 0}, 1, received), nullptr);
}

TEST(ArenaView, RemembersWhatItCouldNotTakeUntilItIsThere) {
  ArenaView view;
  Reactor reactor;
  Received received(reactor);
  ASSERT_TRUE(view.lose(2).ok());
  EXPECT_TRUE(view.has_lost(2));
  EXPECT_FALSE(view.has(2));
  EXPECT_EQ(view.lost(), std::vector<uint32_t>{2});
  ASSERT_TRUE(view.add(2, std::move(*make_shared_memory("test", 8192)), received).ok());
  EXPECT_TRUE(view.lost().empty());
  std::byte* const there = view.resolve({2, false, 0}, 8192, received);
  EXPECT_NE(there, nullptr);
  // It was asked for twice, perhaps.
  EXPECT_TRUE(view.add(2, std::move(*make_shared_memory("test", 4096)), received).ok());
  EXPECT_TRUE(view.lose(2).ok());
  EXPECT_TRUE(view.lost().empty());
  EXPECT_EQ(view.resolve({2, false, 0}, 8192, received), there);
  ASSERT_TRUE(view.add(3, std::move(*make_shared_memory("test", 8192)), received).ok());
  EXPECT_FALSE(view.lose(3).ok()) << "it was never lost";
  EXPECT_FALSE(view.lose(1 << 20).ok());
}

TEST(ArenaView, KeepsTheDescriptorOfWhatItCannotMapAndTriesAgainWhenItIsUsed) {
  ArenaView view;
  Reactor reactor;
  Received received(reactor);
  UniqueFd segment = std::move(*make_shared_memory("test", 8192));
  sys::fail_nth(1);
  ASSERT_TRUE(view.add(2, std::move(segment), received).ok());
  EXPECT_TRUE(view.has(2));
  EXPECT_TRUE(view.lost().empty());
  EXPECT_NE(view.unmapped(2), nullptr);
  EXPECT_FALSE(view.contains({2, false, 1}, 8192));
  sys::fail_nth(1);
  EXPECT_EQ(view.resolve({2, false, 0}, 8192, received), nullptr);
  sys::fail_nth(0);
  EXPECT_NE(view.resolve({2, false, 0}, 8192, received), nullptr);
  EXPECT_EQ(view.unmapped(2), nullptr);
}

TEST(EndedLeases, GivesEachBackOnceWhoeverPushesMeanwhile) {
  EndedLeases ended;
  constexpr uint64_t kEach = 20'000;
  std::vector<std::thread> threads;
  std::atomic<int> running{3};
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        ended.push(std::unique_ptr<Lease>(new Lease{nullptr, nullptr, t * kEach + i, 3, 0}));
      }
      --running;
    });
  }
  std::vector<int> seen(3 * kEach);
  while (running != 0 || !ended.empty()) ended.take_all([&](std::unique_ptr<Lease> lease) { ++seen[lease->location]; });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
  EXPECT_EQ(ended.bytes(), 0u);
}

TEST(Ring, CarriesAStreamBetweenTwoThreadsRoundItsEnd) {
  auto page = std::make_unique<RingPage>();
  constexpr uint64_t kTotal = kRingBytes * 20 + 12345;
  std::thread producing([&] {
    RingProducer producer(*page);
    std::mt19937 random(1);
    std::vector<std::byte> bytes(100'000);
    for (uint64_t sent = 0; sent < kTotal;) {
      const uint64_t room = producer.room();
      if (room == 0) {
        if (!producer.ask_for_room()) sched_yield();
        continue;
      }
      const uint64_t count = std::min<uint64_t>({room, kTotal - sent, 1 + random() % bytes.size()});
      for (uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((sent + i) * 7 >> 3);
      producer.put(bytes.data(), count);
      producer.publish();
      sent += count;
    }
  });
  RingConsumer consumer(*page);
  std::vector<std::byte> bytes(kRingBytes);
  uint64_t wrong = 0;
  for (uint64_t got = 0; got < kTotal;) {
    const uint64_t available = consumer.available();
    ASSERT_LE(available, kRingBytes);
    consumer.take(bytes.data(), available);
    consumer.give_back();
    for (uint64_t i = 0; i < available; ++i) wrong += bytes[i] != static_cast<std::byte>((got + i) * 7 >> 3);
    got += available;
    if (available == 0) sched_yield();
  }
  producing.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Ring, TellsTheProducerOfRoomOnceAndOnlyIfItWaits) {
  auto page = std::make_unique<RingPage>();
  RingProducer producer(*page);
  RingConsumer consumer(*page);
  std::vector<std::byte> bytes(kRingBytes);
  producer.put(bytes.data(), kRingBytes);
  producer.publish();
  EXPECT_EQ(producer.room(), 0u);
  consumer.take(bytes.data(), 10);
  EXPECT_FALSE(consumer.give_back());
  producer.put(bytes.data(), 10);
  producer.publish();
  EXPECT_FALSE(producer.ask_for_room());
  consumer.take(bytes.data(), 10);
  EXPECT_TRUE(consumer.give_back());
  EXPECT_FALSE(consumer.give_back());
}

TEST(Ring, AnImpossiblePeerGivesNoRoomAndIsSeen) {
  auto page = std::make_unique<RingPage>();
  RingProducer producer(*page);
  RingConsumer consumer(*page);
  page->tail.store(5);  // more taken than was ever written
  EXPECT_EQ(producer.room(), 0u);
  page->head.store(kRingBytes + 1);
  EXPECT_GT(consumer.available(), kRingBytes);
  page->bell_index_plus_1.store(UINT32_MAX);
  EXPECT_EQ(producer.consumer_bell(), kNoBellIndex);
}

}  // namespace
}  // namespace monarch
