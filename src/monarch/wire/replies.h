// The answers of several ranks of a call in one frame: a kReply whose rank is kEveryRank (wire/cast.h). Its parts are, for
// each answer that has a value, the body of that and its parts; its body says whose they are:
//     16 bytes each: rank u32, flags u32, how many of the parts u32, 0 u32
// An answer without parts has no value of its own: it stands in that of a lower rank (kFlagReduce), or nobody wants it.
// A kTreeReply is the same, of several hosts.
//
// A kTreeSeen frame is what the caller says of the latter. Its body is, for each call:
//     16 bytes: token u64, how many ranges u64; then the ranks that have not answered, in order: first u32, count u32
#pragma once

#include <string>
#include <vector>

#include "monarch/wire/frame.h"

namespace monarch {

struct ReplyEntry {
  uint32_t rank = 0;
  uint32_t flags = 0;  // FrameFlags of the answer
  uint32_t parts = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ReplyEntry) == 16);

std::string encode_replies(const std::vector<ReplyEntry>& entries);
// `part_count`: of the frame.
Result<std::vector<ReplyEntry>> decode_replies(ByteSpan body, size_t part_count);

struct RankRange {
  uint32_t first = 0, count = 0;
  bool operator==(const RankRange&) const = default;
};
struct SeenCall {
  bool is_missing(uint32_t rank) const;

  uint64_t token = 0;
  std::vector<RankRange> missing;  // in order and apart; none: the call is over
};

std::string encode_seen(const std::vector<SeenCall>& calls);
Result<std::vector<SeenCall>> decode_seen(ByteSpan body);

}  // namespace monarch
