#include <algorithm>
#include <cstring>
#include <utility>

#include "monarch/base/check.h"
#include "monarch/net/tcp/stripe_reader.h"

// As in chunks_fuzz.cc.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=256"; }

// Any bytes by any of three stripes, in any portions, fed or read straight to where they belong: it gives messages that can
// be read to their ends, or fails and stays failed. What may not be read is not.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  monarch::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  monarch::ChunkReader reader(1, 1 << 16);
  monarch::StripeReader stripes(reader);
  uint64_t sum = 0;
  const auto take = [&](monarch::ChunkLane lane, monarch::MessagePtr message) {
    MONARCH_CHECK(lane == monarch::ChunkLane::kData);
    for (const std::byte byte : message->body) sum += static_cast<uint64_t>(byte);
    for (const monarch::Part& part : message->parts) {
      for (size_t i = 0; i < part.size; ++i) sum += static_cast<uint64_t>(part.data[i]);
    }
  };
  for (int i = 0; i < 3; ++i) stripes.add();
  bool told = false;
  // A byte that says which stripe, whether straight, and how much; then that.
  while (bytes.size() > 1) {
    const auto order = static_cast<uint8_t>(bytes[0]);
    bytes = bytes.subspan(1);
    const size_t stripe = order & 3;
    if (stripe == 3) {
      if (!std::exchange(told, true) && !reader.feed(monarch::encode_chunk(monarch::ChunkLane::kStriped, 0), take)) break;
      if (!stripes.go_on(take)) break;
      continue;
    }
    if (!stripes.may_read(stripe)) continue;
    const auto room = (order & 4) != 0 ? stripes.direct(stripe) : std::span<std::byte>();
    const size_t large = order >> 4;
    const size_t wanted = (order & 8) != 0 ? 1 + large : 1 + large * 64;
    const size_t count = std::min({bytes.size(), wanted, room.empty() ? SIZE_MAX : room.size()});
    bool fits;
    if (room.empty()) {
      fits = stripes.feed(stripe, bytes.first(count), take);
    } else {
      std::memcpy(room.data(), bytes.data(), count);
      fits = stripes.advance(stripe, count, take);
    }
    bytes = bytes.subspan(count);
    if (fits) continue;
    MONARCH_CHECK(!reader.error().empty() && stripes.direct(stripe).empty() && !stripes.go_on(take));
    break;
  }
  return static_cast<int>(sum & 0);
}
