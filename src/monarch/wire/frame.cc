#include "monarch/wire/frame.h"

namespace monarch {

namespace {
Error malformed(const char* what) { return Error{ErrorCode::kMalformed, what}; }
}  // namespace

Result<FrameView> decode_frame(ByteSpan head, uint64_t record_size) {
  uint64_t said_size = 0;
  FrameView view;
  if (head.size() < kRecordPrologue) return malformed("frame shorter than its header");
  std::memcpy(&said_size, head.data(), sizeof said_size);
  if (said_size != record_size) return malformed("frame size does not match its record");
  std::memcpy(&view.header, head.data() + sizeof said_size, sizeof view.header);
  const FrameHeader& header = view.header;
  const uint8_t kind = static_cast<uint8_t>(header.kind);
  if (kind == 0 || kind > kFrameKindMax) return malformed("unknown frame kind");
  if (header.part_count > kPartsMax) return malformed("too many parts");
  const uint64_t table_size = uint64_t{header.part_count} * sizeof(PartRef);
  uint64_t table_offset = kRecordPrologue;
  if ((header.flags & kFlagRouted) != 0) {
    view.route = head.data() + kRecordPrologue;
    table_offset += sizeof(FrameRoute);
  }
  uint64_t offset = table_offset + table_size;
  if (offset > head.size() || header.body_size > head.size() - offset) {
    return malformed("body reaches beyond the frame");
  }
  view.part_table = head.data() + table_offset;
  view.body = head.subspan(offset, header.body_size);
  offset = align8(offset + header.body_size);
  view.inline_offset = offset;
  for (uint32_t i = 0; i < header.part_count; ++i) {
    const PartRef ref = view.part(i);
    if (ref.size > kRecordSizeMax) return malformed("part too large");
    if (ref.location != 0) continue;
    if (offset > record_size || ref.size > record_size - offset) {
      return malformed("part reaches beyond the frame");
    }
    offset = align8(offset + ref.size);
  }
  if (offset != record_size) return malformed("bytes after the last part");
  return view;
}

}  // namespace monarch
