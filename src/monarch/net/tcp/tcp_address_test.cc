#include "monarch/net/tcp/tcp_address.h"

#include <gtest/gtest.h>

#include "monarch/loop/reactor.h"
#include "monarch/net/tcp/lookup.h"

namespace monarch {
namespace {

TEST(TcpAddress, IsWrittenAsItWasRead) {
  for (const char* text : {"tcp://host:1", "tcp://10.1.2.3:65535", "tcp://*:0", "tcp://[::1]:80", "tcp://[fe80::1%eth0]:9",
                           "tcp://a.b-c_d.example:26600", "tcp://outside:1@tcp://*:2", "tcp://[::1]:5@tcp://127.0.0.1:0",
                           "tcp://host:fd7", "tcp://a:1@tcp://*:fd0"}) {
    auto address = TcpAddress::parse(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.error().message;
    EXPECT_EQ(address->to_text(), text);
  }
}

TEST(TcpAddress, SaysWhatIsWrongAndHowItIsWritten) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "it does not begin with tcp://"},
      {"host:1", "it does not begin with tcp://"},
      {"ipc://x", "'ipc' is another transport"},
      {"tcp://", "there is no name or address of a host"},
      {"tcp://:1", "there is no name or address of a host"},
      {"tcp://-x:1", "there is no name or address of a host"},
      {"tcp://a b:1", "there is no name or address of a host"},
      {"tcp://a", "there is no port"},
      {"tcp://[::1]", "there is no port"},
      {"tcp://[::1]8", "there is no port"},
      {"tcp://a:", "a port is a number from 0 to 65535"},
      {"tcp://a:65536", "a port is a number from 0 to 65535"},
      {"tcp://a:-1", "a port is a number from 0 to 65535"},
      {"tcp://a:08", "a port is a number from 0 to 65535"},
      {"tcp://a:1x", "a port is a number from 0 to 65535"},
      {"tcp://a:fd", "a descriptor is written as fd7"},
      {"tcp://a:fd-1", "a descriptor is written as fd7"},
      {"tcp://a:fd07", "a descriptor is written as fd7"},
      {"tcp://a:fd7@tcp://b:2", "nobody can connect to a descriptor"},
      {"tcp://[::]:1@tcp://b:2", "nobody can connect to '::'"},
      {"tcp://::1:80", "an address of IPv6 stands in brackets"},
      {"tcp://[::1:80", "a bracket is not closed"},
      {"tcp://[host]:80", "what is in the brackets is no address of IPv6"},
      {"tcp://[]:80", "what is in the brackets is no address of IPv6"},
      {"tcp://*:1@tcp://*:2", "nobody can connect to '*'"},
      {"tcp://a:0@tcp://*:2", "nobody can connect to port 0"},
      {"tcp://a:1@b:2", "it does not begin with tcp://"},
      {"tcp://a:1@tcp://b:2@tcp://c:3", "an address of IPv6 stands in brackets"},
  };
  for (const auto& [text, why] : bad) {
    auto address = TcpAddress::parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, ErrorCode::kMalformed);
    EXPECT_NE(address.error().message.find(why), std::string::npos) << address.error().message;
    EXPECT_NE(address.error().message.find("write tcp://HOST:PORT"), std::string::npos) << address.error().message;
    EXPECT_EQ(address.error().message.find('\n'), std::string::npos);
  }
}

TEST(TcpAddress, ListensWhereItIsBoundAndIsDialledWhereItSays) {
  const TcpAddress address = TcpAddress::parse("tcp://outside:1@tcp://*:2").value();
  EXPECT_EQ(address.dial, (TcpEndpoint{"outside", 1}));
  EXPECT_EQ(address.listening(), (TcpEndpoint{"*", 2}));
  EXPECT_TRUE(address.check_dialled().ok());
  for (const char* text : {"tcp://*:2", "tcp://[::]:2", "tcp://0.0.0.0:2", "tcp://a:fd7"}) {
    EXPECT_FALSE(TcpAddress::parse(text)->check_dialled().ok()) << text;
  }
  EXPECT_FALSE(TcpAddress::parse("tcp://a:0")->check_dialled().ok());
}

TEST(SocketAddress, KnowsThisMachine) {
  const auto at = [](const char* host) { return numeric_address({host, 7}).value(); };
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(at(host).is_loopback()) << host;
  }
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "2001:db8::1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(at(host).is_loopback()) << host;
  }
  EXPECT_EQ(at("::1").to_text(), "tcp://[::1]:7");
  EXPECT_EQ(at("10.0.0.1").to_text(), "tcp://10.0.0.1:7");
  EXPECT_FALSE(numeric_address({"localhost", 7}));
}

// A name is looked up on a thread of its own; who asks is told that it is not known yet.
TEST(Lookup, FindsANameWithoutWaiting) {
  Reactor clock;
  for (const auto& [host, known] : {std::pair("localhost", true), std::pair("no-such-host.invalid", false)}) {
    Lookup lookup({host, 7});
    bool pending = false;
    auto found = lookup.addresses(&pending);
    EXPECT_FALSE(found.ok());
    EXPECT_TRUE(pending);
    const int64_t deadline_ns = clock.now_ns() + 60'000'000'000;
    const auto wait = [&] {
      while (pending && clock.now_ns() < deadline_ns) {
        sched_yield();
        found = lookup.addresses(&pending);
      }
    };
    wait();
    ASSERT_EQ(found.ok(), known) << host;
    if (known) {
      EXPECT_TRUE(found->front().is_loopback());
    } else {
      EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
      EXPECT_NE(found.error().message.find("no-such-host.invalid"), std::string::npos) << found.error().message;
    }
    lookup.forget();
    EXPECT_FALSE(lookup.addresses(&pending).ok()) << "it is asked again";
    EXPECT_TRUE(pending);
    wait();
  }
  bool pending = false;
  EXPECT_TRUE(Lookup({"127.0.0.1", 7}).addresses(&pending).ok()) << "what is numeric is known at once";
}

TEST(TcpAddress, WhatIsSaidOfABadOneIsShort) {
  const auto long_scheme = TcpAddress::parse(std::string(250, 'y') + "://");
  ASSERT_FALSE(long_scheme.ok());
  EXPECT_LT(long_scheme.error().message.size(), 400u);
  EXPECT_FALSE(TcpAddress::parse(std::string_view("tcp://[::1\0x]:1", 15)).ok()) << "with a NUL";
}

}  // namespace
}  // namespace monarch
