// Who is sent a library, and who is not. That actors run what was sent: tests/python/test_cpp_libraries.py.
#include "monarch/actor/libraries.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "monarch/actor/calls.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

// One that is loaded already.
std::string own_library() {
  Dl_info info;
  MONARCH_CHECK(dladdr(reinterpret_cast<void*>(&Libraries::instance), &info) != 0);
  return std::filesystem::canonical(info.dli_fname);
}

struct LibrariesTest : ::testing::Test {
  LibrariesTest() : here(sim.node(sim.add_node())), there(sim.node(sim.add_node())) {
    there.add_cell(LibraryCell::id_of(there.id()).index, std::make_shared<LibraryCell>(there));
  }
  std::shared_ptr<PendingCall> ask(const std::string& hash, FrameKind kind = FrameKind::kRequest) {
    auto members = std::make_shared<Members>();
    members->ids = {LibraryCell::id_of(there.id())};
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, as_byte_span(hash.data(), hash.size()), {}};
    request.header.kind = kind;
    here.cast(*members, request, call);
    sim.run();
    return call;
  }
  std::string refusal(const std::string& hash) {
    const auto call = ask(hash);
    if (!call->complete() || call->reply(0)->header.kind != FrameKind::kReplyFailed) return "it was not refused";
    return failure_of(*call->reply(0)).text();
  }

  SimWorld sim{1};
  Node& here;
  Node& there;
};

TEST_F(LibrariesTest, WhatWasLoadedIsGivenToWhoKnowsItsContent) {
  const std::string path = own_library();
  auto loaded = Libraries::instance().load(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->hash.size(), 32u);
  EXPECT_EQ(Libraries::instance().load(path)->hash, loaded->hash);
  const auto call = ask(loaded->hash);
  ASSERT_TRUE(call->complete());
  const Message& answer = *call->reply(0);
  ASSERT_EQ(answer.header.kind, FrameKind::kReply);
  ASSERT_EQ(answer.parts.size(), 1u);
  EXPECT_EQ(answer.parts[0].size, std::filesystem::file_size(path));
}

TEST_F(LibrariesTest, WhatIsNotLoadedAndWhatIsNoHashIsRefused) {
  EXPECT_NE(refusal(std::string(32, 'x')).find("it has not loaded it"), std::string::npos);
  EXPECT_NE(refusal("").find("requests for libraries"), std::string::npos);
  EXPECT_NE(refusal(std::string(33, 'x')).find("requests for libraries"), std::string::npos);
}

TEST_F(LibrariesTest, WhatCannotBeLoadedIsNotKept) {
  for (const char* path : {"/no/such/library.so", "/proc/self/status", "/"}) {
    const auto loaded = Libraries::instance().load(path);
    ASSERT_FALSE(loaded) << path;
    EXPECT_NE(loaded.error().message.find(path), std::string::npos) << loaded.error().message;
  }
}

}  // namespace
}  // namespace monarch::testing
