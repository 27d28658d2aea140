// Who a node is, in a way that nobody else can claim: its id is made of a public key, and the hello (wire/hello.h) shows
// that a process has the private one. Whoever creates a node makes its key and hands it over, so the id exists, and can be
// called, before the process does. Ed25519 (RFC 8032); about 40 us to make or to sign, 100 us to verify.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "monarch/base/bytes.h"
#include "monarch/base/ids.h"
#include "monarch/base/random.h"

struct evp_pkey_st;  // OpenSSL's

namespace monarch {

using PublicKey = std::array<std::byte, 32>;
using Signature = std::array<std::byte, 64>;

class NodeKey {
 public:
  using Seed = std::array<std::byte, 32>;

  NodeKey() = default;  // of nobody
  explicit NodeKey(const Seed& seed, HostNumber host = 0);
  static NodeKey make(Random& random, HostNumber host = 0);
  NodeKey(const NodeKey&) = default;
  NodeKey& operator=(const NodeKey&) = default;
  ~NodeKey();  // wipes the seed

  NodeId id() const { return id_; }
  const Seed& seed() const { return seed_; }  // secret
  const PublicKey& public_key() const { return public_key_; }
  Signature sign(ByteSpan message) const;

 private:
  Seed seed_{};
  std::shared_ptr<evp_pkey_st> key_;  // shared: by copies. To make it takes as long as to sign
  PublicKey public_key_{};
  NodeId id_ = 0;
};

// The id of the node that has this key, on that host.
NodeId node_id_of(const PublicKey& key, HostNumber host = 0);
bool verify_signature(const PublicKey& key, ByteSpan message, const Signature& signature);

}  // namespace monarch
