#include "monarch/host/start/host_dial.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

HostdAddress parsed(const std::string& text) { return HostdAddress::parse(text, "/token").value(); }

TEST(HostdAddress, IsWrittenAsItWasRead) {
  for (const char* text : {"ipc:///run/host", "ipc://@name", "tcp://a:1", "tcp://a:1@tcp://*:1", "service@ipc://@name",
                           "service<2MuA>@tcp://a:1@tcp://*:fd7", "<2MuA>@ipc:///run/host"}) {
    EXPECT_EQ(parsed(text).to_text(), text);
  }
  EXPECT_EQ(parsed("service<2MuA>@tcp://a:1").identity, "service<2MuA>");
  EXPECT_EQ(parsed("tcp://a:1@tcp://*:1").identity, "");
  EXPECT_EQ(parsed("ipc://@name").path, "@name");
  EXPECT_EQ(parsed("tls://a:1").to_text(), "tcp://a:1");
  EXPECT_EQ(parsed("<2MuA>@tls://a:1@tls://*:2").to_text(), "<2MuA>@tcp://a:1@tcp://*:2");
}

TEST(HostdAddress, WhatIsNoIdentityIsRefused) {
  const std::string identities[] = {"", "a b", "a\n", "/x", std::string(200, 'a')};
  for (const std::string& identity : identities) {
    auto address = HostdAddress::parse(identity + "@tcp://a:1", "/token");
    ASSERT_FALSE(address.ok()) << identity;
    EXPECT_EQ(address.error().code, ErrorCode::kMalformed);
    EXPECT_NE(address.error().message.find("no identity of a host"), std::string::npos) << address.error().message;
  }
}

TEST(HostdAddress, AHostServesWhoMeansItOrNoneInParticular) {
  const HostdAddress host = parsed("service<2MuA>@ipc://@name");
  for (const char* same : {"", "service<2MuA>", "<2MuA>", "another-label<2MuA>"}) {
    EXPECT_EQ(host.refuses(same), std::nullopt) << same;
  }
  EXPECT_EQ(host.refuses("service<2MuB>"), "it is service<2MuA>, not service<2MuB>");
  EXPECT_EQ(host.refuses("service"), "it is service<2MuA>, not service");
  const HostdAddress unnamed = parsed("ipc://@name");
  EXPECT_EQ(unnamed.refuses(""), std::nullopt);
  EXPECT_EQ(unnamed.refuses("service"), std::nullopt);
  EXPECT_EQ(unnamed.refuses("service<2MuA>"), "it is service, not service<2MuA>");
}

}  // namespace
}  // namespace monarch
