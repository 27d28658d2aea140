// Stacks of processes, as ProcessRuntime asks for them.
#include <gtest/gtest.h>
#include <signal.h>

#include "monarch/testing/runtime_fixture.h"
#include "monarch/wire/value.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

class RuntimeStacks : public RuntimeFixture {
 protected:
  // (number of fields, pid) of an answer.
  static std::pair<uint32_t, int64_t> head_of(const PendingCall& asked, uint32_t rank) {
    const Message& answer = *asked.reply(rank);
    EXPECT_EQ(answer.header.kind, FrameKind::kReply) << reply_text(answer);
    ValueReader reader({answer.body.data(), answer.body.size()});
    uint32_t count = 0;
    int64_t pid = 0;
    EXPECT_TRUE(reader.begin_tuple(count) && reader.integer(pid));
    return {count, pid};
  }
  static constexpr int64_t kLimitNs = 20'000'000'000;
};

TEST_P(RuntimeStacks, EachProcessAnswersTheScriptToo) {
  auto nodes = spawn(3);
  nodes.push_back(root_->node().id());
  const auto asked = root_->ask_stacks(nodes, kLimitNs);
  ASSERT_TRUE(wait(asked));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(head_of(*asked, rank), std::pair(4u, int64_t{pid_of(nodes[rank])}));
  }
  EXPECT_EQ(head_of(*asked, 3), std::pair(4u, int64_t{getpid()}));
}

TEST_P(RuntimeStacks, OneThatIsStoppedIsNamedSoLongBeforeTheLimit) {
  const auto nodes = spawn(2);
  ASSERT_TRUE(wait(call(actors(nodes), kEcho)));
  const pid_t stopped = pid_of(nodes[1]);
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  const auto asked = root_->ask_stacks(nodes, int64_t{3600} * 1'000'000'000);
  ASSERT_TRUE(wait(asked));
  EXPECT_EQ(head_of(*asked, 0).first, 4u);
  EXPECT_EQ(head_of(*asked, 1), std::pair(3u, int64_t{stopped}));
  kill(stopped, SIGCONT);
}

TEST_P(RuntimeStacks, OneThatDiesMeanwhileOrIsDeadIsAFailure) {
  const auto nodes = spawn(2);
  const auto members = actors(nodes);
  ASSERT_TRUE(wait(call(members, kEcho)));
  ASSERT_EQ(kill(pid_of(nodes[1]), SIGKILL), 0);
  EXPECT_NE(text(call(only(*members, 1), kEcho)).find("sig=9"), std::string::npos);
  const auto asked = root_->ask_stacks(nodes, kLimitNs);
  ASSERT_TRUE(wait(asked));
  EXPECT_EQ(head_of(*asked, 0).first, 4u);
  EXPECT_EQ(asked->reply(1)->header.kind, FrameKind::kReplyFailed);
}

INSTANTIATE_TEST_SUITE_P(All, RuntimeStacks, kEveryVariant, name_of_variant);

}  // namespace
}  // namespace monarch
