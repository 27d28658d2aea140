// What becomes of a cast for which memory runs out, wherever that is. It replaces the allocator of the whole program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "monarch/actor/cast_tree.h"

namespace {
thread_local int allocations_left = -1;  // then they fail; -1: they do not
}  // namespace

// Not inlined: the compiler would take a free() of what it knows to come from new for a mistake.
[[gnu::noinline]] void* operator new(size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
// What algorithms ask for as a buffer, and do without where there is none.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

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

TEST(CastOriginMemory, WhatIsNotSentForWantOfItHasNoNumber) {
  bool is_sent = false;
  for (int enough = 0; !is_sent; ++enough) {
    CastOrigin origin;
    CastOrigin::Sends sends;
    origin.send(tree_to({10, 11}), 0, sends);
    origin.missed(11, kSession, 1, false, 0, sends);  // which gets all directly from now on
    sends.clear();
    Tree tree = tree_to({10, 11, 12, 13});
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
      EXPECT_EQ(origin.backlog(gateway), 100 * (before + is_sent));
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

}  // namespace
}  // namespace monarch::testing
