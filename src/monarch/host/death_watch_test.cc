#include "monarch/host/death_watch.h"

#include <gtest/gtest.h>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

TEST(DeathWatch, TheNumberOfAProcessOfAnotherMachineIsNoneHere) {
  constexpr NodeId kSelf = 1, kHere = 2, kThere = NodeId{3} << kHostShift | 2;
  SimWorld sim{1};
  Node::Hooks none;
  none.dial = [](NodeId) { return std::shared_ptr<Link>(); };
  Node node(kSelf, sim.driver(), sim, std::move(none));
  DeathWatch watch(sim, node, {});
  for (const NodeId child : {kHere, kThere}) {
    watch.add_child(child, kSelf, Failure(), 0);
    watch.started(child, 4711);
    EXPECT_EQ(watch.pid_of(child), 4711);
  }
  EXPECT_EQ(watch.pid_here(kHere), 4711);
  EXPECT_EQ(watch.pid_here(kThere), -1);
}

}  // namespace
}  // namespace monarch::testing
