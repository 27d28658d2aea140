#include "monarch/base/copy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace monarch {
namespace {

TEST(Copy, StreamedIsTheSameBytesAndNoOthersForAllSizesAndAlignments) {
  std::mt19937 random(3);
  std::vector<uint8_t> from(2048);
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(random());
  for (size_t size : {0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 1024, 1500}) {
    for (size_t to_offset = 0; to_offset < 64; to_offset += 7) {
      for (size_t from_offset : {size_t{0}, size_t{1}, size_t{17}}) {
        std::vector<uint8_t> to(2048, 0xAA), expected(2048, 0xAA);
        std::memcpy(expected.data() + to_offset, from.data() + from_offset, size);
        copy_streamed(to.data() + to_offset, from.data() + from_offset, size);
        ASSERT_EQ(to, expected) << size << " bytes, " << from_offset << " to " << to_offset;
      }
    }
  }
}

TEST(Copy, LargeOnesAreWhole) {
  ASSERT_GT(streamed_copy_min(), size_t{1} << 18);
  for (size_t size : {streamed_copy_min() - 1, streamed_copy_min() + 33}) {
    std::vector<uint8_t> from(size), to(size);
    for (size_t i = 0; i < size; ++i) from[i] = static_cast<uint8_t>(i * 31 >> 3);
    copy_bytes(to.data(), from.data(), size);
    ASSERT_TRUE(to == from) << size;
  }
}

}  // namespace
}  // namespace monarch
