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

}  // namespace
}  // namespace monarch
