#include "monarch/host/membership/gateways.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <cstring>

#include "monarch/base/check.h"

namespace monarch {

NodeKey Gateways::key_of(const JobToken& token, HostNumber host) {
  MONARCH_CHECK(host != 0 && host <= kHostMax);
  const std::string purpose = "monarch gateway " + std::to_string(host);
  NodeKey::Seed seed;
  unsigned int size = seed.size();
  MONARCH_CHECK(HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                     reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
                     reinterpret_cast<unsigned char*>(seed.data()), &size) != nullptr &&
                size == seed.size());
  NodeKey key(seed, host);
  OPENSSL_cleanse(seed.data(), seed.size());
  return key;
}

NodeId Gateways::gateway(HostNumber host) const {
  if (host == 0) return script_;
  std::lock_guard lock(mutex_);
  NodeId& known = known_[host];
  if (known == 0) known = key_of(token_, host).id();
  return known;
}

NodeId Gateways::of(NodeId node) const {
  const HostNumber here = host_number(self_), there = host_number(node);
  if (there == here) return 0;
  const NodeId own = gateway(here), next = gateway(own == self_ ? there : here);
  return next == node ? 0 : next;
}

}  // namespace monarch
