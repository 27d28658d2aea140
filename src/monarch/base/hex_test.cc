#include "monarch/base/hex.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(Hex, GoesThereAndBack) {
  const unsigned char bytes[] = {0x00, 0x09, 0xaf, 0xff};
  EXPECT_EQ(to_hex(bytes, sizeof bytes), "0009afff");
  unsigned char back[4] = {};
  ASSERT_TRUE(from_hex("0009afff", back, sizeof back));
  EXPECT_EQ(std::string(back, back + 4), std::string(bytes, bytes + 4));
}

TEST(Hex, RefusesWhatIsNotExactlyThatManyDigits) {
  unsigned char out[2];
  for (const char* text : {"", "001", "00112", "001122", "00 1", "00AF", "0x11", "001g"}) {
    EXPECT_FALSE(from_hex(text, out, sizeof out)) << text;
  }
}

}  // namespace
}  // namespace monarch
