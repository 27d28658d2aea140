#include "monarch/host/start/warm_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr int kLimitMs = 5000;

bool is_readable(int fd, int limit_ms) {
  pollfd readable{fd, POLLIN, 0};
  return poll(&readable, 1, limit_ms) == 1;
}

// A shell is in the server's place.
class WarmServers : public ::testing::Test {
 protected:
  void start(const std::string& script) {
    UniqueFd writes;
    {
      UniqueFd ends[2];
      ASSERT_TRUE(sys::make_pipe(ends));
      alive_ = std::move(ends[0]);
      writes = std::move(ends[1]);
    }
    ProcessSpec command;
    command.argv = {"/bin/sh", "-c", script};
    command.stdout_fd = writes.get();
    command.death_signal = SIGTERM;
    warm_ = WarmServer::start(command, clock_, [this](pid_t) { alive_.reset(); });
    ASSERT_TRUE(warm_);
    holder_ = warm_.holder();
  }
  Process take() {
    auto server = warm_.started();
    if (!server) return {};
    socket_ = warm_.take_socket();
    line_ = warm_.take_line();
    return std::move(*server);
  }
  bool all_have_ended() { return is_readable(alive_.get(), kLimitMs); }
  void TearDown() override {
    warm_ = {};
    line_.reset();
    if (holder_ > 0) {
      EXPECT_EQ(waitpid(holder_, nullptr, 0), holder_);
    }
  }

  SystemClock clock_;
  UniqueFd alive_;  // ends when the holder, the server and all that they have left have ended
  WarmServer warm_;
  UniqueFd socket_, line_;
  pid_t holder_ = -1;
};

// Whoever has the line: a daemon that does not want it any more, or a host that ends.
TEST_F(WarmServers, EndWithTheirLineAndWithAllThatTheyHaveLeft) {
  start("setsid sleep 1000 & setsid sh -c 'sleep 1000; :' & wait");
  const Process server = take();
  ASSERT_GT(server.pid, 0);
  EXPECT_FALSE(is_readable(alive_.get(), 20));
  line_.reset();
  EXPECT_TRUE(all_have_ended()) << "somebody lives";
}

TEST_F(WarmServers, EndThoughTheyAreStopped) {
  start("kill -STOP $$; sleep 1000");
  const Process server = take();
  ASSERT_GT(server.pid, 0);
  line_.reset();
  EXPECT_TRUE(all_have_ended());
}

TEST_F(WarmServers, TellHowTheyHaveEnded) {
  start("sleep 1000 & wait");
  const Process server = take();
  ASSERT_GT(server.pid, 0);
  signal_process(server, SIGUSR1);
  ASSERT_TRUE(is_readable(server.pidfd.get(), kLimitMs));
  ASSERT_TRUE(is_readable(line_.get(), kLimitMs));
  const auto status = WarmServer::read_end(line_.get());
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->known);
  EXPECT_EQ(status->signal, SIGUSR1);
}

TEST_F(WarmServers, ThatLiveHaveNotEnded) {
  start("sleep 1000");
  ASSERT_GT(take().pid, 0);
  EXPECT_FALSE(WarmServer::read_end(line_.get()).has_value());
}

// Who wanted it starts one himself.
TEST_F(WarmServers, ThatHaveEndedAreNotTaken) {
  start("echo $$; exit 3");
  char said[16] = {};
  ASSERT_TRUE(is_readable(alive_.get(), kLimitMs));
  ASSERT_GT(read(alive_.get(), said, sizeof said - 1), 0);
  const UniqueFd server = sys::open_pidfd(std::atoi(said));  // nobody reaps it yet
  ASSERT_TRUE(is_readable(server.get(), kLimitMs));
  EXPECT_EQ(take().pid, -1);
}

TEST_F(WarmServers, WhoseHolderWasKilledAreGone) {
  start("exec sleep 1000");
  const Process server = take();
  ASSERT_GT(server.pid, 0);
  kill(holder_, SIGKILL);
  ASSERT_TRUE(is_readable(server.pidfd.get(), kLimitMs));
  ASSERT_TRUE(is_readable(line_.get(), kLimitMs));
  const auto status = WarmServer::read_end(line_.get());
  ASSERT_TRUE(status.has_value());
  EXPECT_FALSE(status->known);
}

}  // namespace
}  // namespace monarch
