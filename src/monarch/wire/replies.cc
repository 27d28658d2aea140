#include "monarch/wire/replies.h"

#include <algorithm>
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

bool SeenCall::is_missing(uint32_t rank) const {
  const auto after = std::ranges::upper_bound(missing, rank, {}, &RankRange::first);
  return after != missing.begin() && rank - std::prev(after)->first < std::prev(after)->count;
}

std::string encode_seen(const std::vector<SeenCall>& calls) {
  std::string body;
  const auto append = [&body](const void* from, size_t size) { body.append(static_cast<const char*>(from), size); };
  for (const SeenCall& call : calls) {
    const uint64_t head[2] = {call.token, call.missing.size()};
    append(head, sizeof head);
    append(call.missing.data(), call.missing.size() * sizeof(RankRange));
  }
  return body;
}

Result<std::vector<SeenCall>> decode_seen(ByteSpan body) {
  const Error malformed{ErrorCode::kMalformed, "not what a caller has seen of its answers"};
  std::vector<SeenCall> calls;
  while (!body.empty()) {
    uint64_t head[2];
    if (body.size() < sizeof head) return malformed;
    std::memcpy(head, body.data(), sizeof head);
    body = body.subspan(sizeof head);
    if (head[0] == 0 || head[1] > body.size() / sizeof(RankRange)) return malformed;
    SeenCall& call = calls.emplace_back(SeenCall{head[0], std::vector<RankRange>(head[1])});
    if (head[1] != 0) std::memcpy(call.missing.data(), body.data(), head[1] * sizeof(RankRange));
    body = body.subspan(head[1] * sizeof(RankRange));
    uint64_t end = 0;  // of the one before
    for (const RankRange& range : call.missing) {
      if (range.count == 0 || range.first < end) return malformed;
      end = uint64_t{range.first} + range.count;
    }
    if (end > kEveryRank) return malformed;
  }
  return calls;
}

}  // namespace monarch
