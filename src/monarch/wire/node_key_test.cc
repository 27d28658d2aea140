#include "monarch/wire/node_key.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

NodeKey key_of(int number) {
  NodeKey::Seed seed{};
  seed[0] = static_cast<std::byte>(number);
  return NodeKey(seed);
}

TEST(NodeKey, NamesANodeThatOnlyItsOwnerCanBe) {
  const NodeKey key = key_of(1), other = key_of(2);
  EXPECT_EQ(key.id(), node_id_of(key.public_key()));
  EXPECT_NE(key.id(), other.id());
  EXPECT_GT(static_cast<int64_t>(key.id()), 0);
  const ByteSpan message = as_byte_span("hello", 5);
  const Signature signature = key.sign(message);
  EXPECT_TRUE(verify_signature(key.public_key(), message, signature));
  EXPECT_FALSE(verify_signature(other.public_key(), message, signature));
  EXPECT_FALSE(verify_signature(key.public_key(), as_byte_span("Hello", 5), signature));
}

TEST(NodeKey, IsMadeAnewEachTimeAndComesBackFromItsSeed) {
  SystemRandom random;
  const NodeKey key = NodeKey::make(random);
  EXPECT_NE(key.id(), NodeKey::make(random).id());
  EXPECT_EQ(NodeKey(key.seed()).id(), key.id());
}

TEST(NodeKey, SaysOnWhichHostItsNodeIs) {
  const NodeKey::Seed seed = key_of(1).seed();
  for (const HostNumber host : {HostNumber{0}, HostNumber{1}, kHostMax}) {
    const NodeId node = NodeKey(seed, host).id();
    EXPECT_EQ(host_number(node), host);
    EXPECT_EQ(node, node_id_of(NodeKey(seed).public_key(), host));
    EXPECT_GT(static_cast<int64_t>(node), 0);
  }
}

}  // namespace
}  // namespace monarch
