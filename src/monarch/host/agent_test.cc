// Hosts that are processes of this test program, and start others for the test.
#include "monarch/host/agent.h"

#include <poll.h>

#include <map>

#include "monarch/testing/runtime_fixture.h"
#include "monarch/wire/value_codec.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

ByteSpan span_of(const std::string& bytes) { return as_byte_span(bytes.data(), bytes.size()); }

class Agents : public RuntimeFixture {
 protected:
  std::vector<NodeId> start_hosts(int count) {
    auto wanted = launches(count);
    for (Launch& launch : wanted) launch.is_host = true;
    return root_->host().spawn(wanted).value();
  }
  static LaunchOrder order_for(int count) {
    LaunchOrder order;
    order.mesh = 1;
    for (int i = 0; i < count; ++i) order.launches.emplace_back().label = "rank " + std::to_string(i);
    return order;
  }
  std::shared_ptr<PendingCall> ask(NodeId host, Agent::Method method, const std::string& body) {
    return Agent::ask(root_->node(), {host}, method, span_of(body), "a test");
  }
  std::vector<NodeId> start_on(NodeId host, int count) {
    const auto call = ask(host, Agent::kStart, encode(order_for(count)));
    if (!wait(call) || call->reply(0)->header.kind != FrameKind::kReply) {
      ADD_FAILURE() << text(call);
      return {};
    }
    auto nodes = decode<std::vector<NodeId>>(call->reply(0)->body).value();
    root_->note_hosted(host, nodes);
    return nodes;
  }
  std::shared_ptr<PendingCall> stop_on(NodeId host, std::vector<NodeId> nodes, int64_t grace_ns) {
    return ask(host, Agent::kStop, Agent::encode({std::move(nodes), "the test wants it", grace_ns}));
  }
  pid_t tell_pid(const std::shared_ptr<const Members>& members, uint32_t rank) {
    const auto call = this->call(only(*members, rank), kTellPid);
    int32_t pid = 0;
    if (wait(call) && call->reply(0)->body.size() == sizeof pid) std::memcpy(&pid, call->reply(0)->body.data(), sizeof pid);
    return pid;
  }
};

INSTANTIATE_TEST_SUITE_P(Variants, Agents, kEveryVariant, name_of_variant);

TEST_P(Agents, StartProcessesThatAreReachedAtOnce) {
  const auto hosts = start_hosts(2);
  const auto there = Agent::ask(root_->node(), hosts, Agent::kIsThere, {}, "a test");
  ASSERT_TRUE(wait(there));
  EXPECT_EQ(there->lowest_error(), -1);
  for (const NodeId host : hosts) {
    const auto nodes = start_on(host, 3);
    ASSERT_EQ(nodes.size(), 3u);
    const auto members = actors(nodes);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(text(call(members, kEcho, "hello"), rank), "hello");
  }
}

TEST_P(Agents, AnOrderThatComesBeforeTheHostIsReadyWaits) {
  const auto hosts = start_hosts(1);
  EXPECT_EQ(start_on(hosts[0], 1).size(), 1u);  // the host has hardly been launched
}

TEST_P(Agents, WhoAsksMayHaveMadeTheKeys) {
  const auto hosts = start_hosts(1);
  SystemRandom random;
  LaunchOrder order = order_for(2);
  std::vector<NodeId> nodes;
  for (LaunchRequest& request : order.launches) {
    const NodeKey key = NodeKey::make(random);
    request.key = key.seed();
    nodes.push_back(key.id());
  }
  const auto call = ask(hosts[0], Agent::kStart, encode(order));
  ASSERT_TRUE(wait(call));
  EXPECT_EQ(decode<std::vector<NodeId>>(call->reply(0)->body).value(), nodes);
  root_->note_hosted(hosts[0], nodes);
  EXPECT_EQ(text(this->call(actors(nodes), kEcho, "hello"), 1), "hello");
  // Nobody takes another one's place.
  EXPECT_NE(text(ask(hosts[0], Agent::kStart, encode(order))).find("has been started already"), std::string::npos);
  order = order_for(2);
  order.launches[0].key = order.launches[1].key = NodeKey::make(random).seed();
  EXPECT_NE(text(ask(hosts[0], Agent::kStart, encode(order))).find("has been started already"), std::string::npos);
}

TEST_P(Agents, StopEndsProcessesAndAnswersWhenTheyHaveEnded) {
  const auto hosts = start_hosts(1);
  const auto nodes = start_on(hosts[0], 2);
  const auto members = actors(nodes);
  pollfd ended{-1, POLLIN, 0};
  UniqueFd pidfd = sys::open_pidfd(tell_pid(members, 1));
  ended.fd = pidfd.get();
  const auto stopping = stop_on(hosts[0], {nodes[1]}, 10'000'000'000);
  root_->release({nodes[1]}, "the test wants it");
  ASSERT_TRUE(wait(stopping));
  EXPECT_EQ(stopping->lowest_error(), -1);
  EXPECT_EQ(poll(&ended, 1, 0), 1);
  EXPECT_NE(text(call(only(*members, 1), kEcho)).find("stopped: the test wants it"), std::string::npos);
  EXPECT_EQ(text(call(only(*members, 0), kEcho, "still there")), "still there");
}

TEST_P(Agents, WhatDoesNotEndIsKilledAfterItsTime) {
  const auto hosts = start_hosts(1);
  const auto nodes = start_on(hosts[0], 1);
  const auto members = actors(nodes);
  ASSERT_EQ(text(call(members, kIgnoreStop)), "x");
  const auto stopping = stop_on(hosts[0], nodes, 50'000'000);
  ASSERT_TRUE(wait(stopping));
  EXPECT_TRUE(drive_until(root_->driver(), [&] { return root_->node().is_down(nodes[0]); }));
}

// Nobody else's processes are stopped, and what is not there has ended.
TEST_P(Agents, StopOfOthersIsDoneAtOnce) {
  const auto hosts = start_hosts(1);
  const auto strangers = spawn(1);
  const auto members = actors(strangers);
  ASSERT_TRUE(wait(stop_on(hosts[0], {strangers[0], 12345}, 0)));
  EXPECT_EQ(text(call(members, kEcho, "lives")), "lives");
}

TEST_P(Agents, ADeadHostTakesItsProcessesAlong) {
  const auto hosts = start_hosts(2);
  const auto lost = start_on(hosts[0], 1);
  const auto kept = start_on(hosts[1], 1);
  const auto members = actors({lost[0], kept[0]});
  ASSERT_EQ(text(call(members, kEcho, "up")), "up");
  const auto pending = call(only(*members, 0), kNeverAnswer);
  kill(pid_of(hosts[0]), SIGKILL);
  EXPECT_NE(text(pending).find("the host of"), std::string::npos) << text(pending);
  EXPECT_NE(text(ask(hosts[0], Agent::kStart, encode(order_for(1)))).find("Killed(sig=9)"), std::string::npos);
  EXPECT_EQ(text(call(only(*members, 1), kEcho, "kept")), "kept");
}

TEST_P(Agents, WhatIsNoOrderIsRefused) {
  const auto hosts = start_hosts(1);
  EXPECT_NE(text(ask(hosts[0], Agent::kStart, "nonsense")).find("not an order for processes"), std::string::npos);
  EXPECT_NE(text(ask(hosts[0], Agent::kStop, "nonsense")).find("not an order to stop"), std::string::npos);
  EXPECT_NE(text(ask(hosts[0], Agent::kStop, Agent::encode({{}, "", -1}))).find("not an order to stop"), std::string::npos);
  EXPECT_NE(text(ask(hosts[0], static_cast<Agent::Method>(99), "")).find("no such method"), std::string::npos);
  EXPECT_EQ(start_on(hosts[0], 1).size(), 1u);
}

}  // namespace
}  // namespace monarch
