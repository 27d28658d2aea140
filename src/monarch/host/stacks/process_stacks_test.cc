#include "monarch/host/stacks/process_stacks.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(ProcessStacks, StayWithinTheirLimitWhateverActorsAreAt) {
  constexpr size_t kBytesMax = size_t{1} << 20;
  std::vector<RunningActor> actors(3);
  actors[0].name = std::string(1000, 'n');
  actors[1].waiting = std::vector<std::string>(100'000, "an_endpoint_with_a_name");
  for (const bool many : {false, true}) {
    if (many) actors = std::vector<RunningActor>(100'000, actors[0]);
    CodeMap code;
    ValueWriter value;
    write_process_stacks(value, {}, actors, code, kBytesMax);
    EXPECT_GT(value.written().size(), 1000u);
    EXPECT_LE(value.written().size(), kBytesMax);
  }
}

}  // namespace
}  // namespace monarch
