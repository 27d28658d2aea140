// Two attacks. A stranger without the token sends anything in any order: it never gets through. And somebody
// in between changes a true hello: any change at all is refused, no change is accepted.
#include <algorithm>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/wire/hello.h"

namespace monarch {
namespace {

class Fixed final : public Random {
 public:
  explicit Fixed(uint64_t next) : next_(next) {}
  uint64_t next_u64() override { return next_++; }

 private:
  uint64_t next_;
};

HelloIdentity identity(int number) {
  const NodeKey key(NodeKey::Seed{static_cast<std::byte>(number)});
  HelloIdentity who{.node = key.id(), .key = key, .features = kFeatureShm};
  ++who.version_max;
  who.token.fill(std::byte{0x33});
  return who;
}

void stranger(std::span<const std::byte> input) {
  Fixed random(1);
  Handshake hello(HelloRole::kAcceptor, identity(1), random);
  while (!input.empty()) {
    bool open = (input[0] & std::byte{1}) == std::byte{0};
    bool as_wanted = (input[0] & std::byte{2}) == std::byte{0};  // else a length from the input
    size_t length = as_wanted ? hello.bytes_wanted() : static_cast<size_t>(input[0]) >> 2;
    input = input.subspan(1);
    auto taken = input.first(std::min(length, input.size()));
    std::vector<std::byte> bytes(taken.begin(), taken.end());
    input = input.subspan(taken.size());
    if (open) {
      Result<HelloProof> result = hello.on_open(bytes);
      MONARCH_CHECK(result.ok() || !result.error().message.empty());
    } else {
      MONARCH_CHECK(!hello.on_proof(bytes).ok());
    }
  }
  MONARCH_CHECK(hello.state() != Handshake::State::kDone);
}

// `flips` is laid over the bytes that the dialer sends, which may be a guest.
void man_in_between(std::span<const std::byte> flips, bool guest) {
  Fixed random(1);
  HelloIdentity dialing = identity(1);
  if (guest) dialing.features |= kFeatureGuest;
  Handshake dialer(HelloRole::kDialer, dialing, random);
  Handshake acceptor(HelloRole::kAcceptor, identity(2), random);
  bool changed = false;
  auto deliver = [&](std::span<const std::byte> sent) {
    std::vector<std::byte> bytes(sent.begin(), sent.end());
    for (size_t i = 0; i < bytes.size() && i < flips.size(); ++i) {
      bytes[i] ^= flips[i];
      changed |= flips[i] != std::byte{0};
    }
    flips = flips.subspan(std::min(flips.size(), bytes.size()));
    return bytes;
  };
  Result<HelloProof> from_dialer = dialer.on_open(acceptor.open_bytes());
  MONARCH_CHECK(from_dialer.ok());
  Result<HelloProof> from_acceptor = acceptor.on_open(deliver(dialer.open_bytes()));
  if (!from_acceptor.ok()) {
    MONARCH_CHECK(changed);
    return;
  }
  MONARCH_CHECK(dialer.on_proof(*from_acceptor).ok() == !changed);
  Result<HelloPeer> accepted = acceptor.on_proof(deliver(*from_dialer));
  MONARCH_CHECK(accepted.ok() == !changed);
  MONARCH_CHECK(!accepted.ok() || accepted->guest == guest);
}

}  // namespace
}  // namespace monarch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? monarch::stranger(input) : monarch::man_in_between(input, data[0] % 4 == 1);
  return 0;
}
