#include "monarch/net/message_blocks.h"

#include <gtest/gtest.h>

#include "monarch/testing/sim_world.h"

namespace monarch::internal {
namespace {

constexpr size_t kMega = size_t{1} << 20;

TEST(LargeBlocks, AreKeptForTheNextOfTheirSizeAndGoBackWhenNobodyWantsThem) {
  testing::SimWorld sim{1};
  keep_large_blocks(&sim);
  std::byte* const first = take_large_block(8 * kMega);
  ASSERT_NE(first, nullptr);
  first[8 * kMega - 1] = std::byte{1};
  return_large_block(first);
  EXPECT_GE(large_blocks_kept(), 8 * kMega);
  EXPECT_EQ(take_large_block(7 * kMega), first);
  return_large_block(first);
  std::byte* const larger = take_large_block(40 * kMega);
  EXPECT_NE(larger, first) << "it is too small";
  return_large_block(larger);
  std::byte* const small = take_large_block(kMega);
  EXPECT_NE(small, first) << "it is much too large";
  return_large_block(small);
  EXPECT_GE(large_blocks_kept(), 49 * kMega);
  EXPECT_TRUE(sim.run());
  EXPECT_EQ(large_blocks_kept(), 0u);
  EXPECT_LE(sim.now_ns(), 2 * kWarmNs);
  keep_large_blocks(nullptr);
}

TEST(LargeBlocks, AreBounded) {
  testing::SimWorld sim{1};
  keep_large_blocks(&sim);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(take_large_block(kWarmBytes / 4));
  for (std::byte* block : blocks) return_large_block(block);
  EXPECT_LE(large_blocks_kept(), kWarmBytes);
  EXPECT_GE(large_blocks_kept(), kWarmBytes / 2);
  keep_large_blocks(nullptr);
  EXPECT_EQ(large_blocks_kept(), 0u);
  return_large_block(take_large_block(4 * kMega));
  EXPECT_EQ(large_blocks_kept(), 0u) << "there is nobody to give them back";
}

}  // namespace
}  // namespace monarch::internal
