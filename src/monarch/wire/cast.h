// One copy of a frame for several actors of one host, who are reached through its gateway: a kCast frame. Its parts are
// those of the frame, its rank is kEveryRank, and its body is
//     0  the frame's header   56 bytes   dest is that of each target; rank, too, and here stands the reducer of the
//                                        answers, perhaps with kAnswersByTree
//    56  count                u64
//    64  targets              24 bytes each: node u64, actor index u64, rank u32, 0 u32
//        the frame's body
#pragma once

#include <string>
#include <vector>

#include "monarch/wire/frame.h"

namespace monarch {

struct CastTarget {
  uint64_t node = 0;
  uint64_t dest = 0;
  uint32_t rank = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(CastTarget) == 24);

struct CastFrame {
  FrameHeader header;
  std::vector<CastTarget> targets;
  ByteSpan body;  // within what was decoded
};

inline constexpr uint32_t kEveryRank = UINT32_MAX;  // of the answer to a cast that was lost, with all that was in it

// Beside the reducer: gateways may give what their hosts have answered to whoever has passed the cast on to them.
inline constexpr uint32_t kAnswersByTree = 0x100;

// What can be cast: what is sent to actors, and to gateways of what they have answered.
constexpr bool can_be_cast(FrameKind kind) {
  return kind == FrameKind::kRequest || kind == FrameKind::kOneway || kind == FrameKind::kSpawn ||
         kind == FrameKind::kStopActor || kind == FrameKind::kTreeSeen;
}

std::string encode_cast(const FrameHeader& header, const std::vector<CastTarget>& targets, ByteSpan body);
Result<CastFrame> decode_cast(ByteSpan bytes);

}  // namespace monarch
