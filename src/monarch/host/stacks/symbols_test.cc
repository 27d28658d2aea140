#include "monarch/host/stacks/symbols.h"

#include <dlfcn.h>
#include <gtest/gtest.h>


namespace monarch::stacks_test {

// Not static: it is to have a name.
[[gnu::noinline]] int here(int value) {
  volatile int kept = value;
  return kept + 1;
}

namespace {

uint64_t offset_of(void (*function)()) {
  Dl_info info;
  EXPECT_NE(dladdr(reinterpret_cast<void*>(function), &info), 0);
  return reinterpret_cast<uintptr_t>(function) - reinterpret_cast<uintptr_t>(info.dli_fbase);
}

TEST(FunctionNames, AreThoseOfThePlacesInTheFileWithoutArguments) {
  EXPECT_EQ(here(1), 2);
  const uint64_t at = offset_of(reinterpret_cast<void (*)()>(&here));
  const uint64_t offsets[] = {at, at + 1, UINT64_MAX};
  const auto names = function_names("/proc/self/exe", offsets);
  EXPECT_EQ(names[0], "monarch::stacks_test::here");
  EXPECT_EQ(names[1], names[0]);
  EXPECT_EQ(names[2], "");
}

TEST(FunctionNames, OfWhatIsNoCodeAreEmpty) {
  const uint64_t offsets[] = {0, 4096};
  const std::vector<std::string> nothing(2);
  EXPECT_EQ(function_names("/no/such/file", offsets), nothing);
  EXPECT_EQ(function_names("/proc/self/status", offsets), nothing);
  EXPECT_EQ(function_names("", offsets), nothing);
}

}  // namespace
}  // namespace monarch::stacks_test
