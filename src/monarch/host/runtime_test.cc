// The runtime of a root with workers that are this test binary itself, by exec and by a fork server, over both
// transports; and the connector against peers that mean no good.
#include "monarch/host/runtime.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>

#include "monarch/host/fork_server.h"
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
    ASSERT_EQ(pending->reply(rank)->header.kind, FrameKind::kReply) << pending->reply(rank)->text();
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
  EXPECT_EQ(all->reply(0)->text(), "still here");
  EXPECT_EQ(all->reply(1)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(all->reply(2)->header.kind, FrameKind::kReplyFailed);
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
      EXPECT_EQ(kind, FrameKind::kReply) << second->reply(static_cast<uint32_t>(i))->text();
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

// ---- The connector and its enemies ----

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    identity_.node = 0x1234567;
    fill_random(identity_.job.data(), identity_.job.size());
    fill_random(identity_.token.data(), identity_.token.size());
    connector_ = std::make_unique<Connector>(home_.context(), home_.bell, identity_, Transport::kShm);
    Connector::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> link, bool) {
      std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(link));
    };
    connector_->set_sink(sink_, std::move(events));
    bool listening = false;
    home_.reactor.post_and_wait([&] { listening = connector_->listen().ok(); });
    ASSERT_TRUE(listening);
  }
  void TearDown() override {
    home_.reactor.post_and_wait([&] { connector_->close(); });
    for (auto& link : accepted_) link->close();
    home_.reactor.stop();
    accepted_.clear();
    connector_.reset();
  }
  int dial_raw() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    auto hex = [](const void* data, size_t size) {
      std::string out;
      char pair[3];
      for (size_t i = 0; i < size; ++i) {
        snprintf(pair, sizeof pair, "%02x", static_cast<const unsigned char*>(data)[i]);
        out += pair;
      }
      return out;
    };
    const std::string name =
        "monarch-" + hex(identity_.job.data(), identity_.job.size()) + "-" + hex(&identity_.node, sizeof(NodeId));
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())), 0);
    return fd;
  }
  // Reads until the other side closes.
  static bool closes(int fd, int limit_ms = 5000) {
    char buffer[256];
    for (;;) {
      pollfd poll_fd{fd, POLLIN, 0};
      if (poll(&poll_fd, 1, limit_ms) != 1) return false;
      if (read(fd, buffer, sizeof buffer) <= 0) return true;
    }
  }
  static int lines(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }
  // A good peer still gets through.
  void expect_that_it_lives() {
    testing::Home other;
    Identity peer = identity_;
    peer.node = 0x7654321;
    Connector dialer(other.context(), other.bell, peer, Transport::kShm);
    struct Quiet : LinkSink {
      void on_frame(Link&, MessagePtr) override {}
      void on_control(Link&, MessagePtr) override {}
      void on_closed(Link&, const Error&) override {}
    } quiet;
    dialer.set_sink(quiet, {});
    auto link = dialer.dial(identity_.node);
    Outgoing hello{FrameHeader{}, {}, {}};
    EXPECT_TRUE(link->send(hello));
    const size_t before = sink_.count;
    EXPECT_TRUE(drive_until(*home_.driver, [&] { return sink_.count > before; }));
    other.reactor.post_and_wait([&] { dialer.close(); });
    link->close();
    other.reactor.stop();
  }

  struct Sink : LinkSink {
    void on_frame(Link&, MessagePtr) override { ++count; }
    void on_control(Link&, MessagePtr) override {}
    void on_closed(Link&, const Error&) override {}
    std::atomic<size_t> count{0};
  } sink_;
  testing::Home home_;
  Identity identity_;
  std::unique_ptr<Connector> connector_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> accepted_;
};

TEST_F(Hostile, GarbageIsRefusedWithOneLine) {
  ::testing::internal::CaptureStderr();
  const int fd = dial_raw();
  const std::string garbage(200, 'x');
  ASSERT_GT(write(fd, garbage.data(), garbage.size()), 0);
  EXPECT_TRUE(closes(fd));
  ::close(fd);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines(log), 1) << log;
  EXPECT_NE(log.find("refused a connection"), std::string::npos) << log;
  expect_that_it_lives();
}

TEST_F(Hostile, AWrongTokenIsRefusedWithOneLineThatDoesNotNameIt) {
  ::testing::internal::CaptureStderr();
  HelloIdentity wrong;
  wrong.node = 99;
  wrong.job = identity_.job;
  wrong.token = identity_.token;
  wrong.token[3] ^= static_cast<std::remove_reference_t<decltype(wrong.token[3])>>(1);
  SystemRandom random;
  Handshake hello(HelloRole::kDialer, wrong, random);
  const int fd = dial_raw();
  ASSERT_GT(write(fd, hello.open_bytes().data(), hello.open_bytes().size()), 0);
  std::vector<std::byte> bytes(hello.bytes_wanted());
  ASSERT_EQ(recv(fd, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  auto proof = hello.on_open(bytes);
  ASSERT_TRUE(proof.ok());
  ASSERT_GT(write(fd, proof->data(), proof->size()), 0);
  EXPECT_TRUE(closes(fd));
  ::close(fd);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines(log), 1) << log;
  expect_that_it_lives();
  EXPECT_EQ(accepted_.size(), 1u);  // the good one
}

TEST_F(Hostile, DescriptorsBeforeTheProofAreRefusedAndClosed) {
  ::testing::internal::CaptureStderr();
  const int fd = dial_raw();
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  char byte = 'x';
  iovec iov{&byte, 1};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 6)] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * 6);
  const int fds[6] = {pipe_ends[1], pipe_ends[1], pipe_ends[1], pipe_ends[1], pipe_ends[1], pipe_ends[1]};
  std::memcpy(CMSG_DATA(header), fds, sizeof fds);
  ASSERT_EQ(sendmsg(fd, &message, 0), 1);
  ::close(pipe_ends[1]);
  EXPECT_TRUE(closes(fd));
  ::close(fd);
  EXPECT_TRUE(closes(pipe_ends[0])) << "a copy of the descriptor is held";
  ::close(pipe_ends[0]);
  EXPECT_EQ(lines(::testing::internal::GetCapturedStderr()), 1);
  expect_that_it_lives();
}

TEST_F(Hostile, AnotherUserIsRefusedWithOneLine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(3);
    const int fd = dial_raw();
    _exit(closes(fd) ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  expect_that_it_lives();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines(log), 1) << log;
  EXPECT_NE(log.find("it comes from another user"), std::string::npos) << log;
}

TEST_F(Hostile, SilenceIsEndedAfterItsLimitAndABreakInTheMiddleAtOnce) {
  ::testing::internal::CaptureStderr();
  const int cut_short = dial_raw();
  ASSERT_EQ(write(cut_short, "mona", 4), 4);
  ::close(cut_short);
  if (!testing::short_form()) {
    const int silent = dial_raw();
    EXPECT_TRUE(closes(silent, 8000));
    ::close(silent);
  }
  expect_that_it_lives();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines(log), testing::short_form() ? 1 : 2) << log;
}

TEST_F(Hostile, APeerThatDiesInTheMiddleOfAGoodHelloIsNoNews) {
  ::testing::internal::CaptureStderr();
  HelloIdentity peer;
  peer.node = 99;
  peer.job = identity_.job;
  peer.token = identity_.token;
  SystemRandom random;
  Handshake hello(HelloRole::kDialer, peer, random);
  const auto open = hello.open_bytes();
  const int fd = dial_raw();
  ASSERT_EQ(write(fd, open.data(), open.size()), static_cast<ssize_t>(open.size()));
  ::close(fd);
  expect_that_it_lives();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// ---- The fork server's protocol ----

TEST(ForkServer, ReportsWhatItStartsAndHowThatEnds) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const pid_t server_pid = fork();
  if (server_pid == 0) {
    ::close(pair[0]);
    ForkServer server(pair[1]);
    server.report_ready();
    while (auto request = server.next()) {
      if (request->node == 13) {
        server.report_failed(13, EAGAIN);
        continue;
      }
      const pid_t pid = fork();
      if (pid == 0) {
        char code = 0;
        if (read(request->fds[kFdSocket].get(), &code, 1) != 1) _exit(99);
        if (code == 'k') raise(SIGKILL);
        _exit(code);
      }
      server.report_spawned(request->node, pid);
    }
    _exit(0);
  }
  ::close(pair[1]);
  auto next = [&] {
    ForkReport report;
    pollfd fd{pair[0], POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, 5000), 1);
    EXPECT_EQ(recv(pair[0], &report, sizeof report, 0), static_cast<ssize_t>(sizeof report));
    return report;
  };
  EXPECT_EQ(next().kind, ForkReport::kReady);
  for (const char code : {char(7), 'k'}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
    std::array<int, kFdCount> fds;
    fds.fill(pipe_ends[0]);
    ASSERT_TRUE(send_fork_request(pair[0], 42, fds));
    ForkReport report = next();
    EXPECT_EQ(report.kind, ForkReport::kSpawned);
    EXPECT_EQ(report.node, 42u);
    ASSERT_EQ(write(pipe_ends[1], &code, 1), 1);
    const int pid = report.pid;
    report = next();
    EXPECT_EQ(report.kind, ForkReport::kExited);
    EXPECT_EQ(report.pid, pid);
    EXPECT_EQ(report.code, code == 'k' ? 0 : 7);
    EXPECT_EQ(report.signal, code == 'k' ? SIGKILL : 0);
    std::array<int, kFdCount> more;
    more.fill(pipe_ends[0]);
    ASSERT_TRUE(send_fork_request(pair[0], 13, more));
    report = next();
    EXPECT_EQ(report.kind, ForkReport::kFailed);
    EXPECT_EQ(report.signal, EAGAIN);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
  }
  ::close(pair[0]);
  int status;
  ASSERT_EQ(waitpid(server_pid, &status, 0), server_pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Bootstrap, SurvivesTheWayThroughItsDescriptor) {
  Bootstrap out;
  out.node = 5;
  out.parent = 6;
  out.parent_pid = 7;
  out.transport = "shm";
  out.address = "an address";
  out.payload = std::string(100'000, 'p');
  auto fd = write_bootstrap(out, {1, 2, 3});
  ASSERT_TRUE(fd.ok());
  std::vector<int> numbers;
  auto in = read_bootstrap(fd->get(), &numbers);
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in->node, 5u);
  EXPECT_EQ(in->transport, out.transport);
  EXPECT_EQ(in->address, out.address);
  EXPECT_EQ(in->payload, out.payload);
  EXPECT_EQ(numbers, (std::vector<int>{1, 2, 3}));
  UniqueFd null(open("/dev/null", O_RDONLY));
  EXPECT_FALSE(read_bootstrap(null.get(), &numbers).ok());
}

}  // namespace
}  // namespace monarch

int main(int argc, char** argv) {
  monarch::testing::run_if_worker(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
