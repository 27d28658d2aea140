// The runtime of a root with workers that are this test binary itself, by exec and by a fork server, over both transports.
#include "monarch/host/runtime.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "monarch/actor/calls.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/testing/runtime_fixture.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

class Runtime : public RuntimeFixture {};

TEST_P(Runtime, WorkersAnswerAndEndWithTheRoot) {
  const auto nodes = spawn(4);
  const auto members = actors(nodes);
  auto pending = call(members, kTellPid);
  ASSERT_TRUE(wait(pending));
  std::vector<pid_t> pids;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(pending->reply(rank)->header.kind, FrameKind::kReply) << reply_text(*pending->reply(rank));
    int32_t pid;
    std::memcpy(&pid, pending->reply(rank)->body.data(), sizeof pid);
    pids.push_back(pid);
    EXPECT_EQ(pid_of(nodes[rank]), pid);
  }
  root_->shutdown(1'000'000'000);
  for (pid_t pid : pids) EXPECT_NE(kill(pid, 0), 0) << pid << " lives";
}

TEST_P(Runtime, ADeathFailsItsCallsWithItsCauseAndNobodyElses) {
  const auto members = actors(spawn(3));
  ASSERT_TRUE(wait(call(members, kEcho)));
  EXPECT_NE(text(call(only(*members, 1), kKillSelf)).find("Killed(sig=9) (rank 1, pid "), std::string::npos);
  EXPECT_NE(text(call(only(*members, 2), kExit, "\5")).find("exited with non-zero code 5 (rank 2"), std::string::npos);
  auto all = call(members, kEcho, "still here");
  ASSERT_TRUE(wait(all));
  EXPECT_EQ(reply_text(*all->reply(0)), "still here");
  EXPECT_EQ(all->reply(1)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(all->reply(2)->header.kind, FrameKind::kReplyFailed);
}

TEST_P(Runtime, EveryObserverIsToldOfADeathOnceWithItsCause) {
  const auto nodes = spawn(2);
  ASSERT_TRUE(wait(call(actors(nodes), kEcho)));
  std::mutex mutex;
  std::vector<std::pair<NodeId, std::string>> told[2];
  std::atomic<bool> was_down{true};
  for (auto& list : told) {
    root_->deaths().add_observer([&, this](NodeId node, const Failure& why) {
      if (!root_->node().is_down(node)) was_down = false;
      EXPECT_TRUE(root_->deaths().is_child(node)) << "an observer may ask";
      std::lock_guard lock(mutex);
      list.emplace_back(node, why.text());
    });
  }
  const auto count = [&] {
    std::lock_guard lock(mutex);
    return told[0].size() + told[1].size();
  };
  for (size_t rank = 0; rank < 2; ++rank) {
    kill(pid_of(nodes[rank]), SIGKILL);
    ASSERT_TRUE(drive_until(root_->driver(), [&] { return count() == 2 * (rank + 1); }));
  }
  root_->shutdown(1'000'000'000);
  EXPECT_TRUE(was_down) << "calls to it fail when an observer hears of it";
  for (const auto& list : told) {
    ASSERT_EQ(list.size(), 2u);
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(list[rank].first, nodes[rank]);
      EXPECT_NE(list[rank].second.find("Killed(sig=9)"), std::string::npos) << list[rank].second;
    }
  }
}

TEST_P(Runtime, StopEndsGentlyOrByForceAndSaysSoLater) {
  const auto nodes = spawn(2);
  const auto members = actors(nodes);
  ASSERT_TRUE(wait(call(only(*members, 1), kIgnoreStop)));
  for (size_t rank = 0; rank < 2; ++rank) {
    std::atomic<bool> done{false};
    root_->host().stop({nodes[rank]}, "enough", rank == 0 ? 5'000'000'000 : 30'000'000, [&] { done = true; });
    ASSERT_TRUE(drive_until(root_->driver(), [&] { return done.load(); }));
    EXPECT_EQ(text(call(only(*members, rank), kEcho)), "stopped: enough");
    root_->host().stop({nodes[rank]}, "again", 0, [&] { done = false; });
    ASSERT_TRUE(drive_until(root_->driver(), [&] { return !done.load(); }));
  }
}

TEST_P(Runtime, AProcessThatOnlyClosesItsLinkIsEnded) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(wait(call(members, kEcho)));
  EXPECT_NE(text(call(members, kCloseLinks)).find("it had closed its connection and did not end"), std::string::npos);
}

TEST_P(Runtime, WorkersDialEachOtherAtTheSameMoment) {
  for (int round = 0; round < testing::rounds(5, 2); ++round) {
    std::vector<NodeId> nodes = spawn(2);
    const auto callers = actors(nodes), called = actors(nodes);
    ASSERT_TRUE(wait(call(callers, kEcho)));
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (int i = 0; i < 20; ++i) {
      for (size_t rank = 0; rank < 2; ++rank) {
        const ActorId& other = called->ids[1 - rank];
        calls.push_back(call(only(*callers, rank), kCallOther, {reinterpret_cast<const char*>(&other), sizeof other}));
      }
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const ActorId& other = called->ids[1 - i % 2];
      ASSERT_EQ(text(calls[i]), std::string_view(reinterpret_cast<const char*>(&other), sizeof other));
    }
  }
}

TEST_P(Runtime, APeersDeathReachesAWorkerThatCallsItWithItsCause) {
  const auto members = actors(spawn(2));
  ASSERT_TRUE(wait(call(members, kEcho)));
  const ActorId other = members->ids[1];
  const std::string_view body(reinterpret_cast<const char*>(&other), sizeof other);
  EXPECT_EQ(text(call(only(*members, 0), kCallOther, body)), body);
  kill(pid_of(other.node), SIGKILL);
  // Whatever the moment, the answer is the failure, soon; once the notice is there it names the cause.
  std::string why;
  const int64_t deadline = monotonic_ns() + 10'000'000'000;
  do {
    why = text(call(only(*members, 0), kCallOther, body));
  } while (why.find("Killed(sig=9)") == std::string::npos && monotonic_ns() < deadline);
  EXPECT_NE(why.find("Killed(sig=9) (rank 1"), std::string::npos) << why;
}

TEST_P(Runtime, AProgramThatCannotBeRunIsANodeThatGoesDown) {
  if (GetParam().fork_server) GTEST_SKIP() << "exec only";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer makes a fork of a vfork, whose error nobody sees";
#endif
  Host::Launch launch;
  launch.use_fork_server = false;
  launch.argv = {"/no/such/program"};
  launch.label = "rank 0";
  const auto nodes = root_->host().spawn({launch}).value();
  auto members = std::make_shared<Members>();
  members->ids = {{nodes[0], 77}};
  EXPECT_NE(text(call(members, kEcho)).find("could not be started (rank 0): cannot run /no/such/program"),
            std::string::npos);
}

TEST_P(Runtime, AForkedChildIsDeadToItAndHarmsNobody) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(wait(call(members, kEcho)));
  const pid_t child = fork();
  if (child == 0) {
    const bool dead = in_forked_child() && !root_->node().links()[0]->send(Outgoing{FrameHeader{}, {}, {}});
    root_->shutdown(0);
    root_.reset();  // as the end of main() would do
    _exit(dead ? 7 : 1);
  }
  const UniqueFd ended = sys::open_pidfd(child);
  pollfd end{ended.get(), POLLIN, 0};
  const bool in_time = poll(&end, 1, 5000) == 1;
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(in_time && WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(text(call(members, kEcho, "unharmed")), "unharmed");
  EXPECT_EQ(text(call(actors(spawn(1)), kEcho, "a new one")), "a new one");
}

TEST_P(Runtime, ManyAtOnceAndKillsAtAnyMoment) {
  const int count = testing::rounds(64, 24);
  const auto nodes = spawn(count);
  const auto members = actors(nodes);
  auto first = call(members, kEcho);
  for (int i = 0; i < count; i += 5) {
    const ActorId& id = members->ids[static_cast<size_t>(i)];
    kill(pid_of(id.node), SIGKILL);
  }
  auto second = call(members, kEcho);
  ASSERT_TRUE(wait(first));
  ASSERT_TRUE(wait(second));
  for (int i = 0; i < count; ++i) {
    const auto kind = second->reply(static_cast<uint32_t>(i))->header.kind;
    if (i % 5 != 0) {
      EXPECT_EQ(kind, FrameKind::kReply) << reply_text(*second->reply(static_cast<uint32_t>(i)));
    }
  }
}

TEST_P(Runtime, TheForkServersDeathTakesItsWorkersAndFailsTheirCalls) {
  if (!GetParam().fork_server) GTEST_SKIP() << "fork server only";
  const auto members = actors(spawn(2));
  ASSERT_TRUE(wait(call(members, kEcho)));
  std::string stat = "/proc/" + std::to_string(pid_of(members->ids[0].node)) + "/stat";
  FILE* file = fopen(stat.c_str(), "r");
  ASSERT_NE(file, nullptr);
  int pid = 0, parent = 0;
  char name[64], state;
  ASSERT_EQ(fscanf(file, "%d %63s %c %d", &pid, name, &state, &parent), 4);
  fclose(file);
  kill(parent, SIGKILL);
  auto pending = call(members, kCallOther, std::string(sizeof(ActorId), '\0'));
  ASSERT_TRUE(drive_until(root_->driver(), [&] { return call(members, kEcho)->lowest_error() == 0; }));
  ASSERT_TRUE(wait(pending));
  EXPECT_NE(text(call(only(*actors(spawn(1)), 0), kEcho)).find("could not be started"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, Runtime, kEveryVariant, name_of_variant);

}  // namespace
}  // namespace monarch

int main(int argc, char** argv) {
  monarch::testing::run_if_worker(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
