// Which hosts of a job there are, as far as everybody can know it without asking. Hosts that are reached over a network
// have numbers, which the script gives; a node's stands in its id (base/ids.h). One process of each host, its *gateway*,
// has links to those of the others, and everybody there goes through it; on host 0 that is the script.
#pragma once

#include <mutex>
#include <unordered_map>

#include "monarch/base/ids.h"
#include "monarch/wire/hello.h"

namespace monarch {

class Gateways {
 public:
  Gateways(NodeId self, NodeId script, const JobToken& token) : self_(self), script_(script), token_(token) {}

  // Any thread. Through whom this process reaches `node`, which belongs to its job; 0: not through others.
  NodeId of(NodeId node) const;
  // Any thread. The gateway of a host.
  NodeId gateway(HostNumber host) const;

  // The key of a gateway but the script: HMAC-SHA256(token, a text of its own and the number). So all members of a job know
  // each one's id, and could take its place, as whoever has the token could do any other harm.
  static NodeKey key_of(const JobToken& token, HostNumber host);

 private:
  const NodeId self_, script_;
  const JobToken token_;
  mutable std::mutex mutex_;  // a leaf
  mutable std::unordered_map<HostNumber, NodeId> known_;
};

}  // namespace monarch
