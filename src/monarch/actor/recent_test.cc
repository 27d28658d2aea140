#include "monarch/actor/recent.h"

#include <gtest/gtest.h>

#include <string>

namespace monarch {
namespace {

TEST(Recent, ForgetsTheOldestAndSaysWhich) {
  Recent<int, std::string> recent(2);
  EXPECT_EQ(recent.put(1, "one"), std::nullopt);
  EXPECT_EQ(recent.put(2, "two"), std::nullopt);
  EXPECT_EQ(recent.put(3, "three"), 1);
  EXPECT_EQ(recent.find(1), nullptr);
  EXPECT_EQ(*recent.find(2), "two");
  EXPECT_EQ(recent.size(), 2u);
}

TEST(Recent, AKeyThatIsThereTakesTheNewValueAndKeepsItsPlace) {
  Recent<int, std::string> recent(2);
  recent.put(1, "one");
  recent.put(2, "two");
  EXPECT_EQ(recent.put(1, "again"), std::nullopt);
  EXPECT_EQ(*recent.find(1), "again");
  EXPECT_EQ(recent.put(3, "three"), 1);
}

}  // namespace
}  // namespace monarch
