#include "monarch/wire/node_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstring>
#include <memory>

#include "monarch/base/check.h"

namespace monarch {

namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

NodeKey::NodeKey(const Seed& seed, HostNumber host)
    : seed_(seed),
      key_(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw(seed.data()), seed.size()), &EVP_PKEY_free) {
  size_t size = public_key_.size();
  MONARCH_CHECK(key_ != nullptr && EVP_PKEY_get_raw_public_key(key_.get(), raw(public_key_.data()), &size) == 1);
  id_ = node_id_of(public_key_, host);
}

NodeKey NodeKey::make(Random& random, HostNumber host) {
  Seed seed;
  uint64_t words[4];
  for (uint64_t& word : words) word = random.next_u64();
  static_assert(sizeof words == sizeof seed);
  std::memcpy(seed.data(), words, sizeof words);
  NodeKey key(seed, host);
  OPENSSL_cleanse(words, sizeof words);
  OPENSSL_cleanse(seed.data(), seed.size());
  return key;
}

NodeKey::~NodeKey() { OPENSSL_cleanse(seed_.data(), seed_.size()); }

Signature NodeKey::sign(ByteSpan message) const {
  Signature signature;
  size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  MONARCH_CHECK(context != nullptr && key_ != nullptr);
  MONARCH_CHECK(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1);
  MONARCH_CHECK(EVP_DigestSign(context.get(), raw(signature.data()), &size, raw(message.data()), message.size()) == 1);
  return signature;
}

// 63 bits: an integer of the native codec, as which messages hold it; never 0.
NodeId node_id_of(const PublicKey& key, HostNumber host) {
  MONARCH_CHECK(host <= kHostMax);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  MONARCH_CHECK(EVP_Digest(key.data(), key.size(), digest, &size, EVP_sha256(), nullptr) == 1 && size >= sizeof(NodeId));
  NodeId id;
  std::memcpy(&id, digest, sizeof id);
  return NodeId{host} << kHostShift | id >> (64 - kHostShift) | 1;
}

bool verify_signature(const PublicKey& key, ByteSpan message, const Signature& signature) {
  const Key verifier(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw(key.data()), key.size()),
                     &EVP_PKEY_free);
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  return verifier != nullptr && context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, verifier.get()) == 1 &&
         EVP_DigestVerify(context.get(), raw(signature.data()), signature.size(), raw(message.data()),
                          message.size()) == 1;
}

}  // namespace monarch
