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

TEST(DeathWatch, WhatRanOnAHostIsDownBeforeAnybodyIsToldOfThatHost) {
  constexpr NodeId kSelf = 1, kHost = 2, kThere = 3;
  SimWorld sim{1};
  Node::Hooks hooks;
  hooks.dial = [](NodeId) { return std::shared_ptr<Link>(); };
  bool was_down = false, was_told = false;
  Node* self = nullptr;
  hooks.on_mesh_failure = [&](const auto&) {
    if (!std::exchange(was_told, true)) was_down = self->is_down(kHost) && self->is_down(kThere);
  };
  Node node(kSelf, sim.driver(), sim, std::move(hooks));
  self = &node;
  DeathWatch::Hooks nothing;
  nothing.on_buried = [](NodeId) {};
  nothing.is_guest = nothing.is_foreign = [](NodeId) { return false; };
  DeathWatch watch(sim, node, std::move(nothing));
  watch.add_child(kHost, kSelf, Failure(), 0);
  watch.started(kHost, 4711);
  watch.add_hosted({kThere}, kHost);
  for (const NodeId of : {kHost, kThere}) {
    auto members = std::make_shared<Members>();
    members->ids = {{of, 7}};
    OwnedMesh mesh;
    mesh.is_procs = true;
    mesh.members = std::move(members);
    node.supervisor().add(std::move(mesh));
  }
  watch.exited(kHost, {.known = true, .signal = 9});
  EXPECT_TRUE(was_told && was_down);
}

}  // namespace
}  // namespace monarch::testing
