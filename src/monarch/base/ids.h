// Identities. A node is one incarnation of a process: a random 63-bit number, never reused. An actor is a node and an
// index that its creator chooses, so a handle exists, can be called and can be sent before the actor does.
#pragma once

#include <cstdint>
#include <functional>

#include "monarch/base/random.h"

namespace monarch {

using NodeId = uint64_t;      // 0: none
using ActorIndex = uint64_t;  // unique within its node, never reused; 0: none

// 63 bits: an integer of the native codec, as which messages hold it.
inline NodeId new_node_id(Random& random) { return random.next_u64() >> 1 | 1; }

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
