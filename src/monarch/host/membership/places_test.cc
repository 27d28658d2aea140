#include "monarch/host/membership/places.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "monarch/testing/home.h"

namespace monarch::testing {
namespace {

// The script (host 0) or a gateway, over TCP on this machine.
struct Process {
  Process(const Identity& job, HostNumber host, NodeId script_id) {
    SystemRandom random;
    Identity identity = job;
    identity.key = NodeKey::make(random, host);
    id = identity.node = identity.key.id();
    script = script_id == 0 ? id : script_id;
    TcpTransport::Options options;
    options.listen = TcpAddress::parse("tcp://127.0.0.1:0").value();
    auto transport = std::make_unique<TcpTransport>(home.reactor, std::move(options));
    tcp = transport.get();
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::move(transport));
    connector = std::make_unique<Connector>(home.reactor, std::move(transports), "tcp", identity);
    Node::Hooks hooks;
    hooks.dial = [this](NodeId node_id) { return places->dial(node_id); };
    hooks.on_control = [this](Link& link, MessagePtr message) { on_control(link, *message); };
    hooks.on_link_lost = [this](NodeId, const Error& why) {
      lost = why.code;
      ++ends;
      return true;
    };
    node = std::make_unique<Node>(id, *home.driver, home.reactor, std::move(hooks));
    places = std::make_unique<Places>(home.reactor, *node, *connector, *tcp, script);
    Connector::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> link, bool) { node->add_link(std::move(link)); };
    connector->set_sink(*node, std::move(events));
    home.reactor.post_and_wait([&] { MONARCH_CHECK(connector->listen().ok()); });
  }
  ~Process() {
    home.reactor.post_and_wait([&] { connector->close(); });
    node->close_links();
    home.reactor.stop();
  }
  void on_control(Link& link, const Message& message) {
    if (message.header.kind == FrameKind::kPing) ++pings;
    if (message.header.kind == FrameKind::kPlace) places->answered(message.header.dest, std::string(message.text()));
    if (message.header.kind != FrameKind::kWhereIs) return;
    places->asked(link, message.header.dest);
    ++questions;
  }
  void ping(NodeId other) {
    Outgoing frame{FrameHeader{}, {}, {}};
    frame.header.kind = FrameKind::kPing;
    const auto link = node->route(other);
    ASSERT_NE(link, nullptr);
    static_cast<void>(link->send_control(frame));  // where there is nobody it may have ended already
  }

  Home home;
  NodeId id = 0, script = 0;
  TcpTransport* tcp = nullptr;
  std::unique_ptr<Connector> connector;
  std::unique_ptr<Node> node;
  std::unique_ptr<Places> places;
  std::atomic<int> pings{0}, questions{0}, ends{0};
  std::atomic<ErrorCode> lost{};
};

class PlacesTest : public ::testing::Test {
 protected:
  static Identity new_job() {
    Identity job;
    fill_random(job.job.data(), job.job.size());
    fill_random(job.token.data(), job.token.size());
    return job;
  }
  void expect_host(Process& gateway) { script_.node->add_link(script_.places->expect(gateway.id)); }
  void place(Process& gateway) {
    script_.home.reactor.post_and_wait(
        [&] { ASSERT_TRUE(script_.places->placed(gateway.id, *gateway.tcp->place()).ok()); });
  }
  void attach(Process& gateway) {
    expect_host(gateway);
    place(gateway);
    script_.ping(gateway.id);
    ASSERT_TRUE(wait_until([&] { return gateway.pings == 1; }));
  }
  bool wait_until(const std::function<bool()>& ready) { return drive_until(*script_.home.driver, ready); }

  const Identity job_ = new_job();
  Process script_{job_, 0, 0}, a_{job_, 1, script_.id}, b_{job_, 2, script_.id};
};

TEST_F(PlacesTest, AGatewayAsksTheScriptOnceWhereAnotherOneIs) {
  attach(a_);
  attach(b_);
  a_.ping(b_.id);
  a_.ping(b_.id);
  ASSERT_TRUE(wait_until([&] { return b_.pings == 3; }));
  EXPECT_EQ(script_.questions, 1);
  EXPECT_TRUE(a_.tcp->knows_place(b_.id));
  b_.ping(a_.id);
  ASSERT_TRUE(wait_until([&] { return a_.pings == 2; }));
  EXPECT_EQ(script_.questions, 1) << "on the session that is there";
}

TEST_F(PlacesTest, OfOneThatIsAboutToBeTheAnswerWaits) {
  attach(a_);
  expect_host(b_);
  script_.ping(b_.id);
  a_.ping(b_.id);
  ASSERT_TRUE(wait_until([&] { return script_.questions == 1; }));
  EXPECT_EQ(b_.pings, 0);
  place(b_);
  ASSERT_TRUE(wait_until([&] { return b_.pings == 2; }));
  EXPECT_EQ(a_.ends, 0);
}

TEST_F(PlacesTest, OfOneThatTheScriptDoesNotKnowTheEndIsTold) {
  attach(a_);
  a_.ping(b_.id);
  ASSERT_TRUE(wait_until([&] { return a_.ends == 1; }));
  EXPECT_EQ(a_.lost.load(), ErrorCode::kRefused) << "and not that it is not reached";
}

TEST_F(PlacesTest, OneThatIsGoneIsForgotten) {
  attach(a_);
  attach(b_);
  script_.home.reactor.post_and_wait([&] { script_.places->gone(b_.id); });
  a_.ping(b_.id);
  ASSERT_TRUE(wait_until([&] { return a_.ends == 1; }));
  EXPECT_EQ(a_.lost.load(), ErrorCode::kRefused);
}

}  // namespace
}  // namespace monarch::testing
