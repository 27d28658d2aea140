#include "monarch/wire/hello.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace monarch {
namespace {

class Counting final : public Random {
 public:
  explicit Counting(uint64_t first) : next_(first) {}
  uint64_t next_u64() override { return next_++; }

 private:
  uint64_t next_;
};

template <size_t n>
std::array<std::byte, n> filled(uint8_t value) {
  std::array<std::byte, n> out;
  out.fill(static_cast<std::byte>(value));
  return out;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b));
    out += two;
  }
  return out;
}

HelloIdentity identity(int number) {
  const NodeKey key(NodeKey::Seed{static_cast<std::byte>(number)});
  return {.node = key.id(), .key = key, .job = filled<16>(0x4A), .token = filled<16>(0x70),
          .features = kFeatureShm | kFeatureArena, .version_min = 1, .version_max = 1};
}

// Two sides of one connection, whose identities a test may bend first.
struct Connection {
  HelloIdentity dialer_identity = identity(1);
  HelloIdentity acceptor_identity = identity(2);
  Counting random{100};
  std::optional<Handshake> dialer, acceptor;

  Connection() { reset(); }
  void reset() {
    dialer.emplace(HelloRole::kDialer, dialer_identity, random);
    acceptor.emplace(HelloRole::kAcceptor, acceptor_identity, random);
  }
};

void expect_refused(const Result<HelloProof>& result, ErrorCode code, const std::string& message) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code);
  EXPECT_EQ(result.error().message, message);
}

TEST(Hello, BothSidesLearnWhoTheOtherIs) {
  Connection c;
  c.acceptor_identity.features = kFeatureShm | 1u << 3;
  c.acceptor_identity.version_max = 3;
  c.dialer_identity.version_max = 2;
  c.reset();
  EXPECT_EQ(c.acceptor->bytes_wanted(), kHelloOpenBytes);
  auto from_acceptor = c.acceptor->on_open(c.dialer->open_bytes());
  auto from_dialer = c.dialer->on_open(c.acceptor->open_bytes());
  ASSERT_TRUE(from_acceptor.ok() && from_dialer.ok());
  EXPECT_EQ(c.acceptor->bytes_wanted(), kHelloProofBytes);
  auto dialer = c.acceptor->on_proof(*from_dialer);
  auto acceptor = c.dialer->on_proof(*from_acceptor);
  ASSERT_TRUE(dialer.ok() && acceptor.ok());
  EXPECT_EQ(dialer->node, c.dialer_identity.node);
  EXPECT_EQ(acceptor->node, c.acceptor_identity.node);
  EXPECT_EQ(dialer->version, 2);
  EXPECT_EQ(acceptor->version, 2);
  EXPECT_EQ(dialer->features, kFeatureShm);
  EXPECT_EQ(acceptor->features, kFeatureShm);
  EXPECT_EQ(c.acceptor->bytes_wanted(), 0u);
  EXPECT_EQ(c.acceptor->state(), Handshake::State::kDone);
}

TEST(Hello, AGuestSaysThatItIsOne) {
  Connection connection;
  connection.dialer_identity.features |= kFeatureGuest;
  connection.reset();
  auto from_dialer = connection.dialer->on_open(connection.acceptor->open_bytes());
  auto from_acceptor = connection.acceptor->on_open(connection.dialer->open_bytes());
  ASSERT_TRUE(from_dialer.ok() && from_acceptor.ok());
  auto dialer = connection.acceptor->on_proof(*from_dialer);
  auto acceptor = connection.dialer->on_proof(*from_acceptor);
  ASSERT_TRUE(dialer.ok() && acceptor.ok());
  EXPECT_TRUE(dialer->guest);
  EXPECT_FALSE(acceptor->guest);
  EXPECT_EQ(dialer->features, kFeatureShm | kFeatureArena);  // of both: not the guest's own
}

TEST(Hello, BytesOfAnOpenNeverChange) {
  Counting random(0x1122334455667788);
  HelloIdentity who = identity(1);
  who.node = 0x0102030405060708;
  who.version_max = 0x0203;
  Handshake hello(HelloRole::kDialer, who, random);
  EXPECT_EQ(hex(hello.open_bytes()),
            "4d4f4e4152434832" "0100" "0302" "03000000" "0807060504030201"
            "4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a" "88776655443322118977665544332211");
}

TEST(Hello, BytesOfAProofNeverChange) {
  Connection c;  // the expected values were made with Python's hmac and hashlib modules from the definition in hello.h
  EXPECT_EQ(hex(*c.dialer->on_open(c.acceptor->open_bytes())).substr(0, 128),
            "8779fc043ace71bf54aafd8b6b1f0f61b75dfbb5a33d21c83359e80ea5a95658"
            "cecc1507dc1ddd7295951c290888f095adb9044d1b73d696e6df065d683bd4fc");
  EXPECT_EQ(hex(*c.acceptor->on_open(c.dialer->open_bytes())).substr(0, 128),
            "220d06bc96a9de5e7a5b1915da90b93f967e84e6503475c4cc97840e5a7dae1f"
            "6b79c57e6a095239282c04818e96112f3f03a4001ba97a564c23852a3f1ea5fc");
}

TEST(Hello, ReadsBackWhatAnOpenSays) {
  HelloOpen open{.version_min = 2, .version_max = 9, .features = 0x80000001, .node = 77, .job = filled<16>(1),
                 .nonce = filled<16>(2)};
  auto back = read_hello_open(write_hello_open(open));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->version_min, 2);
  EXPECT_EQ(back->version_max, 9);
  EXPECT_EQ(back->features, 0x80000001);
  EXPECT_EQ(back->node, 77u);
  EXPECT_EQ(back->job, open.job);
  EXPECT_EQ(back->nonce, open.nonce);
}

TEST(Hello, AStrangerIsNotAMonarchPeer) {
  std::string request = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: something\r\n\r\n";
  request.resize(kHelloOpenBytes);
  Connection c;
  expect_refused(c.acceptor->on_open(std::as_bytes(std::span(request))), ErrorCode::kMalformed, "not a monarch peer");
  EXPECT_EQ(c.acceptor->state(), Handshake::State::kRefused);
  EXPECT_EQ(c.acceptor->bytes_wanted(), 0u);
}

TEST(Hello, EveryOtherLengthOfAnOpenIsRefused) {
  for (size_t size = 0; size <= 128; ++size) {
    if (size == kHelloOpenBytes) continue;
    Connection c;
    std::vector<std::byte> bytes(c.dialer->open_bytes().begin(), c.dialer->open_bytes().end());
    bytes.resize(size);
    bytes.shrink_to_fit();
    expect_refused(c.acceptor->on_open(bytes), ErrorCode::kMalformed, "not a monarch peer");
  }
}

TEST(Hello, EveryOtherLengthOfAProofIsRefused) {
  for (size_t size = 0; size <= 2 * kHelloProofBytes; ++size) {
    if (size == kHelloProofBytes) continue;
    Connection c;
    ASSERT_TRUE(c.acceptor->on_open(c.dialer->open_bytes()).ok());
    auto proof = c.dialer->on_open(c.acceptor->open_bytes());
    std::vector<std::byte> bytes(proof->begin(), proof->end());
    bytes.resize(size);
    bytes.shrink_to_fit();
    EXPECT_FALSE(c.acceptor->on_proof(bytes).ok()) << size;
  }
}

TEST(Hello, EveryBitOfAProofCounts) {
  for (size_t bit = 0; bit < 8 * kHelloProofBytes; ++bit) {
    Connection c;
    ASSERT_TRUE(c.acceptor->on_open(c.dialer->open_bytes()).ok());
    HelloProof proof = *c.dialer->on_open(c.acceptor->open_bytes());
    proof[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto result = c.acceptor->on_proof(proof);
    ASSERT_FALSE(result.ok()) << bit;
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(result.error().message, bit < 8 * 32 ? "the peer does not have the token of job 4a4a4a4a"
                                                   : "the peer is not the node that it says it is");
  }
}

TEST(Hello, WhoIsNoMonarchPeerIsKnownByItsFirstByte) {
  Connection c;
  const auto open = c.dialer->open_bytes();
  for (size_t size = 0; size <= open.size(); ++size) EXPECT_TRUE(c.acceptor->may_begin_with(open.first(size))) << size;
  const std::byte alert[] = {std::byte{0x15}, std::byte{3}, std::byte{3}};  // what TLS says to who does not speak it
  EXPECT_FALSE(c.acceptor->may_begin_with(alert));
}

// Whoever sits between two ends that trust any certificate has TLS with each of them, and not the same.
TEST(Hello, ABoundProofHoldsOnlyInItsOwnTls) {
  ChannelBinding one{}, another{};
  one[5] = std::byte{1};
  another[5] = std::byte{2};
  const std::pair<ChannelBinding, ChannelBinding> cases[] = {{one, one}, {one, another}, {one, {}}, {{}, one}};
  for (const auto& [dialers, acceptors] : cases) {
    Connection c;
    c.dialer->bind_to(dialers);
    c.acceptor->bind_to(acceptors);
    auto from_dialer = c.dialer->on_open(c.acceptor->open_bytes());
    auto from_acceptor = c.acceptor->on_open(c.dialer->open_bytes());
    EXPECT_EQ(c.acceptor->on_proof(*from_dialer).ok(), dialers == acceptors);
    EXPECT_EQ(c.dialer->on_proof(*from_acceptor).ok(), dialers == acceptors);
  }
}

// Any member of the job has its token, and any process of the user can be one.
TEST(Hello, NobodyIsAnotherNode) {
  Connection c;
  c.dialer_identity.node = identity(3).node;  // with the key of 1
  c.reset();
  ASSERT_TRUE(c.acceptor->on_open(c.dialer->open_bytes()).ok());
  auto result = c.acceptor->on_proof(*c.dialer->on_open(c.acceptor->open_bytes()));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "the peer is not the node that it says it is");
}

TEST(Hello, EveryBitOfAnOpenCounts) {
  for (size_t bit = 0; bit < 8 * kHelloOpenBytes; ++bit) {
    Connection c;
    HelloOpenBytes changed;
    std::copy(c.dialer->open_bytes().begin(), c.dialer->open_bytes().end(), changed.begin());
    changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto from_dialer = c.dialer->on_open(c.acceptor->open_bytes());
    auto from_acceptor = c.acceptor->on_open(changed);
    if (!from_acceptor.ok()) continue;  // refused at once
    EXPECT_FALSE(c.acceptor->on_proof(*from_dialer).ok()) << bit;
    EXPECT_FALSE(c.dialer->on_proof(*from_acceptor).ok()) << bit;
  }
}

TEST(Hello, VersionsWithoutCommonGroundAreNamed) {
  Connection c;
  c.dialer_identity.version_min = 2;
  c.dialer_identity.version_max = 4;
  c.reset();
  expect_refused(c.acceptor->on_open(c.dialer->open_bytes()), ErrorCode::kUnsupported,
                 "no common protocol version: this side speaks 1, the peer 2 to 4");
  expect_refused(c.dialer->on_open(c.acceptor->open_bytes()), ErrorCode::kUnsupported,
                 "no common protocol version: this side speaks 2 to 4, the peer 1");
}

// Frames have changed with version 2 (wire/frame.h), the words after a hello with version 3 (net/transport.h),
// ids of nodes with version 4 (base/ids.h): whoever speaks only the first is not let in.
TEST(Hello, AProcessThatSpeaksTheVersionBeforeRoutesIsRefused) {
  Connection c;
  c.acceptor_identity.version_min = kProtocolVersionMin;
  c.acceptor_identity.version_max = kProtocolVersionMax;
  c.reset();
  expect_refused(c.acceptor->on_open(c.dialer->open_bytes()), ErrorCode::kUnsupported,
                 "no common protocol version: this side speaks 5, the peer 1");
}

TEST(Hello, AnotherJobIsRefusedBeforeAnyProofIsSent) {
  Connection c;
  c.dialer_identity.job = filled<16>(0x0B);
  c.reset();
  expect_refused(c.acceptor->on_open(c.dialer->open_bytes()), ErrorCode::kUnsupported,
                 "the peer belongs to job 0b0b0b0b, not to job 4a4a4a4a");
}

TEST(Hello, AConnectionToItselfIsRefused) {
  Connection c;
  expect_refused(c.dialer->on_open(c.dialer->open_bytes()), ErrorCode::kUnsupported,
                 "the peer has this process's own node id: a connection to itself");
}

TEST(Hello, AWrongTokenIsRefusedByBothSides) {
  Connection c;
  c.dialer_identity.token[15] ^= std::byte{1};
  c.reset();
  auto from_acceptor = c.acceptor->on_open(c.dialer->open_bytes());
  auto from_dialer = c.dialer->on_open(c.acceptor->open_bytes());
  ASSERT_TRUE(from_acceptor.ok() && from_dialer.ok());
  EXPECT_FALSE(c.acceptor->on_proof(*from_dialer).ok());
  EXPECT_FALSE(c.dialer->on_proof(*from_acceptor).ok());
}

TEST(Hello, AProofSentBackToItsAuthorIsRefused) {
  Connection c;
  auto own = c.acceptor->on_open(c.dialer->open_bytes());
  EXPECT_FALSE(c.acceptor->on_proof(*own).ok());
}

// The holder of a token in the wrong role: both ends believe that they accept.
TEST(Hello, AProofOfTheWrongRoleIsRefused) {
  Connection c;
  Counting same(100);  // the dialer's nonce, so that only the role differs
  Handshake also_accepting(HelloRole::kAcceptor, c.dialer_identity, same);
  ASSERT_TRUE(c.acceptor->on_open(also_accepting.open_bytes()).ok());
  auto proof = also_accepting.on_open(c.acceptor->open_bytes());
  ASSERT_TRUE(proof.ok());
  EXPECT_FALSE(c.acceptor->on_proof(*proof).ok());
}

TEST(Hello, ARecordedProofIsWorthlessOnTheNextConnection) {
  Connection c;
  ASSERT_TRUE(c.acceptor->on_open(c.dialer->open_bytes()).ok());
  HelloProof recorded = *c.dialer->on_open(c.acceptor->open_bytes());
  Counting later(900);
  Handshake next(HelloRole::kAcceptor, c.acceptor_identity, later);
  ASSERT_TRUE(next.on_open(c.dialer->open_bytes()).ok());  // the recorded open is accepted
  EXPECT_FALSE(next.on_proof(recorded).ok());
}

TEST(Hello, NonsenseInAnOpenIsMalformed) {
  Connection c;
  expect_refused(c.acceptor->on_open(write_hello_open({.version_min = 2, .version_max = 1, .node = 5})),
                 ErrorCode::kMalformed, "the peer's range of protocol versions is empty");
  c.reset();
  expect_refused(c.acceptor->on_open(write_hello_open({.node = 0})), ErrorCode::kMalformed,
                 "the peer has no node id");
}

TEST(Hello, CallsOutOfTurnEndIt) {
  Connection c;
  auto early = c.acceptor->on_proof(filled<32>(0));
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().message, "hello: a proof out of turn");
  expect_refused(c.acceptor->on_open(c.dialer->open_bytes()), ErrorCode::kBug, "hello: an open out of turn");

  c.reset();
  auto from_acceptor = c.acceptor->on_open(c.dialer->open_bytes());
  auto from_dialer = c.dialer->on_open(c.acceptor->open_bytes());
  ASSERT_TRUE(c.acceptor->on_proof(*from_dialer).ok());
  EXPECT_FALSE(c.acceptor->on_proof(*from_dialer).ok());
  EXPECT_EQ(c.acceptor->state(), Handshake::State::kRefused);
}

}  // namespace
}  // namespace monarch
