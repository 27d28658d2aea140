#include "monarch/base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace monarch {
namespace {

TEST(System, FailsTheCallThatATestAsksFor) {
  sys::fail_nth(2);
  EXPECT_TRUE(sys::make_eventfd());
  EXPECT_FALSE(sys::make_eventfd());
  EXPECT_EQ(errno, EMFILE);
  EXPECT_TRUE(sys::make_eventfd());
  EXPECT_EQ(sys::calls_seen(), 3u);
  sys::fail_nth(0);
}

TEST(System, DescriptorsGoAlongWithAMessageOrAreToldAsLost) {
  UniqueFd ends[2], pipe[2];
  ASSERT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, ends) && sys::make_pipe(pipe));
  const std::vector<int> two{pipe[0].get(), pipe[1].get()};
  std::byte byte{7};
  const auto exchange = [&](uint64_t failing_call, bool* sent) {
    sys::fail_nth(failing_call);
    *sent = sys::send_message(ends[0].get(), {&byte, 1}, two, 0) == 1;
    auto received = sys::receive_message(ends[1].get(), {&byte, 1}, MSG_DONTWAIT);
    sys::fail_nth(0);
    return received;
  };
  bool sent = false;
  auto whole = exchange(0, &sent);
  EXPECT_TRUE(sent && whole.size == 1 && byte == std::byte{7} && !whole.lost);
  ASSERT_EQ(whole.fds.size(), 2u);
  EXPECT_NE(fcntl(whole.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(whole.fds[1].get(), "x", 1), 1);
  char read_back = 0;
  EXPECT_TRUE(read(whole.fds[0].get(), &read_back, 1) == 1 && read_back == 'x');

  auto not_sent = exchange(1, &sent);
  EXPECT_TRUE(!sent && not_sent.size < 0 && errno == EAGAIN);
  auto lost = exchange(2, &sent);
  EXPECT_TRUE(sent && lost.size == 1 && lost.lost && lost.fds.empty());
  EXPECT_EQ(sys::send_message(ends[0].get(), {&byte, 1}, {}, 0), 1);
  auto plain = sys::receive_message(ends[1].get(), {&byte, 1}, MSG_DONTWAIT);
  EXPECT_TRUE(plain.size == 1 && plain.fds.empty() && !plain.lost);
}

TEST(System, SaysHowManyDescriptorsAreInUseAndWhatToDo) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> all;
  while (UniqueFd fd = sys::make_eventfd()) all.push_back(std::move(fd));
  const Error error = sys::shortage_error("make a door bell");
  all.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_EQ(error.message, "cannot make a door bell: out of file descriptors: all 64 in use, raise ulimit -n");
}

TEST(System, RaisesTheSoftLimitWhereItIsNear) {
  const pid_t child = fork();  // what it raises stays raised
  if (child == 0) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max <= 80) _exit(0);
    limit.rlim_cur = 64;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || sys::expect_descriptors(65, "go on").ok()) _exit(1);
    sys::manage_descriptor_limit();
    std::vector<UniqueFd> all;
    for (int i = 0; i < 70; ++i) {
      all.push_back(sys::make_eventfd());
      if (!all.back()) _exit(2);
    }
    if (sys::original_descriptor_limit() != 64) _exit(3);
    limit.rlim_cur = limit.rlim_max = 80;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(4);
    const Status none = sys::expect_descriptors(100, "go on");
    if (none.ok() || none.error().message.find("cannot go on: out of file descriptors: 100 are needed and ") != 0) _exit(5);
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace monarch
