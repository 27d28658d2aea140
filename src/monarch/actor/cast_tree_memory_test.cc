// How much memory casts take, and what becomes of one for which it runs out, wherever that is. It replaces the allocator
// of the whole program.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "monarch/actor/cast_tree.h"

namespace {
thread_local int allocations_left = -1;  // then they fail; -1: they do not
thread_local size_t allocations = 0, largest_allocation = 0;
thread_local int64_t bytes_held = 0;

void* allocate(size_t size) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  void* const memory = std::malloc(size);
  ++allocations;
  largest_allocation = std::max(largest_allocation, size);
  bytes_held += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void release(void* memory) noexcept {
  bytes_held -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
}  // namespace

// Not inlined: the compiler would take a free() of what it knows to come from new for a mistake.
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* const memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
// What algorithms ask for as a buffer, and do without where there is none.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace monarch::testing {
namespace {

constexpr uint64_t kSession = 7;

Tree tree_to(std::vector<NodeId> gateways) {
  Tree tree;
  tree.source = Message::make(FrameHeader{}, {});
  tree.bytes = 100;
  for (const NodeId gateway : gateways) tree.hosts.push_back({{gateway, kSession, 0, 0, 0, 0}});
  return tree;
}

// ---- How much ----

constexpr uint64_t kMany = 1000, kActors = 8;

// A small message to so many hosts, as a node keeps it (node_tree.cc).
struct Cast {
  std::vector<TreeHost> hosts;
  std::vector<CastTarget> targets;
  MessagePtr message;
};
Tree tree_to_many() {
  const auto kept = std::make_shared<Cast>();  // shared: with the trees of this cast
  for (NodeId gateway = 1; gateway <= kMany; ++gateway) {
    kept->hosts.push_back({gateway, kSession, 0, 0, kActors, 0});
    kept->targets.insert(kept->targets.end(), kActors, {gateway, 1, 0, 0});
  }
  kept->hosts.shrink_to_fit();
  kept->targets.shrink_to_fit();
  kept->message = Message::make(FrameHeader{}, "body");
  Tree tree;
  tree.source = std::shared_ptr<const Message>(kept, kept->message.get());
  tree.cast.targets = as_byte_span(kept->targets.data(), kept->targets.size() * sizeof(CastTarget));
  tree.bytes = 4;
  tree.hosts.reserve(kMany);
  for (const TreeHost& host : kept->hosts) tree.hosts.push_back({host, tree.hosts.size() * kActors});
  return tree;
}

// Of the last host, which gets nothing, the origin keeps all.
struct OneThatIsPaused {
  static constexpr NodeId kPaused = kMany;
  void cast() {
    origin.send(tree_to_many(), 0, sends);
    sends.clear();
    ++number;
    for (NodeId gateway = 1; gateway < kPaused; ++gateway) EXPECT_TRUE(origin.taken(gateway, kSession, number, 0));
  }
  CastOrigin origin;
  CastOrigin::Sends sends;
  uint64_t number = 0;
};

TEST(CastOriginMemory, IsAllChargedToAHostThatKeepsACastWaiting) {
  OneThatIsPaused world;
  world.cast();
  const int64_t before = bytes_held;
  const uint64_t charged = world.origin.backlog(world.kPaused);
  for (int i = 0; i < 20; ++i) world.cast();
  EXPECT_LE(bytes_held - before, static_cast<int64_t>(world.origin.backlog(world.kPaused) - charged));
  EXPECT_EQ(world.origin.backlog(1), 0u);
  EXPECT_TRUE(world.origin.taken(world.kPaused, kSession, world.number, 0));
  EXPECT_EQ(world.origin.backlog(world.kPaused), 0u);
}

// By what it allocates: each host of a tree that is walked takes some.
TEST(CastOriginMemory, ToLookIsNoMoreWorkForMoreCastsThatAreUnderWay) {
  OneThatIsPaused world;
  std::vector<size_t> taken;
  for (const int casts : {1, 20}) {
    for (int i = 0; i < casts; ++i) world.cast();
    const size_t before = allocations;
    world.origin.look(1, world.sends);
    taken.push_back(allocations - before);
    EXPECT_TRUE(world.sends.empty());
  }
  EXPECT_EQ(taken.back(), taken.front());
}

TEST(CastOriginMemory, WhatIsSentAnewIsMadeOfThatAlone) {
  CastOrigin origin;
  CastOrigin::Sends sends;
  origin.send(tree_to_many(), 0, sends);
  largest_allocation = 0;
  origin.missed(kMany / 2, kSession, 1, false, 0, sends);
  EXPECT_LT(largest_allocation, 10 * sizeof(Tree::Host));
}

// ---- Where it runs out ----

TEST(CastOriginMemory, WhatIsNotSentForWantOfItHasNoNumber) {
  bool is_sent = false;
  for (int enough = 0; !is_sent; ++enough) {
    CastOrigin origin;
    CastOrigin::Sends sends;
    origin.send(tree_to({10, 11}), 0, sends);
    origin.missed(11, kSession, 1, false, 0, sends);  // which gets all directly from now on
    sends.clear();
    Tree tree = tree_to({10, 11, 12, 13});
    const uint64_t cost_before = CastOrigin::cost_of(tree_to({10, 11})), cost = CastOrigin::cost_of(tree);
    try {
      allocations_left = enough;
      origin.send(std::move(tree), 0, sends);
      allocations_left = -1;
      is_sent = true;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      EXPECT_TRUE(sends.empty());
    }
    for (const NodeId gateway : {10, 11, 12, 13}) {
      const uint64_t before = gateway < 12 ? 1 : 0;
      EXPECT_EQ(origin.fence(gateway, kSession), before + is_sent) << enough << " allocations";
      EXPECT_EQ(origin.backlog(gateway), before * cost_before + is_sent * cost);
      EXPECT_TRUE(origin.takes(gateway, kSession));
      EXPECT_EQ(origin.takes(gateway, kSession + 1), before + is_sent == 0);
      EXPECT_TRUE(origin.taken(gateway, kSession, before + is_sent, 0));
    }
    EXPECT_TRUE(origin.idle());
  }
}

TEST(CastOriginMemory, WhatWasNotSentForWantOfItIsSentAtTheNextLook) {
  CastOrigin origin;
  CastOrigin::Sends sends, again;
  origin.send(tree_to({10, 11, 12}), 0, sends);
  origin.not_sent(sends.front());
  origin.look(1, again);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again.front().hosts, sends.front().hosts);
  origin.look(2, again);
  EXPECT_EQ(again.size(), 1u) << "once";
}

// Each of these may be told of what goes wrong when there is no memory to mend it.
TEST(CastOriginMemory, WhatIsNotSentAnewForWantOfItIsSentAnewWhenItIsLookedAgain) {
  using Happens = void (*)(CastOrigin&, CastOrigin::Sends&);
  constexpr int64_t kThenNs = CastOrigin::kStuckNs;
  const Happens kAll[] = {
      [](CastOrigin& origin, CastOrigin::Sends& sends) { origin.missed(10, kSession, 1, true, kThenNs, sends); },
      [](CastOrigin& origin, CastOrigin::Sends& sends) { origin.lost(10, kSession, 1, kThenNs, sends); },
      [](CastOrigin& origin, CastOrigin::Sends& sends) { origin.look(kThenNs, sends); }};
  const std::vector<NodeId> all{10, 11, 12, 13, 20, 21, 22, 23};
  for (const Happens& happens : kAll) {
    for (int enough = 0; enough < 100; ++enough) {
      CastOrigin origin;
      CastOrigin::Sends sends;
      origin.send(tree_to(all), 0, sends);
      sends.clear();
      allocations_left = enough;
      try {
        happens(origin, sends);
        allocations_left = -1;
      } catch (const std::bad_alloc&) {
        allocations_left = -1;
        ADD_FAILURE() << enough << " allocations: it is thrown";
      }
      if (::testing::Test::HasFailure()) return;
      int64_t now_ns = kThenNs;
      for (const NodeId root : {10, 20}) EXPECT_TRUE(origin.taken(root, kSession, 1, now_ns));
      for (int looks = 0; looks < 10 && !origin.idle(); ++looks) {
        for (const auto& send : std::exchange(sends, {})) {
          const NodeId gateway = send.tree->hosts[send.hosts.first].at.gateway;  // which passes nothing on
          EXPECT_TRUE(origin.taken(gateway, kSession, 1, now_ns));
        }
        origin.look(now_ns += CastOrigin::kStuckNs, sends);
      }
      EXPECT_TRUE(origin.idle()) << enough << " allocations";
    }
  }
}

}  // namespace
}  // namespace monarch::testing
