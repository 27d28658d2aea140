// Identities. A node is one incarnation of a process: the number of its host and a hash of its key (wire/node_key.h), 63
// bits together, never reused. An actor
// is a node and an index that its creator chooses, so a handle exists, can be called and can be sent before the actor does.
#pragma once

#include <cstdint>
#include <functional>

#include "monarch/base/random.h"

namespace monarch {

using NodeId = uint64_t;      // 0: none
using ActorIndex = uint64_t;  // unique within its node, never reused; 0: none

// Both have 63 bits: integers of the native codec, as which messages hold them.
inline constexpr uint64_t kIdMask = (uint64_t{1} << 63) - 1;

// Where a node is stands in its id: the upper bits are the number of its host in the job. 0: the machine of the script, and
// whoever needs no other; the rest are hosts that are reached over a network (host/membership/gateways.h).
using HostNumber = uint32_t;
inline constexpr int kHostBits = 14, kHostShift = 63 - kHostBits;
inline constexpr HostNumber kHostMax = (1u << kHostBits) - 1;
constexpr HostNumber host_number(NodeId node) { return static_cast<HostNumber>((node & kIdMask) >> kHostShift); }

inline NodeId new_node_id(Random& random) { return random.next_u64() >> 1 | 1; }

// Any node may create actors on any other without asking, so indices are made to be unique among the creators: an index
// is the id of its creator plus a number that the creator counts up. All 48 random bits of the ids take part, so two of n
// creators on one host that have made k indices each, all of them on one node, ever make the same one with a probability
// of n^2 k / 2^48:
//
//                                k = 1,000    k = 100,000
//     n =    64 processes a host   1e-8          1e-6
//     n = 1,000 processes a host   4e-6          4e-4
//
// A node that is asked for an actor under an index that it has refuses that loudly (Node).
//
// The first numbers are for actors that others have to be able to name (base/well_known.h): counting begins behind them.
inline constexpr uint64_t kFirstNumber = 16;
constexpr ActorIndex actor_index(NodeId creator, uint64_t number) { return (creator + number) & kIdMask; }

// Whether `creator` may have made `index`. Beyond kNumberMax indices, and for creators whose ids lie so near to each
// other (a few pairs among 100,000 processes), the answer can be wrong: nothing but the text or the moment of a failure
// may depend on it.
inline constexpr uint64_t kNumberMax = uint64_t{1} << 32;
constexpr bool may_have_created(NodeId creator, ActorIndex index) { return ((index - creator) & kIdMask) < kNumberMax; }

struct ActorId {
  NodeId node = 0;
  ActorIndex index = 0;
  friend bool operator==(const ActorId&, const ActorId&) = default;
};

}  // namespace monarch

template <>
struct std::hash<monarch::ActorId> {
  size_t operator()(const monarch::ActorId& id) const noexcept {
    return id.node ^ (id.index * 0x9E3779B97F4A7C15ull);
  }
};
