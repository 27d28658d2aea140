// Hello: what both ends of a new connection exchange before anything else is parsed. It ends with each side
// sure that the other knows the token of the same job and is the node that it says it is (wire/node_key.h),
// and with a protocol version and features that both have.
//
//   1. each side sends its open, at once:   56 bytes
//        0  magic         8 bytes   "MONARCH2"; the digit counts layouts of the hello itself
//        8  version_min   u16       protocol versions that this side speaks
//       10  version_max   u16
//       12  features      u32       bits, kFeature...
//       16  node          u64       this process, never 0
//       24  job          16 bytes
//       40  nonce        16 bytes   random, new for each connection
//   2. having accepted the other's open, it sends its proof:   128 bytes
//        0  HMAC-SHA256(key: token, message)   32 bytes   message: role byte || own open || peer's open || binding
//       32  public key                         32 bytes   role byte: 1 dialer, 2 acceptor
//       64  Ed25519 signature of the message   64 bytes   binding: 32 bytes of the TLS that it is spoken in; without: none
//
// All numbers are little-endian. The open keeps this layout in every version: that is how two versions
// without common ground can say so. The proof covers both opens, so nothing in them can be changed on the way
// (no downgrade); the nonces make a recorded proof worthless, and the role byte one that is sent back to its
// author.
//
// It proves that the peer belongs to the job, and who it is there: other members have the token too, but not
// its key, whose hash its node id is. No more: it does not encrypt, nor protect the bytes that follow
// from one who sits in between. On one host the kernel's sockets see to that, between hosts TLS.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "monarch/base/ids.h"
#include "monarch/base/random.h"
#include "monarch/base/result.h"
#include "monarch/wire/node_key.h"

namespace monarch {

using JobId = std::array<std::byte, 16>;     // not secret: handles carry it
using JobToken = std::array<std::byte, 16>;  // secret: whoever knows it belongs to the job
using ChannelBinding = std::array<std::byte, 32>;  // of one connection with TLS

inline constexpr uint16_t kProtocolVersionMin = 5;  // what this library speaks
inline constexpr uint16_t kProtocolVersionMax = 5;

// What a side can do. Used is what both can.
inline constexpr uint32_t kFeatureShm = 1u << 0;
inline constexpr uint32_t kFeatureArena = 1u << 1;
// Not what it can do, but what it is: a process of another job, which has been given this one's token.
inline constexpr uint32_t kFeatureGuest = 1u << 4;

inline constexpr size_t kHelloOpenBytes = 56;
inline constexpr size_t kHelloProofBytes = 128;
// All that is ever read from a stranger.
static_assert(kHelloOpenBytes + kHelloProofBytes <= 256);

using HelloOpenBytes = std::array<std::byte, kHelloOpenBytes>;
using HelloProof = std::array<std::byte, kHelloProofBytes>;

// The content of an open, in host form.
struct HelloOpen {
  uint16_t version_min = kProtocolVersionMin;
  uint16_t version_max = kProtocolVersionMax;
  uint32_t features = 0;
  NodeId node = 0;
  JobId job{};
  std::array<std::byte, 16> nonce{};
};

HelloOpenBytes write_hello_open(const HelloOpen& open);

// kMalformed: the size or the magic is wrong ("not a monarch peer"), or the content makes no sense.
Result<HelloOpen> read_hello_open(std::span<const std::byte> bytes);

enum class HelloRole : uint8_t { kDialer = 1, kAcceptor = 2 };

// Who this side is.
struct HelloIdentity {
  NodeId node = 0;  // the key's
  NodeKey key{};
  JobId job{};
  JobToken token{};
  uint32_t features = 0;
  uint16_t version_min = kProtocolVersionMin;
  uint16_t version_max = kProtocolVersionMax;
};

// The other side, once it has proved itself.
struct HelloPeer {
  NodeId node = 0;
  uint16_t version = 0;   // the highest that both speak
  uint32_t features = 0;  // those of both
  bool guest = false;     // it says kFeatureGuest
};

// One side of one hello. Pure: whoever owns the socket sends what it says, reads exactly bytes_wanted() bytes
// at a time and hands them in, with a time limit of its own. Belongs to one thread; wipes its copy of the
// token when it ends.
//
//   send(hello.open_bytes());
//   Result<HelloProof> proof = hello.on_open(read(hello.bytes_wanted()));    // an error: close the connection
//   send(*proof);
//   Result<HelloPeer> peer = hello.on_proof(read(hello.bytes_wanted()));     // an error: close the connection
//
// Error codes: kMalformed, no monarch peer or one that sends nonsense; kUnsupported, a monarch peer that this
// side will never be able to talk to (version, job, token, itself); kBug, a call out of turn. After any error
// the hello is over, and every later call is refused. Texts are one line, and never contain a token.
class Handshake {
 public:
  // `random` is used here only. identity.node is not 0.
  Handshake(HelloRole role, const HelloIdentity& identity, Random& random);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  std::span<const std::byte> open_bytes() const { return own_open_; }

  // Before the peer's open: what only the two ends of this connection know (TLS, RFC 9266) becomes part of what is proved,
  // so that nobody sits between them who has a connection with each.
  void bind_to(const ChannelBinding& binding) { binding_ = binding; }

  // Takes the peer's open, gives the proof to send.
  Result<HelloProof> on_open(std::span<const std::byte> bytes);

  // Takes the peer's proof. On success the hello is over and the connection may be used.
  Result<HelloPeer> on_proof(std::span<const std::byte> bytes);

  // Of bytes_wanted(), these have come: whether they can be the beginning of what a monarch peer sends.
  bool may_begin_with(std::span<const std::byte> bytes) const;

  // The size of what the peer sends next; 0: nothing more is to be read as part of the hello.
  size_t bytes_wanted() const;

  enum class State : uint8_t { kAwaitingOpen, kAwaitingProof, kDone, kRefused };
  State state() const { return state_; }

  enum class Event : uint8_t { kOpenAccepted, kProofAccepted, kRefusal };

 private:
  Error refuse(Error why);
  void move(Event event);
  Result<HelloPeer> agree(const HelloOpen& peer) const;

  const HelloRole role_;
  HelloIdentity identity_;
  HelloOpenBytes own_open_;
  HelloOpenBytes peer_open_{};
  ChannelBinding binding_{};
  HelloPeer peer_;
  State state_ = State::kAwaitingOpen;
};

// Has one with itself. The first of a process takes 1.5 ms, in which OpenSSL looks up what it needs; children of fork()
// then need not.
void rehearse_handshake();

}  // namespace monarch
