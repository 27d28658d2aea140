#include "monarch/base/ids.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

class Fixed final : public Random {
 public:
  explicit Fixed(uint64_t number) : number_(number) {}
  uint64_t next_u64() override { return number_; }

 private:
  const uint64_t number_;
};

TEST(Ids, ANodeIsNeverZeroAndAlwaysAnIntegerOfTheNativeCodec) {
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63}) {
    Fixed random(value);
    EXPECT_GT(static_cast<int64_t>(new_node_id(random)), 0) << value;
  }
}

TEST(Ids, AnActorsIndexSaysWhoMayHaveCreatedItAndStaysAnIntegerOfTheNativeCodec) {
  for (const NodeId creator : {NodeId{1}, NodeId{77}, kIdMask / 3, kIdMask}) {
    for (const uint64_t number : {kFirstNumber, uint64_t{1'000'000}, kNumberMax - 1}) {
      const ActorIndex index = actor_index(creator, number);
      EXPECT_GE(static_cast<int64_t>(index), 0);
      EXPECT_TRUE(may_have_created(creator, index));
      EXPECT_FALSE(may_have_created(creator + number + 1, index));
      EXPECT_FALSE(may_have_created((creator - kNumberMax) & kIdMask, index));
    }
  }
}

// What the lower half of an id alone could not: two creators that share it are told apart.
TEST(Ids, CreatorsWithTheSameLowerHalfMakeDifferentIndices) {
  const NodeId one = 0x1234567887654321, other = 0x4321567887654321;
  EXPECT_NE(actor_index(one, kFirstNumber), actor_index(other, kFirstNumber));
  EXPECT_FALSE(may_have_created(one, actor_index(other, kFirstNumber)));
}

}  // namespace
}  // namespace monarch
