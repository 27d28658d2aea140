// The pieces of the shared-memory link by themselves: sealed memory, arena, ring.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>
#include <thread>

#include "monarch/net/shm/arena.h"
#include "monarch/net/shm/ring.h"

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

TEST(Arena, WastesAtMostAQuarter) {
  Arena arena(uint64_t{1} << 30);
  for (uint64_t size = 4096; size < 3'000'000; size += size / 7 + 13) {
    auto slab = arena.allocate(size);
    ASSERT_TRUE(slab.has_value());
    EXPECT_GE(arena.bytes_held(), size);
    EXPECT_LE(arena.bytes_held(), size + size / 4 + 1) << size;
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
  Arena arena(1 << 20);
  EXPECT_FALSE(arena.allocate(2 << 20).has_value());
  EXPECT_FALSE(arena.allocate(UINT64_MAX).has_value());
  std::vector<Slab> slabs;
  while (auto slab = arena.allocate(64 * 1024)) slabs.push_back(*slab);
  EXPECT_EQ(slabs.size(), 16u);
  EXPECT_LE(arena.bytes_reserved(), uint64_t{1} << 20);
  arena.release(slabs.back().key());
  EXPECT_TRUE(arena.allocate(40 * 1024).has_value()) << "a larger free slab does when there is no room for a new one";
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
}

TEST(ArenaView, ResolvesOnlyWhatLiesInside) {
  ArenaView view;
  auto fd = make_shared_memory("test", 8192);
  ASSERT_TRUE(view.add(3, std::move(*fd)).ok());
  EXPECT_FALSE(view.add(3, std::move(*make_shared_memory("test", 8192))).ok());
  EXPECT_FALSE(view.add(1 << 20, std::move(*make_shared_memory("test", 8192))).ok());
  EXPECT_FALSE(view.add(4, UniqueFd()).ok());
  EXPECT_NE(view.resolve({3, false, 0}, 8192), nullptr);
  EXPECT_NE(view.resolve({3, false, 8192}, 0), nullptr);
  EXPECT_EQ(view.resolve({3, false, 1}, 8192), nullptr);
  EXPECT_EQ(view.resolve({3, false, 8193}, 0), nullptr);
  EXPECT_EQ(view.resolve({3, false, 0}, UINT64_MAX), nullptr);
  EXPECT_EQ(view.resolve({2, false, 0}, 1), nullptr);
  EXPECT_EQ(view.resolve({99, false, 0}, 1), nullptr);
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
