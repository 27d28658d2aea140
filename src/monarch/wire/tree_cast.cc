#include "monarch/wire/tree_cast.h"

namespace monarch {

namespace {
struct Head {
  FrameHeader header;
  uint64_t origin, sender;
  uint32_t fan_out, hosts;
};
static_assert(sizeof(Head) == 80);
}  // namespace

std::string encode_tree_cast(const TreeCast& cast) { return encode_tree_cast(cast, {&cast.targets, 1}); }

std::string encode_tree_cast(const TreeCast& cast, std::span<const ByteSpan> targets) {
  const Head head{cast.header, cast.origin, cast.sender, cast.fan_out, static_cast<uint32_t>(cast.host_count())};
  std::string bytes;
  size_t size = sizeof head + cast.hosts.size() + cast.body.size();
  for (const ByteSpan& piece : targets) size += piece.size();
  bytes.reserve(size);
  const auto append = [&bytes](ByteSpan part) { bytes.append(reinterpret_cast<const char*>(part.data()), part.size()); };
  append(as_byte_span(&head, sizeof head));
  append(cast.hosts);
  for (const ByteSpan& piece : targets) append(piece);
  append(cast.body);
  return bytes;
}

Result<TreeCast> decode_tree_cast(ByteSpan bytes) {
  const Error malformed{ErrorCode::kMalformed, "not a frame for actors of many hosts"};
  Head head;
  if (bytes.size() < sizeof head) return malformed;
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes = bytes.subspan(sizeof head);
  if (!can_be_cast(head.header.kind) || (head.header.flags & kFlagRouted) != 0 || head.sender == 0 ||
      head.fan_out < kFanOutMin || head.hosts == 0 || head.hosts > bytes.size() / sizeof(TreeHost)) {
    return malformed;
  }
  TreeCast cast{head.header, head.origin, head.sender, head.fan_out, bytes.first(head.hosts * sizeof(TreeHost)), {}, {}};
  bytes = bytes.subspan(cast.hosts.size());
  uint64_t targets = 0;
  for (size_t i = 0; i < head.hosts; ++i) {
    const TreeHost host = cast.host(i);
    const bool is_numbered = host.number != 0 && host.session != 0;
    if (host.gateway == 0 || host.targets == 0 || host.reserved != 0 || is_numbered != (head.origin != 0)) return malformed;
    targets += host.targets;
  }
  if (targets > bytes.size() / sizeof(CastTarget)) return malformed;
  cast.targets = bytes.first(targets * sizeof(CastTarget));
  cast.body = bytes.subspan(cast.targets.size());
  return cast;
}

}  // namespace monarch
