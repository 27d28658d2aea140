#include "monarch/net/tls/credentials.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "monarch/net/tls/tls_channel.h"

namespace monarch {
namespace {

TEST(Credentials, ComeBackFromTheirText) {
  const Authority authority = Authority::make().value();
  const Credentials made = authority.issue("host-1").value();
  EXPECT_NE(made.key.find("PRIVATE KEY"), std::string::npos);
  EXPECT_EQ(made.authorities.find("PRIVATE KEY"), std::string::npos);
  const Credentials back = Credentials::parse(made.to_text()).value();
  EXPECT_EQ(back.authorities, made.authorities);
  EXPECT_EQ(back.certificate, made.certificate);
  EXPECT_EQ(back.key, made.key);
  EXPECT_TRUE(TlsContext::make(back).ok());
  EXPECT_NE(authority.issue("host-2")->key, made.key) << "each host has a key of its own";
  const std::string text = made.to_text();
  for (size_t size = 0; size < text.size(); size += 13) {
    EXPECT_FALSE(Credentials::parse(text.substr(0, size)).ok()) << size;
  }
  for (const char* bad : {"", "monarch-credentials-1\n", "monarch-credentials-1\n1 1\nab",
                          "monarch-credentials-1\n1 1 1 \nabc", "monarch-credentials-1\n-1 1 1\nabc",
                          "monarch-credentials-1\n99999999999999999999 1 1\nabc", "monarch-credentials-2\n1 1 1\nabc",
                          "monarch-credentials-1\n1 1 1\nabcd"}) {
    EXPECT_FALSE(Credentials::parse(bad).ok()) << bad;
  }
  EXPECT_TRUE(Credentials::parse("monarch-credentials-1\n1 1 1\nabc").ok());
}

TEST(Credentials, ThatAreNoneAreRefusedWithWhatIsMissing) {
  const Credentials good = Authority::make()->issue("a").value(), other = Authority::make()->issue("b").value();
  const auto why = [](const Credentials& credentials) {
    auto context = TlsContext::make(credentials);
    return context ? "it is good" : context.error().message;
  };
  EXPECT_EQ(why(good), "it is good");
  Credentials bad = good;
  bad.key = other.key;
  EXPECT_NE(why(bad).find("no usable private key"), std::string::npos) << why(bad);
  bad = good;
  bad.certificate = "nothing";
  EXPECT_NE(why(bad).find("no usable certificate"), std::string::npos) << why(bad);
  bad = good;
  bad.authorities = "";
  EXPECT_NE(why(bad).find("no authority's certificate"), std::string::npos) << why(bad);
}

// Who knows the secret needs nothing else to be believed, and to believe; net/tls/tls_channel_test.cc speaks with them.
TEST(Credentials, OfASecretAreOfOneAuthority) {
  const Authority one = Authority::of_secret(as_byte_span("secret", 6)).value();
  const Authority same = Authority::of_secret(as_byte_span("secret", 6)).value();
  const Credentials made = one.issue("a").value();
  EXPECT_TRUE(TlsContext::make(made).ok());
  EXPECT_NE(made.key, same.issue("a")->key);
}

// The user's own: one file believes, the other is.
TEST(Credentials, OfTheUserAreReadFromFilesThatOnlyHeCanRead) {
  char folder[] = "/tmp/monarch-credentials-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string ca = std::string(folder) + "/ca.pem", key = std::string(folder) + "/key.pem";
  const Credentials made = Authority::make()->issue("a").value();
  const auto write_file = [](const std::string& path, const std::string& text) {
    const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(fd);
  };
  EXPECT_NE(load_credentials(ca, key).error().message.find("cannot read '" + ca + "'"), std::string::npos);
  write_file(ca, made.authorities);
  write_file(key, made.key + made.certificate);
  auto loaded = load_credentials(ca, key);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(TlsContext::make(*loaded).ok());
  ASSERT_EQ(chmod(key.c_str(), 0640), 0);
  loaded = load_credentials(ca, key);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("chmod 600 " + key), std::string::npos) << loaded.error().message;
  EXPECT_FALSE(load_credentials(folder, key).ok()) << "a folder";
  unlink(ca.c_str());
  unlink(key.c_str());
  rmdir(folder);
}

}  // namespace
}  // namespace monarch
