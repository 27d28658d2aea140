#include "monarch/base/demangle.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(Demangle, SaysWhatIsMangledAndLeavesTheRest) {
  EXPECT_EQ(demangled("_ZN4mine4workEv"), "mine::work()");
  EXPECT_EQ(demangled("main"), "main");
  EXPECT_EQ(demangled(""), "");
}

// Each level names the one before it twice.
TEST(Demangle, WhatGrowsWithoutBoundStaysAsItIs) {
  std::string name = "_Z1fI1AE";
  std::string parts = "St4pairI1aS_E";
  for (int level = 0; level < 40; ++level) parts = "St4pairI" + parts + "S" + std::to_string(level % 10) + "_E";
  name = "_Z1f" + parts;
  EXPECT_EQ(demangled(name), name);
}

}  // namespace
}  // namespace monarch
