// monarch-hostd as a program, and a script that attaches to it. What it starts is this test program.
#include "monarch/host/hostd.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>

#include "monarch/host/membership/token_file.h"
#include "monarch/testing/runtime_fixture.h"
#include "monarch/wire/value_codec.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

ByteSpan span_of(const std::string& bytes) { return as_byte_span(bytes.data(), bytes.size()); }

constexpr int kLimitMs = 20'000;

bool ends_within(int pidfd, int limit_ms) {
  pollfd ended{pidfd, POLLIN, 0};
  return poll(&ended, 1, limit_ms) == 1;
}

HostdAddress at(std::string path, std::string token_file) {
  HostdAddress address;
  address.path = std::move(path);
  address.token_file = std::move(token_file);
  return address;
}

class Hostd : public RuntimeFixture {
 protected:
  void SetUp() override {
    RuntimeFixture::SetUp();
    char made[] = "/tmp/monarch-hostd-test-XXXXXX";
    folder_ = mkdtemp(made);
    address_ = at(folder_ + "/socket", folder_ + "/token");
    ASSERT_TRUE(start_daemon());
  }
  void TearDown() override {
    RuntimeFixture::TearDown();
    end_daemon(SIGTERM);
    unlink(address_.token_file.c_str());
    unlink(address_.path.c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << "something is left in " << folder_;
  }

  // Whether it is there.
  bool start_daemon() {
    UniqueFd defaults[2], out[2];
    MONARCH_CHECK(sys::make_pipe(defaults) && sys::make_pipe(out));
    LaunchDefaults given = defaults_of_test();
    given.interpreter = given.forkable = program();
    given.fork_server[0] = program();
    if (!GetParam().fork_server) given.fork_server.clear();
    ProcessSpec spec;
    spec.argv = {MONARCH_HOSTD_PROGRAM, "ipc://" + address_.path, "--token-file", address_.token_file, "--defaults",
                 std::to_string(defaults[0].get())};
    spec.env = environment();
    spec.keep_fds = {defaults[0].get()};
    spec.stdout_fd = out[1].get();
    daemon_ = start_process(spec).value();
    out[1].reset();
    const std::string text = encode(given);
    MONARCH_CHECK(write(defaults[1].get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    defaults[1].reset();
    char line[256];
    return read(out[0].get(), line, sizeof line) > 0;
  }
  // Its exit status.
  ExitStatus end_daemon(int signal) {
    if (daemon_.pid < 0) return {};
    signal_process(daemon_, signal);
    EXPECT_TRUE(ends_within(daemon_.pidfd.get(), kLimitMs));
    const ExitStatus status = reap(daemon_);
    daemon_ = {};
    return status;
  }
  static std::string program() {
    char path[4096];
    const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
    return std::string(path, static_cast<size_t>(size));
  }

  NodeId attach() { return attach_from(*root_, address_); }
  static NodeId attach_from(ProcessRuntime& client, const HostdAddress& address) {
    Launch launch;
    launch.is_host = true;
    launch.hostd = address;
    launch.label = "the host";
    return client.host().spawn({launch}).value()[0];
  }
  std::vector<NodeId> start_on(ProcessRuntime& client, NodeId host, int count) {
    LaunchOrder order;
    order.mesh = 1;
    for (int i = 0; i < count; ++i) order.launches.emplace_back().label = "rank " + std::to_string(i);
    const std::string bytes = encode(order);
    const auto call = Agent::ask(client.node(), {host}, Agent::kStart, span_of(bytes), "a test");
    drive_until(client.driver(), [&] { return call->complete(); });
    if (!call->complete() || call->reply(0)->header.kind != FrameKind::kReply) {
      ADD_FAILURE() << (call->complete() ? reply_text(*call->reply(0)) : "no answer");
      return {};
    }
    auto nodes = decode<std::vector<NodeId>>(call->reply(0)->body).value();
    client.note_hosted(host, nodes);
    return nodes;
  }
  std::string why_not(NodeId host) {
    const auto asked = Agent::ask(root_->node(), {host}, Agent::kIsThere, {}, "a test");
    if (!wait(asked)) return "no answer";
    return asked->lowest_error() < 0 ? "" : text(asked);
  }
  pid_t tell_pid(const std::shared_ptr<const Members>& members, uint32_t rank) {
    const auto asked = call(only(*members, rank), kTellPid);
    int32_t pid = 0;
    if (wait(asked) && asked->reply(0)->body.size() == sizeof pid) {
      std::memcpy(&pid, asked->reply(0)->body.data(), sizeof pid);
    }
    return pid;
  }
  UniqueFd watch(const std::shared_ptr<const Members>& members, uint32_t rank) {
    return sys::open_pidfd(tell_pid(members, rank));
  }
  UniqueFd dial() const {
    sockaddr_un address;
    const socklen_t size = socket_address(address_.path, address).value();
    UniqueFd socket = sys::make_socket(AF_UNIX, SOCK_SEQPACKET);
    MONARCH_CHECK(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    return socket;
  }

  std::string folder_;
  HostdAddress address_;
  Process daemon_;
};

INSTANTIATE_TEST_SUITE_P(Variants, Hostd, ::testing::Values(Variant{"shm", false}, Variant{"shm", true}),
                         name_of_variant);

TEST_P(Hostd, StartsProcessesForWhoAttaches) {
  const NodeId host = attach();
  const auto members = actors(start_on(*root_, host, 3));
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(text(call(members, kEcho, "hello"), rank), "hello");
  EXPECT_NE(pid_of(host), getpid());
}

TEST_P(Hostd, SiblingsOnTwoHostsReachEachOther) {
  const NodeId first = attach(), second = attach();
  const auto here = actors(start_on(*root_, first, 1)), there = actors(start_on(*root_, second, 1));
  const std::string target(reinterpret_cast<const char*>(&there->ids[0]), sizeof(ActorId));
  EXPECT_EQ(text(call(here, kCallOther, target)).size(), sizeof(ActorId));
}

// What a client leaves the next one does not find: neither processes, nor what they have started.
TEST_P(Hostd, OutlivesItsClientsAndEndsWhatTheyOwned) {
  std::vector<UniqueFd> ended;
  for (int client = 0; client < 2; ++client) {
    const auto members = actors(start_on(*root_, attach(), 2));
    ended.push_back(watch(members, 0));
    ended.push_back(watch(members, 1));
    root_->shutdown(0);
    for (const UniqueFd& each : ended) EXPECT_TRUE(ends_within(each.get(), kLimitMs));
    RuntimeFixture::SetUp();
  }
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, AHostThatDiesIsTheCauseOfItsProcesses) {
  const NodeId host = attach();
  const auto members = actors(start_on(*root_, host, 1));
  const UniqueFd worker = watch(members, 0);
  const auto pending = call(members, kNeverAnswer);
  kill(pid_of(host), SIGKILL);
  EXPECT_NE(text(pending).find("the host of"), std::string::npos) << text(pending);
  EXPECT_TRUE(ends_within(worker.get(), kLimitMs));
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, SigtermEndsAllOfIt) {
  const NodeId host = attach();
  const auto members = actors(start_on(*root_, host, 1));
  const UniqueFd worker = watch(members, 0);
  const ExitStatus status = end_daemon(SIGTERM);
  EXPECT_TRUE(status.known && status.code == 0 && status.signal == 0) << describe(status);
  EXPECT_TRUE(ends_within(worker.get(), 0));
  EXPECT_TRUE(drive_until(root_->driver(), [&] { return root_->node().is_down(host); }));
  EXPECT_NE(access(address_.path.c_str(), F_OK), 0);
}

TEST_P(Hostd, KilledItLeavesNothingAndCanBeStartedAgain) {
  const NodeId host = attach();
  const auto members = actors(start_on(*root_, host, 1));
  const UniqueFd worker = watch(members, 0);
  end_daemon(SIGKILL);
  EXPECT_TRUE(ends_within(worker.get(), kLimitMs));
  EXPECT_TRUE(drive_until(root_->driver(), [&] { return root_->node().is_down(host); }));
  ASSERT_TRUE(start_daemon());  // over the socket that was left
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, AClientMayOrderItsEnd) {
  const NodeId host = attach();
  const auto asked = Agent::ask(root_->node(), {host}, Agent::kEnd, {}, "a test");
  ASSERT_TRUE(wait(asked));
  EXPECT_TRUE(ends_within(daemon_.pidfd.get(), kLimitMs));
}

TEST_P(Hostd, IsSmall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer is not";
#endif
  const NodeId host = attach();
  ASSERT_EQ(start_on(*root_, host, 1).size(), 1u);
  for (const pid_t pid : {daemon_.pid, pid_of(host)}) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    long kib = -1;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) kib = std::atol(line.c_str() + 6);
    }
    EXPECT_GT(kib, 0);
    EXPECT_LT(kib, 10 << 10);
    RecordProperty(pid == daemon_.pid ? "daemon_kib" : "host_kib", static_cast<int>(kib));
    std::printf("%s: %ld KiB\n", pid == daemon_.pid ? "daemon" : "host", kib);
  }
}

// ---- The fork server of the next client ----

class WarmHostd : public Hostd {
 protected:
  // A client comes and goes.
  void serve_one() {
    ASSERT_EQ(start_on(*root_, attach(), 1).size(), 1u);
    root_->shutdown(0);
    RuntimeFixture::SetUp();
  }
  static std::vector<pid_t> children_of(pid_t parent) {
    std::ifstream list("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
    std::vector<pid_t> found;
    for (pid_t pid; list >> pid;) found.push_back(pid);
    return found;
  }
  static bool is_fork_server(pid_t pid) {
    std::ifstream command("/proc/" + std::to_string(pid) + "/cmdline");
    std::string text;
    std::getline(command, text);
    return text.find("--fork-server") != text.npos;
  }
  // The one that waits. That of a host is the grandchild of a keeper.
  pid_t await_warm() {
    for (SystemClock clock; clock.now_ns() < limit_ns_; poll(nullptr, 0, 1)) {
      for (const pid_t holder : children_of(daemon_.pid)) {
        for (const pid_t server : children_of(holder)) {
          if (is_fork_server(server)) return server;
        }
      }
    }
    return -1;
  }
  pid_t parent_of(const std::shared_ptr<const Members>& members) {
    const pid_t pid = tell_pid(members, 0);
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    return std::atoi(text.c_str() + text.rfind(')') + 4);
  }
  int64_t limit_ns_ = SystemClock().now_ns() + kLimitMs * int64_t{1'000'000};
};

INSTANTIATE_TEST_SUITE_P(Variants, WarmHostd, ::testing::Values(Variant{"shm", true}), name_of_variant);

TEST_P(WarmHostd, IsThereWhenSomebodyHasGone) {
  serve_one();
  const pid_t warm = await_warm();
  ASSERT_GT(warm, 0);
  const NodeId host = attach();
  const auto members = actors(start_on(*root_, host, 1));
  EXPECT_EQ(text(call(members, kEcho, "hello")), "hello");
  EXPECT_EQ(parent_of(members), warm);
  const UniqueFd worker = watch(members, 0), server = sys::open_pidfd(warm);
  kill(pid_of(host), SIGKILL);
  EXPECT_TRUE(ends_within(worker.get(), kLimitMs));
  EXPECT_TRUE(ends_within(server.get(), kLimitMs));
}

TEST_P(WarmHostd, IsNotTakenWhenItHasDied) {
  serve_one();
  const pid_t warm = await_warm();
  ASSERT_GT(warm, 0);
  const UniqueFd server = sys::open_pidfd(warm);
  kill(warm, SIGKILL);
  EXPECT_TRUE(ends_within(server.get(), kLimitMs));
  EXPECT_EQ(text(call(actors(start_on(*root_, attach(), 1)), kEcho, "hello")), "hello");
}

TEST_P(WarmHostd, IsTheCauseWhenItDiesLater) {
  serve_one();
  const pid_t warm = await_warm();
  ASSERT_GT(warm, 0);
  const auto members = actors(start_on(*root_, attach(), 1));
  ASSERT_EQ(parent_of(members), warm);
  const auto pending = call(members, kNeverAnswer);
  kill(warm, SIGKILL);
  EXPECT_NE(text(pending).find("the fork server died"), std::string::npos) << text(pending);
}

TEST_P(WarmHostd, EndsWithItsDaemon) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    serve_one();
    const pid_t warm = await_warm();
    ASSERT_GT(warm, 0);
    const UniqueFd server = sys::open_pidfd(warm);
    end_daemon(signal);
    EXPECT_TRUE(ends_within(server.get(), kLimitMs));
    ASSERT_TRUE(start_daemon());
  }
}

// ---- Who is not let in ----

TEST_P(Hostd, AClientWithoutTheTokenIsRefused) {
  const std::string other = folder_ + "/other";
  ASSERT_TRUE(read_or_make_token_file(other).ok());
  const NodeId host = attach_from(*root_, at(address_.path, other));
  EXPECT_NE(why_not(host).find("cannot be attached to"), std::string::npos) << why_not(host);
  unlink(other.c_str());
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, AHostThatIsNotThereIsNamed) {
  const NodeId host = attach_from(*root_, at(address_.path, folder_ + "/no-token"));
  EXPECT_NE(why_not(host).find("ipc://" + address_.path), std::string::npos) << why_not(host);
}

TEST_P(Hostd, NobodyIsServedBeforeItHasProvedItself) {
  UniqueFd silent = dial();  // slow, for as long as this lasts
  UniqueFd random = dial();
  std::byte open[kHelloOpenBytes];
  ASSERT_EQ(recv(random.get(), open, sizeof open, 0), static_cast<ssize_t>(sizeof open));
  ASSERT_EQ(send(random.get(), "nonsense", 8, 0), 8);
  EXPECT_EQ(recv(random.get(), open, sizeof open, 0), 0);  // closed
  UniqueFd eager = dial();
  const NodeId node = 1;
  ASSERT_EQ(recv(eager.get(), open, sizeof open, 0), static_cast<ssize_t>(sizeof open));
  ASSERT_EQ(send(eager.get(), &node, sizeof node, 0), static_cast<ssize_t>(sizeof node));  // as to a fork server
  EXPECT_EQ(recv(eager.get(), open, sizeof open, 0), 0);
  EXPECT_EQ(why_not(attach()), "");
}

// More than are listened to at a time, who stay and say nothing.
TEST_P(Hostd, ACrowdOfStrangersKeepsNobodyOut) {
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < HostDaemon::kStrangersMax + 16; ++i) crowd.push_back(dial());
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, ASecondOneAtTheSamePlaceDoesNotStart) {
  Process first = std::move(daemon_);
  EXPECT_FALSE(start_daemon());
  const ExitStatus status = reap(daemon_);
  EXPECT_EQ(status.code, 1);
  daemon_ = std::move(first);
  EXPECT_EQ(why_not(attach()), "");
}

TEST_P(Hostd, WhatItMakesIsForItsUserOnly) {
  struct stat info;
  for (const std::string& path : {address_.path, address_.token_file}) {
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << path;
  }
}

}  // namespace
}  // namespace monarch
