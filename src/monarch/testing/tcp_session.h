// Two connectors as two processes of one job, over TCP, with a network between them that misbehaves.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "monarch/net/connector.h"
#include "monarch/net/resuming_link.h"
#include "monarch/net/tcp/tcp_transport.h"
#include "monarch/testing/home.h"
#include "monarch/testing/link_suite.h"
#include "monarch/testing/tcp_proxy.h"

namespace monarch::testing {

inline constexpr int64_t kSecond = 1'000'000'000;

inline TcpAddress address_of(const char* text) { return TcpAddress::parse(text).value(); }
inline TcpAddress at_port(uint16_t port) { return TcpAddress{{"127.0.0.1", port}, std::nullopt}; }

inline TcpTransport::Options options_with(int64_t lease_ns, int64_t silence_ns = 20 * kSecond) {
  TcpTransport::Options options;
  options.listen = address_of("tcp://127.0.0.1:0");
  options.lease_ns = lease_ns;
  options.silence_ns = silence_ns;
  return options;
}

// One process.
class TcpProcess {
 public:
  TcpProcess(const Identity& job, const TcpTransport::Options& options, Connector::Limits limits = {}) {
    Identity identity = job;
    SystemRandom random;
    identity.key = NodeKey::make(random);
    node = identity.node = identity.key.id();
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::make_unique<TcpTransport>(home.reactor, options));
    tcp = static_cast<TcpTransport*>(transports[0].get());
    connector = std::make_unique<Connector>(home.reactor, std::move(transports), "tcp", identity, limits);
    Connector::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> accepted, bool) {
      std::lock_guard lock(mutex);
      link = accepted;
      all.push_back(std::move(accepted));
      ++sessions;
    };
    connector->set_sink(sink, std::move(events));
    home.reactor.post_and_wait([&] { MONARCH_CHECK(connector->listen().ok()); });
  }
  ~TcpProcess() {
    home.reactor.post_and_wait([&] { connector->close(); });
    if (link) link->close();
    for (const auto& accepted : all) accepted->close();
    home.reactor.stop();
  }
  std::shared_ptr<Link> present() {
    std::lock_guard lock(mutex);
    return link;
  }
  uint32_t carriers() const { return static_cast<ResumingLink&>(*link).carriers(); }

  NodeId node = 0;
  RecordingSink sink;
  Home home;
  TcpTransport* tcp = nullptr;
  std::mutex mutex;
  std::shared_ptr<Link> link;              // the last one
  std::vector<std::shared_ptr<Link>> all;  // that were accepted
  int sessions = 0;
  std::unique_ptr<Connector> connector;
};

class TcpSessionTest : public ::testing::Test {
 protected:
  TcpSessionTest() {
    fill_random(job_.job.data(), job_.job.size());
    fill_random(job_.token.data(), job_.token.size());
  }
  // a_ dials b_ through the proxy.
  void start(const TcpTransport::Options& options) {
    a_ = std::make_unique<TcpProcess>(job_, options);
    b_ = std::make_unique<TcpProcess>(job_, options);
    proxy_ = std::make_unique<TcpProxy>(b_->tcp->place()->dial.port);
    ASSERT_TRUE(a_->tcp->set_place(b_->node, at_port(proxy_->port())).ok());
  }
  void dial() { a_->link = a_->connector->dial(b_->node); }
  bool wait_until(const std::function<bool()>& ready, int64_t limit_ns = 60 * kSecond) {
    return drive_until(*b_->home.driver, ready, limit_ns);
  }
  static void send_one(Link& link, uint64_t token, size_t size) {
    const std::vector<std::byte> body(size, std::byte{5});
    Outgoing outgoing{FrameHeader{}, body, {}};
    outgoing.header.token = token;
    ASSERT_TRUE(link.send(outgoing));
  }
  static void flood(Link& link, uint64_t count, size_t size) {
    for (uint64_t i = 0; i < count; ++i) {
      while (link.backlog() > 1 << 20) sched_yield();
      send_one(link, i, i % size);
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
  std::unique_ptr<TcpProcess> a_, b_;
  std::unique_ptr<TcpProxy> proxy_;
};

}  // namespace monarch::testing
