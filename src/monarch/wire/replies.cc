#include "monarch/wire/replies.h"

#include <cstring>

#include "monarch/wire/cast.h"

namespace monarch {

std::string encode_replies(const std::vector<ReplyEntry>& entries) {
  return {reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(ReplyEntry)};
}

Result<std::vector<ReplyEntry>> decode_replies(ByteSpan body, size_t part_count) {
  const Error malformed{ErrorCode::kMalformed, "not the answers of several ranks"};
  if (body.empty() || body.size() % sizeof(ReplyEntry) != 0) return malformed;
  std::vector<ReplyEntry> entries(body.size() / sizeof(ReplyEntry));
  std::memcpy(entries.data(), body.data(), body.size());
  constexpr uint32_t kFlags = kFlagPickle | kFlagArrays | kFlagBodyPart | kFlagReduce;
  uint64_t parts = 0;
  for (const ReplyEntry& entry : entries) {
    if (entry.rank == kEveryRank || (entry.flags & ~kFlags) != 0 || entry.reserved != 0) return malformed;
    if ((entry.parts == 0) != (entry.flags == kFlagReduce)) return malformed;
    parts += entry.parts;
  }
  if (parts != part_count) return malformed;
  return entries;
}

}  // namespace monarch
