#include <vector>

#include "monarch/wire/frame.h"
#include "monarch/wire/session.h"

// A record that decodes must let every part and the body be read inside it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> record(size);
  if (size != 0) std::memcpy(record.data(), data, size);
  auto view = monarch::decode_frame(record);
  if (!view) return 0;
  uint64_t sum = 0;
  if (((view->header.flags & monarch::kFlagRouted) != 0) != (view->route != nullptr)) __builtin_trap();
  for (size_t i = 0; view->route != nullptr && i < sizeof(monarch::FrameRoute); ++i) {
    sum += static_cast<uint64_t>(view->route[i]);
  }
  for (std::byte b : view->body) sum += static_cast<uint64_t>(b);
  uint64_t offset = view->inline_offset;
  for (uint32_t i = 0; i < view->header.part_count; ++i) {
    const auto ref = view->part(i);
    if (ref.location != 0) continue;
    for (uint64_t k = 0; k < ref.size; ++k) sum += static_cast<uint64_t>(record[offset + k]);
    offset = monarch::align8(offset + ref.size);
  }
  // A frame about a session says nothing beside its header, and comes back as it was.
  if (const auto session = monarch::decode_session(view->header)) {
    if (!view->body.empty() || view->route != nullptr || view->header.part_count != 0) __builtin_trap();
    if (monarch::encode_session(*session).dest != view->header.dest) __builtin_trap();
    const auto again = monarch::decode_session(monarch::encode_session(*session));
    if (!again || again->begun != session->begun || again->begun >= monarch::kRecordSizeMax) __builtin_trap();
  }
  if (const auto received = monarch::decode_acknowledge(view->header)) {
    if (!view->body.empty() || monarch::encode_acknowledge(*received).token != view->header.token) __builtin_trap();
  }
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}
