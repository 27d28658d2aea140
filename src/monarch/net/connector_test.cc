// The connector: what becomes of peers that mean no good, and of shortages.
#include "monarch/net/connector.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <ctime>

#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/net/greeting.h"
#include "monarch/net/local/local_socket.h"
#include "monarch/net/shm/shm_transport.h"
#include "monarch/net/transports.h"
#include "monarch/testing/home.h"

namespace monarch {
namespace {

using testing::drive_until;

std::unique_ptr<Connector> connector_of(testing::Home& home, const Identity& identity, Connector::Limits limits = {}) {
  return std::make_unique<Connector>(home.reactor, make_transports(home.context(), home.bell), "shm", identity, limits);
}

// Counts, and remembers the last end.
struct Counts final : LinkSink {
  void on_frame(Link&, MessagePtr) override { ++count; }
  void on_control(Link&, MessagePtr) override {}
  void on_closed(Link&, const Error& why) override {
    code = why.code;
    ++closed;
  }
  std::atomic<size_t> count{0}, closed{0};
  std::atomic<ErrorCode> code{};
};

// Another process of the job, that dials.
struct Other {
  Other(Identity of_job, Random& random, Connector::Limits limits = {}) {
    of_job.key = NodeKey::make(random);
    of_job.node = of_job.key.id();
    connector = connector_of(home, of_job, limits);
    connector->set_sink(sink, {});
  }
  ~Other() {
    home.reactor.post_and_wait([&] { connector->close(); });
    if (link) link->close();
    home.reactor.stop();
  }
  void dial(NodeId node) {
    link = connector->dial(node);
    // Where the limits are short, they may be over before this thread has had its turn.
    EXPECT_TRUE(link->send(Outgoing{FrameHeader{}, {}, {}}) || link->closed());
  }
  testing::Home home;
  Counts sink;
  std::unique_ptr<Connector> connector;
  std::shared_ptr<Link> link;
};

std::string captured_stderr() {
  flush_log();
  return ::testing::internal::GetCapturedStderr();
}

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    identity_.key = NodeKey::make(random_);
    identity_.node = identity_.key.id();
    fill_random(identity_.job.data(), identity_.job.size());
    fill_random(identity_.token.data(), identity_.token.size());
    connector_ = connector_of(home_, identity_);
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
  static int raw_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  int dial_raw() {
    const int fd = raw_socket();
    connect_raw(fd);
    return fd;
  }
  void connect_raw(int fd) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = local_name(identity_.job, identity_.node);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())), 0);
  }
  // Of the job, as far as its token goes.
  HelloIdentity stranger() {
    const NodeKey key = NodeKey::make(random_);
    return {.node = key.id(), .key = key, .job = identity_.job, .token = identity_.token};
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
  void expect_that_it_lives(uint64_t failing_call = 0) {
    Other other(identity_, random_);
    const size_t before = sink_.count;
    const size_t links_before = accepted();
    sys::fail_nth(failing_call);
    other.dial(identity_.node);
    EXPECT_TRUE(drive_until(*home_.driver, [&] { return sink_.count > before; }));
    EXPECT_EQ(other.sink.closed, 0u);
    EXPECT_EQ(accepted(), links_before + 1) << "a link of a dialer that dials again is one that ends";
  }
  size_t accepted() {
    std::lock_guard lock(mutex_);
    return accepted_.size();
  }

  Counts sink_;
  SystemRandom random_;
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
  const std::string log = captured_stderr();
  EXPECT_EQ(lines(log), 1) << log;
  EXPECT_NE(log.find("refused a connection"), std::string::npos) << log;
  expect_that_it_lives();
}

TEST_F(Hostile, AWrongTokenIsRefusedWithOneLineThatDoesNotNameIt) {
  ::testing::internal::CaptureStderr();
  HelloIdentity wrong = stranger();
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
  const std::string log = captured_stderr();
  EXPECT_EQ(lines(log), 1) << log;
  expect_that_it_lives();
  EXPECT_EQ(accepted_.size(), 1u);  // the good one
}

// Members have the token, and guests: that makes nobody the script.
TEST_F(Hostile, WhoSaysThatItIsAnotherNodeIsRefusedAndHarmsNobody) {
  ::testing::internal::CaptureStderr();
  HelloIdentity liar = stranger();
  liar.node = 99;
  Handshake hello(HelloRole::kDialer, liar, random_);
  const int fd = dial_raw();
  ASSERT_GT(write(fd, hello.open_bytes().data(), hello.open_bytes().size()), 0);
  std::vector<std::byte> bytes(hello.bytes_wanted());
  ASSERT_EQ(recv(fd, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  auto proof = hello.on_open(bytes);
  ASSERT_TRUE(proof.ok());
  ASSERT_GT(write(fd, proof->data(), proof->size()), 0);
  EXPECT_TRUE(closes(fd));
  ::close(fd);
  EXPECT_NE(captured_stderr().find("is not the node that it says it is"), std::string::npos);
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(accepted_.empty());
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
  EXPECT_EQ(lines(captured_stderr()), 1);
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
  const std::string log = captured_stderr();
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
  const std::string log = captured_stderr();
  EXPECT_EQ(lines(log), testing::short_form() ? 1 : 2) << log;
}

TEST_F(Hostile, APeerThatDiesInTheMiddleOfAGoodHelloIsNoNews) {
  ::testing::internal::CaptureStderr();
  HelloIdentity peer = stranger();
  SystemRandom random;
  Handshake hello(HelloRole::kDialer, peer, random);
  const auto open = hello.open_bytes();
  const int fd = dial_raw();
  ASSERT_EQ(write(fd, open.data(), open.size()), static_cast<ssize_t>(open.size()));
  ::close(fd);
  expect_that_it_lives();
  EXPECT_EQ(captured_stderr(), "");
}

// Whatever it is that runs short, once, at either end: the link comes about, and nobody is taken for dead.
TEST_F(Hostile, ADialSurvivesEachShortage) {
  ::testing::internal::CaptureStderr();
  uint64_t calls = 1;
  for (uint64_t nth = 0; nth <= calls; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth) + " of " + std::to_string(calls));
    expect_that_it_lives(nth);
    if (nth == 0) calls = sys::calls_seen();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  sys::fail_nth(0);
  EXPECT_GT(calls, 5u);
  EXPECT_NE(captured_stderr().find("out of file descriptors"), std::string::npos);
}

// A dialer that is stopped in the middle of its hello finds, when it goes on, that the acceptor has dropped it.
TEST_F(Hostile, AConnectionThatEndsBeforeThereIsALinkIsMadeAnew) {
  Identity peer = identity_;
  peer.key = NodeKey::make(random_);
  peer.node = peer.key.id();
  testing::Home home;
  auto answerer = connector_of(home, peer);
  Connector::Events events;
  events.on_accepted = [&](std::shared_ptr<Link> link, bool) {
    std::lock_guard lock(mutex_);
    accepted_.push_back(std::move(link));
  };
  answerer->set_sink(sink_, std::move(events));
  ShmTransport transport(home.context(), home.bell);
  UniqueFd listener = transport.listen(peer.job, peer.node).value();
  Other dialer(identity_, random_);
  dialer.dial(peer.node);
  for (const bool silent : {true, false}) {
    pollfd ready{listener.get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 20'000), 1);
    UniqueFd socket = sys::accept(listener.get());
    ASSERT_TRUE(socket);
    if (silent) continue;
    SystemRandom random;
    Handshake hello(HelloRole::kAcceptor, {.node = peer.node, .key = peer.key, .job = peer.job, .token = peer.token},
                    random);
    ASSERT_GT(write(socket.get(), hello.open_bytes().data(), hello.open_bytes().size()), 0);
  }
  bool listening = false;
  home.reactor.post_and_wait([&] { listening = answerer->listen(std::move(listener)).ok(); });
  ASSERT_TRUE(listening);
  EXPECT_TRUE(drive_until(*home.driver, [&] { return sink_.count == 1; }));
  EXPECT_EQ(dialer.sink.closed, 0u);
  home.reactor.post_and_wait([&] { answerer->close(); });
  for (auto& link : accepted_) link->close();
  home.reactor.stop();
  accepted_.clear();
}

// Stopped, perhaps. What waits for it ends, the peer does not.
TEST_F(Hostile, APeerThatDoesNotAnswerIsUnreachableAndNotDead) {
  ShmTransport transport(home_.context(), home_.bell);
  const NodeId silent = 77;
  UniqueFd listener = transport.listen(identity_.job, silent).value();
  Other dialer(identity_, random_, {.dial_ns = 80'000'000});
  dialer.dial(silent);
  ASSERT_TRUE(drive_until(*dialer.home.driver, [&] { return dialer.sink.closed == 1; }));
  EXPECT_EQ(dialer.sink.code, ErrorCode::kUnavailable);
  listener.reset();
  dialer.dial(silent);
  ASSERT_TRUE(drive_until(*dialer.home.driver, [&] { return dialer.sink.closed == 2; }));
  EXPECT_EQ(dialer.sink.code, ErrorCode::kClosed) << "nobody listens there any more";
}

// Whoever is proved and has been answered may take its time, as a process does that is stopped before it says that it has
// all. It keeps nobody else from being heard.
TEST_F(Hostile, ADialerThatIsStoppedBeforeItsLastWordIsNoLinkYetAndHasNoLimit) {
  testing::Home home;
  Identity peer = identity_;
  peer.key = NodeKey::make(random_);
  peer.node = peer.key.id();
  auto acceptor = connector_of(home, peer, {.accept_ns = 200'000'000});
  std::atomic<int> links = 0;
  std::shared_ptr<Link> link;
  Connector::Events events;
  events.on_accepted = [&](std::shared_ptr<Link> made, bool) {
    link = std::move(made);
    ++links;
  };
  acceptor->set_sink(sink_, std::move(events));
  home.reactor.post_and_wait([&] { EXPECT_TRUE(acceptor->listen().ok()); });

  ShmTransport transport(home_.context(), home_.bell);
  bool busy = false;
  Identity as = identity_;
  auto channel = transport.connect(as, peer.node, &busy).value();
  auto setup = transport.new_setup();
  std::optional<Greeting> greeting;
  std::atomic<bool> agreed = false, ended = false;
  Greeting::Events on;
  on.on_proved = [&](const HelloPeer&) { EXPECT_TRUE(greeting->send(transport.code(), setup->offer().value())); };
  on.on_setup = [&](char byte, std::vector<UniqueFd> fds, bool) {
    EXPECT_EQ(byte, kSetupAgreed);
    EXPECT_TRUE(setup->agree(std::move(fds)).ok());
    greeting->lift_limit();
    agreed = true;
  };
  on.on_end = [&](const Error&, bool) { ended = true; };
  home_.reactor.post_and_wait([&] {
    greeting.emplace(home_.reactor, std::move(channel), HelloRole::kDialer, as, random_, 20'000'000'000, std::move(on));
    greeting->begin();
  });
  ASSERT_TRUE(drive_until(*home_.driver, [&] { return agreed.load(); }));
  // A stranger who says nothing has its limit, and comes later.
  auto silent = transport.connect(as, peer.node, &busy).value();
  EXPECT_TRUE(closes(silent->fd()));
  EXPECT_EQ(links, 0);
  EXPECT_FALSE(ended);
  home_.reactor.post_and_wait([&] { EXPECT_TRUE(greeting->send(kSetupDone, {})); });
  EXPECT_TRUE(drive_until(*home_.driver, [&] { return links == 1; }));
  home_.reactor.post_and_wait([&] { greeting.reset(); });
  home.reactor.post_and_wait([&] { acceptor->close(); });
  link->close();
  home.reactor.stop();
}

// It has as many links as it can have. That is told before there is one that would have to end.
TEST_F(Hostile, WhoHasNoPlaceForAnotherLinkSaysSoAndIsDialledLater) {
  struct Idle final : Pollable {
    bool poll() override { return false; }
  } idle;
  std::vector<uint32_t> all;
  for (uint32_t index; (index = home_.driver->add(idle)) != kBellRings;) all.push_back(index);
  ShmTransport full(home_.context(), home_.bell);
  EXPECT_EQ(full.new_setup()->offer().error().code, ErrorCode::kUnavailable);
  testing::Home elsewhere;
  {
    ShmTransport dialer(elsewhere.context(), elsewhere.bell);
    auto offering = dialer.new_setup();
    auto offer = offering->offer();
    ASSERT_TRUE(offer.ok());
    std::vector<UniqueFd> fds;
    for (const int fd : *offer) fds.push_back(sys::duplicate(fd));
    EXPECT_EQ(full.new_setup()->accept(std::move(fds)).error().code, ErrorCode::kUnavailable);
    Counts unused;
    auto link = full.new_link(unused, 5);
    EXPECT_EQ(full.start_to_child(*link).error().code, ErrorCode::kUnavailable);
    link->close();
  }
  elsewhere.reactor.stop();
  home_.driver->remove(all.back());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(full.new_setup()->offer().ok()) << "one that was given up is free again";
  expect_that_it_lives();
  all.pop_back();
  for (const uint32_t index : all) home_.driver->remove(index);
}

// A connection that cannot be accepted stays in the kernel's queue: who looks at it again at once looks for ever.
TEST_F(Hostile, WithoutDescriptorsTheListenerWaits) {
  ::testing::internal::CaptureStderr();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int waiting = raw_socket();
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(waiting);  // every number up to it is taken
  std::vector<UniqueFd> all;
  for (;;) {
    UniqueFd filler(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!filler || filler.get() > waiting) break;
    all.push_back(std::move(filler));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  connect_raw(waiting);
  const clock_t start = clock();
  EXPECT_FALSE(closes(waiting, 300));
  EXPECT_LT(clock() - start, CLOCKS_PER_SEC / 10);
  all.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  ::close(waiting);
  expect_that_it_lives();
  const std::string said = captured_stderr();
  EXPECT_NE(said.find("cannot accept a connection: out of file descriptors"), std::string::npos) << said;
}

}  // namespace
}  // namespace monarch
