#include "monarch/wire/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/base/hex.h"

namespace monarch {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is written with plain stores");

constexpr char kMagic[8] = {'M', 'O', 'N', 'A', 'R', 'C', 'H', '2'};

// The layout of an open (hello.h), field by field, for both directions.
template <typename Open, typename Visit>
void visit_fields(Open& open, Visit visit) {
  size_t at = sizeof kMagic;
  auto field = [&](auto& value) {
    visit(at, &value, sizeof value);
    at += sizeof value;
  };
  field(open.version_min);
  field(open.version_max);
  field(open.features);
  field(open.node);
  field(open.job);
  field(open.nonce);
  MONARCH_CHECK(at == kHelloOpenBytes);
}

using State = Handshake::State;
using Event = Handshake::Event;

struct Transition {
  State from;
  Event event;
  State to;
  const char* why;
};

// What is not in the table cannot happen: on_open and on_proof refuse a call out of turn.
constexpr Transition kTransitions[] = {
    {State::kAwaitingOpen, Event::kOpenAccepted, State::kAwaitingProof,
     "The proof covers the peer's open, so it can only be made and checked once that is known."},
    {State::kAwaitingProof, Event::kProofAccepted, State::kDone,
     "The peer has token and key and saw the same two opens: it belongs to the job, is who it says, and agrees."},
    {State::kAwaitingOpen, Event::kRefusal, State::kRefused,
     "A stranger gets no proof: one for an open of its choice is the only thing it could learn from us."},
    {State::kAwaitingProof, Event::kRefusal, State::kRefused,
     "A second try on the same nonces would be a second guess: the peer has to connect again."},
    {State::kDone, Event::kRefusal, State::kRefused,
     "Hello bytes after the hello mean that the caller lost count: what it reads next is not to be trusted."},
    {State::kRefused, Event::kRefusal, State::kRefused, "Over is over, whatever is still handed in."},
};

using SignedMessage = std::vector<std::byte>;
using Mac = std::array<std::byte, 32>;

// Where things lie in a proof.
constexpr size_t kKeyAt = sizeof(Mac);
constexpr size_t kSignatureAt = kKeyAt + sizeof(PublicKey);
static_assert(kSignatureAt + sizeof(Signature) == kHelloProofBytes);

SignedMessage message_of(HelloRole author, const HelloOpenBytes& authors_open, const HelloOpenBytes& others_open,
                         const ChannelBinding& binding) {
  const bool bound = binding != ChannelBinding{};
  SignedMessage message(1 + 2 * kHelloOpenBytes + (bound ? binding.size() : 0));
  message[0] = static_cast<std::byte>(author);
  std::memcpy(message.data() + 1, authors_open.data(), kHelloOpenBytes);
  std::memcpy(message.data() + 1 + kHelloOpenBytes, others_open.data(), kHelloOpenBytes);
  if (bound) std::memcpy(message.data() + 1 + 2 * kHelloOpenBytes, binding.data(), binding.size());
  return message;
}

Mac mac_of(const JobToken& token, const SignedMessage& message) {
  Mac mac;
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &size);
  MONARCH_CHECK(made != nullptr && size == mac.size());
  return mac;
}

HelloRole other(HelloRole role) {
  return role == HelloRole::kDialer ? HelloRole::kAcceptor : HelloRole::kDialer;
}

std::string range(uint16_t min, uint16_t max) {
  return min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max);
}

std::string short_hex(const JobId& job) { return to_hex(job.data(), 4); }

}  // namespace

HelloOpenBytes write_hello_open(const HelloOpen& open) {
  HelloOpenBytes bytes;
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  visit_fields(open, [&](size_t at, const void* field, size_t size) {
    std::memcpy(bytes.data() + at, field, size);
  });
  return bytes;
}

Result<HelloOpen> read_hello_open(std::span<const std::byte> bytes) {
  if (bytes.size() != kHelloOpenBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    return Error{ErrorCode::kMalformed, "not a monarch peer"};
  HelloOpen open;
  visit_fields(open, [&](size_t at, void* field, size_t size) {
    std::memcpy(field, bytes.data() + at, size);
  });
  if (open.version_min > open.version_max)
    return Error{ErrorCode::kMalformed, "the peer's range of protocol versions is empty"};
  if (open.node == 0) return Error{ErrorCode::kMalformed, "the peer has no node id"};
  return open;
}

Handshake::Handshake(HelloRole role, const HelloIdentity& identity, Random& random)
    : role_(role), identity_(identity) {
  MONARCH_CHECK(identity.node != 0);
  MONARCH_CHECK(identity.version_min <= identity.version_max);
  HelloOpen open{.version_min = identity.version_min,
                 .version_max = identity.version_max,
                 .features = identity.features,
                 .node = identity.node,
                 .job = identity.job};
  const uint64_t nonce[2] = {random.next_u64(), random.next_u64()};
  static_assert(sizeof nonce == sizeof open.nonce);
  std::memcpy(open.nonce.data(), nonce, sizeof nonce);
  own_open_ = write_hello_open(open);
}

Handshake::~Handshake() { OPENSSL_cleanse(identity_.token.data(), identity_.token.size()); }

size_t Handshake::bytes_wanted() const {
  switch (state_) {
    case State::kAwaitingOpen: return kHelloOpenBytes;
    case State::kAwaitingProof: return kHelloProofBytes;
    case State::kDone:
    case State::kRefused: break;
  }
  return 0;
}

bool Handshake::may_begin_with(std::span<const std::byte> bytes) const {
  return state_ != State::kAwaitingOpen || std::memcmp(bytes.data(), kMagic, std::min(bytes.size(), sizeof kMagic)) == 0;
}

Result<HelloProof> Handshake::on_open(std::span<const std::byte> bytes) {
  if (state_ != State::kAwaitingOpen) return refuse({ErrorCode::kBug, "hello: an open out of turn"});
  Result<HelloOpen> open = read_hello_open(bytes);
  if (!open.ok()) return refuse(open.error());
  Result<HelloPeer> peer = agree(*open);
  if (!peer.ok()) return refuse(peer.error());
  peer_ = *peer;
  std::memcpy(peer_open_.data(), bytes.data(), kHelloOpenBytes);
  move(Event::kOpenAccepted);
  const SignedMessage message = message_of(role_, own_open_, peer_open_, binding_);
  const Mac mac = mac_of(identity_.token, message);
  const Signature signature = identity_.key.sign(message);
  HelloProof proof;
  std::memcpy(proof.data(), mac.data(), sizeof mac);
  std::memcpy(proof.data() + kKeyAt, identity_.key.public_key().data(), sizeof(PublicKey));
  std::memcpy(proof.data() + kSignatureAt, signature.data(), sizeof signature);
  return proof;
}

Result<HelloPeer> Handshake::on_proof(std::span<const std::byte> bytes) {
  if (state_ != State::kAwaitingProof) return refuse({ErrorCode::kBug, "hello: a proof out of turn"});
  if (bytes.size() != kHelloProofBytes) return refuse({ErrorCode::kMalformed, "hello: a proof has 128 bytes"});
  const SignedMessage message = message_of(other(role_), peer_open_, own_open_, binding_);
  const Mac expected = mac_of(identity_.token, message);
  if (CRYPTO_memcmp(bytes.data(), expected.data(), expected.size()) != 0)
    return refuse({ErrorCode::kUnsupported, "the peer does not have the token of job " + short_hex(identity_.job)});
  PublicKey key;
  Signature signature;
  std::memcpy(key.data(), bytes.data() + kKeyAt, sizeof key);
  std::memcpy(signature.data(), bytes.data() + kSignatureAt, sizeof signature);
  if (node_id_of(key, host_number(peer_.node)) != peer_.node || !verify_signature(key, message, signature))
    return refuse({ErrorCode::kUnsupported, "the peer is not the node that it says it is"});
  move(Event::kProofAccepted);
  return peer_;
}

// What this side has in common with the peer, if that is enough.
Result<HelloPeer> Handshake::agree(const HelloOpen& peer) const {
  uint16_t version = std::min(identity_.version_max, peer.version_max);
  if (version < std::max(identity_.version_min, peer.version_min))
    return Error{ErrorCode::kUnsupported, "no common protocol version: this side speaks " +
                                              range(identity_.version_min, identity_.version_max) + ", the peer " +
                                              range(peer.version_min, peer.version_max)};
  if (peer.job != identity_.job)
    return Error{ErrorCode::kUnsupported,
                 "the peer belongs to job " + short_hex(peer.job) + ", not to job " + short_hex(identity_.job)};
  if (peer.node == identity_.node)
    return Error{ErrorCode::kUnsupported, "the peer has this process's own node id: a connection to itself"};
  return HelloPeer{.node = peer.node,
                   .version = version,
                   .features = identity_.features & peer.features,
                   .guest = (peer.features & kFeatureGuest) != 0};
}

Error Handshake::refuse(Error why) {
  move(Event::kRefusal);
  return why;
}

void Handshake::move(Event event) {
  for (const Transition& row : kTransitions) {
    if (row.from != state_ || row.event != event) continue;
    state_ = row.to;
    return;
  }
  MONARCH_CHECK(!"a transition that is not in the table");
}

void rehearse_handshake() {
  SystemRandom random;
  HelloIdentity one, other;
  for (HelloIdentity* who : {&one, &other}) {
    who->key = NodeKey::make(random);
    who->node = who->key.id();
  }
  Handshake dialer(HelloRole::kDialer, one, random), acceptor(HelloRole::kAcceptor, other, random);
  auto proof = dialer.on_open(acceptor.open_bytes());
  MONARCH_CHECK(proof.ok() && acceptor.on_open(dialer.open_bytes()).ok() && acceptor.on_proof(*proof).ok());
}

}  // namespace monarch
