// What a process does when one system call, any one, fails for want of something: it waits that out, takes another
// way, or tells whoever wanted what could not be done. It hangs on nothing, and takes nobody for dead. (Those of a
// guest's visit are in guests_test.cc, of one link or dial in testing and net; tests/python/test_shortage_sweeps.py
// goes through Python.)
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>

#include "monarch/base/system.h"
#include "monarch/testing/runtime_fixture.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

size_t open_descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd"), end;
  return static_cast<size_t>(std::distance(begin, end));
}

class Shortages : public RuntimeFixture {
 protected:
  static constexpr uint64_t kCallsMax = 500;

  // Tries each call, or some of them, until `trial` says that it has seen fewer. A trial has a script of its own, and
  // leaves no process and no descriptor.
  void sweep(const std::function<uint64_t(uint64_t nth)>& trial) {
    size_t before = 0;
    const uint64_t step = short_form() ? 7 : 1;
    bool reached = true;  // the call that was to fail
    for (uint64_t nth = 1; reached; nth += step) {
      SCOPED_TRACE("call " + std::to_string(nth));
      ASSERT_LT(nth, kCallsMax);
      reached = trial(nth) >= nth;
      sys::fail_nth(0);
      if (root_) root_->shutdown(1'000'000'000);
      root_.reset();
      EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD) << "a process is left";
      if (before == 0) before = open_descriptors();
      EXPECT_EQ(open_descriptors(), before);
      if (HasFailure()) return;
      SetUp();
    }
  }
  // Each has answered, or its failure is told as a shortage.
  void expect_answers(const std::shared_ptr<PendingCall>& pending, std::string_view body) {
    ASSERT_TRUE(wait(pending));
    for (uint32_t rank = 0; rank < pending->members().ids.size(); ++rank) {
      const std::string text = reply_text(*pending->reply(rank));
      EXPECT_TRUE(text == body || names_shortage(text)) << text.substr(0, 1000);
    }
  }
  void expect_use(const std::vector<NodeId>& nodes) { expect_answers(call(actors(nodes), kEcho, "used"), "used"); }
  void expect_life(const std::shared_ptr<const Members>& members) {
    ASSERT_EQ(text(call(members, kEcho, "lives")), "lives");
  }
  bool stopped(const std::vector<NodeId>& nodes, int64_t grace_ns) {
    std::atomic<bool> done{false};
    root_->host().stop(nodes, "enough", grace_ns, [&] { done = true; });
    return drive_until(root_->driver(), [&] { return done.load(); });
  }
  // Slabs, new segments of the arena, and more small ones at once than a ring takes.
  void expect_large(const std::shared_ptr<const Members>& members) {
    const std::string large(3 << 20, 'x'), small(8 << 10, 'y');
    std::vector<std::shared_ptr<PendingCall>> calls;
    int refused = 0;
    for (int i = 0; i < 204; ++i) {
      try {
        calls.push_back(i < 4 ? call_from(*root_, members, kEcho, "large", large) : call(members, kEcho, small));
      } catch (const std::bad_alloc&) {  // no memory for this one, in this process
        ++refused;
      }
    }
    for (const auto& each : calls) {
      ASSERT_TRUE(wait(each));
      const std::string text = reply_text(*each->reply(0));
      if (text.find("memory") != std::string::npos) {
        ++refused;
      } else if (text != small) {
        ASSERT_EQ(text, "large");
        ASSERT_TRUE(has_part(*each->reply(0), large));
      }
    }
    EXPECT_LE(refused, 1) << "one call has failed, and it cost one message at most";
  }
  void fail_in(const std::shared_ptr<const Members>& members, uint64_t nth) {
    ASSERT_TRUE(wait(call(members, kFailNthCall, {reinterpret_cast<const char*>(&nth), sizeof nth})));
  }
  // Of a worker; 0: it does not live.
  uint64_t seen_in(const std::shared_ptr<const Members>& members) {
    auto counted = call(members, kCallsSeen);
    uint64_t seen = 0;
    if (!wait(counted) || counted->reply(0)->header.kind != FrameKind::kReply) return seen;
    std::memcpy(&seen, counted->reply(0)->body.data(), sizeof seen);
    return seen;
  }
};

TEST_P(Shortages, AScriptStartsOrSaysWhatItIsShortOf) {
  root_->shutdown(0);
  root_.reset();
  sweep([&](uint64_t nth) {
    if (root_) root_->shutdown(0);
    root_.reset();
    ProcessRuntime::Options options;
    options.transport = GetParam().transport;
    sys::fail_nth(nth);
    auto made = ProcessRuntime::make_root(std::move(options));
    const uint64_t seen = sys::calls_seen();
    sys::fail_nth(0);
    if (!made) {
      EXPECT_TRUE(names_shortage(made.error().message)) << made.error().message;
    } else {
      (*made)->shutdown(0);
    }
    return seen;
  });
}

TEST_P(Shortages, ASpawnAndItsStop) {
  sweep([&](uint64_t nth) {
    sys::fail_nth(nth);
    auto nodes = root_->host().spawn(launches(2));
    if (nodes) {
      expect_use(*nodes);
      EXPECT_TRUE(stopped(*nodes, 5'000'000'000));
    } else {
      EXPECT_TRUE(names_shortage(nodes.error().message)) << nodes.error().message;
    }
    const uint64_t seen = sys::calls_seen();
    sys::fail_nth(0);
    start_fork_server();
    expect_life(actors(spawn(1)));
    return seen;
  });
}

// That somebody else starts: here the test.
TEST_P(Shortages, OneThatIsAwaited) {
  if (GetParam().fork_server) GTEST_SKIP() << "no fork server has to do with it";
  sweep([&](uint64_t nth) {
    auto wanted = launches(1);
    wanted[0].is_awaited = true;
    sys::fail_nth(nth);
    pid_t pid = -1;
    auto nodes = root_->host().spawn(wanted);
    if (nodes) {
      const NodeId node = nodes->at(0);
      const std::string door = root_->host().door_path(), address = launch_door_address(door, node);
      const auto decided = [&] { return access(door.c_str(), F_OK) == 0 || root_->node().is_down(node); };
      EXPECT_TRUE(drive_until(root_->driver(), decided));
      pid = fork();
      if (pid == 0) {
        execl("/proc/self/exe", "test", "--door", address.c_str(), nullptr);
        _exit(100);
      }
      expect_use(*nodes);
      EXPECT_TRUE(stopped(*nodes, 5'000'000'000));
    } else {
      EXPECT_TRUE(names_shortage(nodes.error().message)) << nodes.error().message;
    }
    const uint64_t seen = sys::calls_seen();
    sys::fail_nth(0);
    if (pid > 0) waitpid(pid, nullptr, 0);
    return seen;
  });
}

TEST_P(Shortages, ALargeArgument) {
  sweep([&](uint64_t nth) {
    const auto members = actors(spawn(1));
    expect_life(members);
    sys::fail_nth(nth);
    expect_large(members);
    return sys::calls_seen();
  });
}

TEST_P(Shortages, ALargeArgumentInItsReceiver) {
  sweep([&](uint64_t nth) {
    const auto members = actors(spawn(1));
    fail_in(members, nth);
    expect_large(members);
    return seen_in(members);
  });
}

TEST_P(Shortages, AStopAndTheEndOfTheScript) {
  sweep([&](uint64_t nth) {
    auto wanted = launches(3);
    for (Host::Launch& each : wanted) each.tail_lines = 5;
    const auto nodes = root_->host().spawn(wanted).value();
    const auto members = actors(nodes);
    EXPECT_TRUE(wait(call(members, kEcho)));
    EXPECT_TRUE(wait(call(only(*members, 1), kIgnoreStop)));
    sys::fail_nth(nth);
    const std::string why = text(call(only(*members, 2), kExit, "\5"));
    EXPECT_NE(why.find("exited with non-zero code 5 (rank 2"), std::string::npos) << why;
    EXPECT_TRUE(stopped({nodes[0], nodes[1]}, 10'000'000));
    EXPECT_EQ(text(call(only(*members, 0), kEcho)), "stopped: enough");
    root_->shutdown(1'000'000'000);
    return sys::calls_seen();
  });
}

// In the worker, or in the fork server and what it forks.
TEST_P(Shortages, AWorkersStart) {
  sweep([&](uint64_t nth) {
    const std::string setting = "MONARCH_TEST_FAIL_NTH=" + std::to_string(nth);
    auto wanted = launches(1);
    wanted[0].tail_lines = 5;
    if (GetParam().fork_server) {
      root_->shutdown(0);
      setenv("MONARCH_TEST_FAIL_NTH", std::to_string(nth).c_str(), 1);
      SetUp();
      unsetenv("MONARCH_TEST_FAIL_NTH");
    } else {
      wanted[0].env.push_back(setting);
    }
    const auto members = actors(root_->host().spawn(wanted).value());
    expect_answers(call(members, kEcho, "used"), "used");
    const uint64_t seen = seen_in(members);
    return seen == 0 ? nth : seen;
  });
}

INSTANTIATE_TEST_SUITE_P(All, Shortages, kEveryVariant, name_of_variant);

}  // namespace
}  // namespace monarch
