#include "monarch/wire/cast.h"

#include <cstring>

namespace monarch {

std::string encode_cast(const FrameHeader& header, const std::vector<CastTarget>& targets, ByteSpan body) {
  const uint64_t count = targets.size();
  std::string bytes;
  bytes.reserve(sizeof header + sizeof count + count * sizeof(CastTarget) + body.size());
  bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(targets.data()), count * sizeof(CastTarget));
  bytes.append(reinterpret_cast<const char*>(body.data()), body.size());
  return bytes;
}

Result<CastFrame> decode_cast(ByteSpan bytes) {
  const Error malformed{ErrorCode::kMalformed, "not a frame for several actors"};
  CastFrame frame;
  uint64_t count = 0;
  constexpr size_t kHead = sizeof frame.header + sizeof count;
  if (bytes.size() < kHead) return malformed;
  std::memcpy(&frame.header, bytes.data(), sizeof frame.header);
  std::memcpy(&count, bytes.data() + sizeof frame.header, sizeof count);
  if (!can_be_cast(frame.header.kind) || (frame.header.flags & kFlagRouted) != 0 || count == 0 ||
      count > (bytes.size() - kHead) / sizeof(CastTarget)) {
    return malformed;
  }
  frame.targets.resize(count);
  std::memcpy(frame.targets.data(), bytes.data() + kHead, count * sizeof(CastTarget));
  for (const CastTarget& target : frame.targets) {
    if (target.node == 0 || target.reserved != 0) return malformed;
  }
  frame.body = bytes.subspan(kHead + count * sizeof(CastTarget));
  return frame;
}

}  // namespace monarch
