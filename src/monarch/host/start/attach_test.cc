#include "monarch/host/start/attach.h"

#include <gtest/gtest.h>

#include "monarch/host/membership/gateways.h"

namespace monarch {
namespace {

Bootstrap some_bootstrap() {
  Bootstrap bootstrap;
  bootstrap.token = {std::byte{7}};
  bootstrap.job = {std::byte{8}};
  bootstrap.key = Gateways::key_of(bootstrap.token, 3);
  bootstrap.parent = bootstrap.owner = 17;
  bootstrap.host_lease_ns = 5;
  bootstrap.transport = "shm";
  bootstrap.address = "somewhere";
  bootstrap.place.dialled_at = "a.host";
  bootstrap.payload = std::string("a\0b\xff", 4);
  return bootstrap;
}

ByteSpan without_size(const std::string& message) { return as_byte_span(message.data() + 4, message.size() - 4); }

TEST(Attach, AnOrderComesBackAsItWas) {
  const Bootstrap sent = some_bootstrap();
  const auto decoded = decode_order(without_size(encode_order(AttachOrder{sent, "service<2MuA>"})));
  const AttachOrder& order = std::get<AttachOrder>(decoded.value());
  const Bootstrap& got = order.host;
  EXPECT_EQ(order.identity, "service<2MuA>");
  EXPECT_EQ(got.key.id(), sent.key.id());
  EXPECT_EQ(host_number(got.key.id()), 3u);
  EXPECT_EQ(got.token, sent.token);
  EXPECT_EQ(got.job, sent.job);
  EXPECT_EQ(got.parent, 17u);
  EXPECT_EQ(got.owner, 17u);
  EXPECT_EQ(got.host_lease_ns, 5);
  EXPECT_EQ(got.transport, "shm");
  EXPECT_EQ(got.address, "somewhere");
  EXPECT_EQ(got.place.dialled_at, "a.host");
  EXPECT_EQ(got.payload, sent.payload);
  EXPECT_TRUE(got.is_host);
}

TEST(Attach, WhatIsNoOrderIsRefused) {
  const std::string order = encode_order(AttachOrder{some_bootstrap()});
  const ByteSpan whole = without_size(order);
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decode_order(whole.first(size)).ok()) << size;
  Bootstrap bad = some_bootstrap();
  bad.key = NodeKey(bad.key.seed(), 0);
  EXPECT_FALSE(decode_order(without_size(encode_order(AttachOrder{bad}))).ok()) << "it is on no host";
  bad = some_bootstrap();
  bad.parent = 0;
  EXPECT_FALSE(decode_order(without_size(encode_order(AttachOrder{bad}))).ok());
}

TEST(Attach, AnOrderToPassOnComesBackAsItWas) {
  const auto order = [](const TcpEndpoint& to) { return decode_order(without_size(encode_order(RelayOrder{to, "name"}))); };
  const RelayOrder got = std::get<RelayOrder>(order({"a.host", 4711}).value());
  EXPECT_EQ(got.to, (TcpEndpoint{"a.host", 4711}));
  EXPECT_EQ(got.identity, "name");
  EXPECT_FALSE(order({"a.host", 0}).ok());
  EXPECT_FALSE(order({"*", 4711}).ok());
  EXPECT_FALSE(order({"", 4711}).ok());
}

TEST(Attach, AReportComesBackAsItWas) {
  HostReport sent{HostReport::kStarted, "", 4711, "a-host", 12, {}};
  const HostReport got = decode_report(without_size(encode_report(sent))).value();
  EXPECT_EQ(got.kind, HostReport::kStarted);
  EXPECT_EQ(got.port, 4711);
  EXPECT_EQ(got.host, "a-host");
  EXPECT_EQ(got.pid, 12);
  sent = {HostReport::kExited, "", 0, "", 0, {true, 0, 9}};
  EXPECT_EQ(decode_report(without_size(encode_report(sent)))->status.signal, 9);
  sent.status.out_of_memory = OutOfMemory::kCgroupLimit;
  EXPECT_EQ(decode_report(without_size(encode_report(sent)))->status.out_of_memory, OutOfMemory::kCgroupLimit);
  EXPECT_FALSE(decode_report({}).ok());
}

TEST(Attach, AHostThatEndsByItselfSaysWhy) {
  const auto because = [](int code, int signal) {
    return explained({.known = true, .code = code, .signal = signal}, 5'000'000'000).because;
  };
  EXPECT_EQ(because(kHostUnheard, 0), "has ended, since it had not heard of this script for 5000 ms (host_lease)");
  EXPECT_EQ(because(kHostDaemonEnded, 0), "was ended with its monarch-hostd");
  EXPECT_EQ(because(kHostAsked, 0) + because(1, 0) + because(kHostUnheard, 9), "");
  EXPECT_FALSE(explained({.known = true, .code = kHostDaemonEnded}, 0).known) << "that code says nothing else";
}

}  // namespace
}  // namespace monarch
