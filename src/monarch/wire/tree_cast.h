// A frame for actors of many hosts, which goes through a tree of gateways: a kTreeCast frame. Its parts are those of the
// frame, its rank is kEveryRank, `dest` is the origin, `token` the number of its first host and `sender` the session of
// that, so that who has no memory for the rest can say what was lost. Its body is
//     0  the frame's header   56 bytes   dest and rank are those of each target
//    56  origin               u64        the gateway that has numbered it; 0: it goes to that one, and has no numbers yet
//    64  sender               u64        the node that has sent it; of the origin's host
//    72  fan-out              u32        in so many groups each gateway passes on the hosts behind itself, the first
//    76  hosts                u32
//    80  hosts                40 bytes each: gateway u64, session u64, number u64, after u64, count of its targets u32,
//                             0 u32
//        targets              24 bytes each, as in wire/cast.h; those of the first host first
//        the frame's body
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "monarch/wire/cast.h"

namespace monarch {

struct TreeHost {
  uint64_t gateway = 0;
  uint64_t session = 0;  // on which its origin sends to it at the time (Link::session())
  uint64_t number = 0;   // the tree casts of that session are counted, from 1, and delivered in that order
  uint64_t after = 0;    // how many data frames of the session this host must have got before
  uint32_t targets = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(TreeHost) == 40);

// Refers to what was decoded, or is to be encoded, which may lie at any address.
struct TreeCast {
  FrameHeader header;
  uint64_t origin = 0;
  uint64_t sender = 0;
  uint32_t fan_out = 0;
  ByteSpan hosts;
  ByteSpan targets;
  ByteSpan body;

  size_t host_count() const { return hosts.size() / sizeof(TreeHost); }
  TreeHost host(size_t i) const { return at<TreeHost>(hosts, i); }
  size_t target_count() const { return targets.size() / sizeof(CastTarget); }
  CastTarget target(size_t i) const { return at<CastTarget>(targets, i); }

 private:
  template <typename Entry>
  static Entry at(ByteSpan bytes, size_t i) {
    Entry entry;
    std::memcpy(&entry, bytes.data() + i * sizeof entry, sizeof entry);
    return entry;
  }
};

inline constexpr uint32_t kFanOutMin = 2;

std::string encode_tree_cast(const TreeCast& cast);
// With these in the place of its targets, one after the other.
std::string encode_tree_cast(const TreeCast& cast, std::span<const ByteSpan> targets);
// kMalformed. Of the targets only the number is looked at: it is whoever is their gateway who must not believe them.
Result<TreeCast> decode_tree_cast(ByteSpan bytes);

}  // namespace monarch
