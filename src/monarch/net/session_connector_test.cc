// Sessions over real sockets: two connectors, and a transport within this machine that says that it has a lease.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <latch>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/net/connector.h"
#include "monarch/net/resuming_link.h"
#include "monarch/net/unix/unix_transport.h"
#include "monarch/testing/home.h"
#include "monarch/testing/link_suite.h"

namespace monarch::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// The data sockets of accepted links.
class Wires {
 public:
  void add(int fd) {
    std::lock_guard lock(mutex_);
    fds_.push_back(sys::duplicate(fd));
  }
  void cut() {
    std::lock_guard lock(mutex_);
    for (UniqueFd& fd : fds_) {
      shutdown(fd.get(), SHUT_RDWR);
      ++cuts_;
    }
    fds_.clear();
  }
  void forget() {
    std::lock_guard lock(mutex_);
    fds_.clear();
  }
  int cuts() {
    std::lock_guard lock(mutex_);
    return cuts_;
  }

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> fds_;
  int cuts_ = 0;
};

class LeasedTransport final : public Transport {
 public:
  LeasedTransport(Home& home, Wires& wires, int64_t lease_ns)
      : inner_(home.reactor, home.bell), wires_(wires), lease_ns_(lease_ns) {}
  std::string_view name() const override { return "leased"; }
  char code() const override { return 'l'; }
  int64_t lease_ns() const override { return lease_ns_; }
  int64_t dial_limit_ns() const override { return lease_ns_; }
  std::string describe(const Identity& own) const override { return inner_.describe(own); }
  bool reaches(const Identity& as, NodeId peer) const override { return inner_.reaches(as, peer); }
  Result<UniqueFd> listen(const JobId& job, NodeId node) override { return inner_.listen(job, node); }
  Result<std::unique_ptr<Channel>> connect(const Identity& as, NodeId peer, bool* busy) override {
    return inner_.connect(as, peer, busy);
  }
  Result<std::unique_ptr<Channel>> admit(UniqueFd socket) const override { return inner_.admit(std::move(socket)); }
  std::shared_ptr<Link> new_link(LinkSink& sink, NodeId peer) override { return inner_.new_link(sink, peer); }
  std::unique_ptr<LinkSetup> new_setup() override { return std::make_unique<Setup>(inner_.new_setup(), wires_); }
  Result<ChildEnds> start_to_child(Link& link) override { return inner_.start_to_child(link); }
  Status start_to_parent(Link& link, ChildEnds ends) override { return inner_.start_to_parent(link, std::move(ends)); }

 private:
  struct Setup final : LinkSetup {
    Setup(std::unique_ptr<LinkSetup> i, Wires& w) : inner(std::move(i)), wires(w) {}
    Result<std::vector<int>> offer() override { return inner->offer(); }
    Result<std::vector<int>> accept(std::vector<UniqueFd> fds) override {
      if (!fds.empty()) wires.add(fds[0].get());
      return inner->accept(std::move(fds));
    }
    Status agree(std::vector<UniqueFd> fds) override { return inner->agree(std::move(fds)); }
    void start(Link& link, std::unique_ptr<Channel> channel) override { inner->start(link, std::move(channel)); }
    std::unique_ptr<LinkSetup> inner;
    Wires& wires;
  };

  UnixTransport inner_;
  Wires& wires_;
  const int64_t lease_ns_;
};

// One process.
class Process {
 public:
  Process(const Identity& job, Wires& wires, int64_t lease_ns) {
    Identity identity = job;
    SystemRandom random;
    identity.key = NodeKey::make(random);
    node = identity.node = identity.key.id();
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::make_unique<LeasedTransport>(home, wires, lease_ns));
    connector = std::make_unique<Connector>(home.reactor, std::move(transports), "leased", identity);
    Connector::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> accepted, bool) {
      std::lock_guard lock(mutex);
      link = std::move(accepted);
      ++sessions;
    };
    connector->set_sink(sink, std::move(events));
    home.reactor.post_and_wait([&] { MONARCH_CHECK(connector->listen().ok()); });
  }
  ~Process() {
    home.reactor.post_and_wait([&] { connector->close(); });
    if (link) link->close();
    home.reactor.stop();
  }
  std::shared_ptr<Link> present() {
    std::lock_guard lock(mutex);
    return link;
  }

  NodeId node = 0;
  RecordingSink sink;
  Home home;
  std::mutex mutex;
  std::shared_ptr<Link> link;
  int sessions = 0;
  std::unique_ptr<Connector> connector;
};

class SocketSession : public ::testing::Test {
 protected:
  void make(int64_t lease_ns) {
    fill_random(job_.job.data(), job_.job.size());
    fill_random(job_.token.data(), job_.token.size());
    a_ = std::make_unique<Process>(job_, wires_, lease_ns);
    b_ = std::make_unique<Process>(job_, wires_, lease_ns);
  }
  void start(int64_t lease_ns) {
    make(lease_ns);
    a_->link = a_->connector->dial(b_->node);
  }
  bool wait_until(const std::function<bool()>& ready) { return drive_until(*b_->home.driver, ready); }
  static void flood(Link& link, uint64_t count, size_t size) {
    const std::vector<std::byte> body(size, std::byte{5});
    for (uint64_t i = 0; i < count; ++i) {
      while (link.backlog() > 1 << 20) sched_yield();
      Outgoing outgoing{FrameHeader{}, {body.data(), i % size}, {}};
      outgoing.header.token = i;
      ASSERT_TRUE(link.send(outgoing));
    }
  }
  static void expect_in_order(RecordingSink& sink, uint64_t count, size_t size) {
    const auto frames = sink.take();
    ASSERT_EQ(frames.size(), count);
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(frames[i]->header.token, i);
      ASSERT_EQ(frames[i]->body.size(), i % size);
    }
  }

  Identity job_;
  Wires wires_;
  std::unique_ptr<Process> a_, b_;
};

TEST_F(SocketSession, GoesOnWhereItWasHoweverOftenItsSocketIsShutDownInAFlood) {
  start(30 * kSecond);
  constexpr uint64_t kThere = 20'000, kBack = 5'000;
  std::thread there([&] { flood(*a_->link, kThere, 3000); });
  std::thread back([&] {
    while (!b_->present()) sched_yield();
    flood(*b_->present(), kBack, 500);
  });
  size_t next_cut = 0;
  const bool all = wait_until([&] {
    if (b_->sink.frames() > next_cut) {
      wires_.cut();
      next_cut = b_->sink.frames() + 300;
    }
    return b_->sink.frames() == kThere && a_->sink.frames() == kBack;
  });
  there.join();
  back.join();
  ASSERT_TRUE(all);
  expect_in_order(b_->sink, kThere, 3000);
  expect_in_order(a_->sink, kBack, 500);
  EXPECT_GT(wires_.cuts(), 5);
  EXPECT_EQ(b_->sessions, 1) << "it is one session";
  EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
  EXPECT_TRUE(wait_until([&] { return a_->link->backlog() == 0; }));
}

TEST_F(SocketSession, KeepsNothingOfConnectionsThatAreOver) {
  start(30 * kSecond);
  for (uint64_t i = 1; i <= 50; ++i) {
    Outgoing outgoing{FrameHeader{}, {}, {}};
    ASSERT_TRUE(a_->link->send(outgoing));
    ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == i; }));
    wires_.cut();
  }
  EXPECT_GE(static_cast<ResumingLink&>(*a_->link).carriers(), 50u);
  EXPECT_LE(a_->connector->carriers(), 4u);
  EXPECT_LE(b_->connector->carriers(), 4u);
}

// As to a host that is known to be there, on a machine that is busy with all the others.
TEST_F(SocketSession, TheFirstConnectionMayTakeLongerThanALease) {
  make(kSecond / 5);
  std::latch stands(1), answers(1);
  b_->home.reactor.post([&] {
    stands.count_down();
    answers.wait();
  });
  stands.wait();
  const auto session = a_->connector->new_remote(b_->node, 20 * kSecond);
  a_->link = session;
  session->begin();
  a_->home.reactor.after(kSecond, [&] { answers.count_down(); });
  flood(*session, 10, 10);
  EXPECT_TRUE(wait_until([&] { return b_->sink.frames() == 10 || a_->sink.closed(); }));
  EXPECT_FALSE(a_->sink.closed()) << a_->sink.why().message;
  EXPECT_EQ(session->carriers(), 1u) << "it began anew";
}

TEST_F(SocketSession, OfAProcessThatIsGoneItKnowsAtOnce) {
  start(600 * kSecond);
  flood(*a_->link, 10, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  Home waiting;
  wires_.forget();  // they would keep its sockets open
  b_ = nullptr;
  EXPECT_TRUE(drive_until(*waiting.driver, [&] { return a_->sink.closed(); }));
  EXPECT_EQ(a_->sink.why().code, ErrorCode::kClosed);
}

// Nobody says that it is over: the socket is gone, and where it listened nobody is any more.
TEST_F(SocketSession, AProcessThatDoesNotListenAnyMoreIsDead) {
  start(600 * kSecond);
  flood(*a_->link, 10, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  b_->home.reactor.post_and_wait([&] { b_->connector->close(); });
  wires_.cut();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_NE(a_->sink.why().message.find("cannot be reached"), std::string::npos) << a_->sink.why().message;
}

}  // namespace
}  // namespace monarch::testing
