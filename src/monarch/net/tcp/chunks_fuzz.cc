#include <algorithm>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/net/tcp/chunks.h"

// Any bytes in any portions, fed or read straight to where they belong: the stream gives messages that can be read to
// their ends, or fails and stays failed, or says that what follows belongs to another reader; and both ways give the same.
// Where it ends in the middle of a record, that goes on in another reader with whatever comes there. Parts of large records
// are read to memory of somebody else's, or to the heap.
namespace {

struct Outcome {
  uint64_t messages = 0, sum = 0;
  bool failed = false;
  bool operator==(const Outcome&) const = default;
};

// For every other part, exactly what it takes.
struct Place final : monarch::RecordMemory {
  std::shared_ptr<std::byte> memory_for(const monarch::FrameHeader&, const monarch::FrameRoute&, uint64_t size) override {
    if (++asked % 2 == 0 || size > (1 << 20)) return nullptr;
    return {new std::byte[size], std::default_delete<std::byte[]>()};
  }
  uint64_t asked = 0;
};

Outcome read(monarch::ByteSpan bytes, size_t portion, bool direct, monarch::ByteSpan before = {}) {
  Place place;
  monarch::ChunkReader reader(1, 1 << 16, &place);
  if (!before.empty()) {
    monarch::ChunkReader first(1, 1 << 16, &place);
    static_cast<void>(first.feed(before, [](monarch::ChunkLane, monarch::MessagePtr) {}));
    if (auto begun = first.take_begun()) {
      MONARCH_CHECK(begun->begun() != 0 && first.error().empty() && first.take_begun() == nullptr);
      MONARCH_CHECK(reader.go_on_with(std::move(begun)));
    }
  }
  Outcome outcome;
  const auto take = [&](monarch::ChunkLane lane, monarch::MessagePtr message) {
    ++outcome.messages;
    outcome.sum = outcome.sum * 31 + static_cast<uint64_t>(lane) + message->total_bytes() + message->lost_bytes;
    for (const std::byte byte : message->body) outcome.sum += static_cast<uint64_t>(byte);
    for (const monarch::Part& part : message->parts) {
      for (size_t i = 0; i < part.size; ++i) outcome.sum += static_cast<uint64_t>(part.data[i]);
    }
  };
  while (!bytes.empty() && !outcome.failed && !reader.is_stripe()) {
    const auto room = direct ? reader.direct() : std::span<std::byte>();
    const size_t count = std::min({bytes.size(), portion, room.empty() ? SIZE_MAX : room.size()});
    if (room.empty()) {
      outcome.failed = !reader.feed(bytes.first(count), take);
    } else {
      std::memcpy(room.data(), bytes.data(), count);
      outcome.failed = !reader.advance(count, take);
    }
    bytes = bytes.subspan(count);
  }
  if (outcome.failed) MONARCH_CHECK(!reader.error().empty() && reader.direct().empty() && !reader.feed(bytes, take));
  return outcome;
}

// A record that is read part by part is longer than inputs are: one in its chunk, of which the input changes some bytes.
std::vector<std::byte> changed_record(monarch::ByteSpan changes) {
  const std::vector<std::byte> bytes(40'000, std::byte{3});
  const monarch::ByteSpan parts[] = {bytes, {}, {bytes.data(), 100}, {bytes.data(), 30'001}};
  monarch::Outgoing outgoing{monarch::FrameHeader{}, {bytes.data(), 33}, parts};
  outgoing.header.flags = monarch::kFlagRouted;
  const std::vector<std::byte> record = monarch::encode_to_vector(outgoing);
  const auto header = monarch::encode_chunk(monarch::ChunkLane::kData, static_cast<uint32_t>(record.size()));
  std::vector<std::byte> stream(header.begin(), header.end());
  stream.insert(stream.end(), record.begin(), record.end());
  for (; changes.size() >= 3; changes = changes.subspan(3)) {
    const size_t at = static_cast<size_t>(changes[0]) + 256 * (static_cast<size_t>(changes[1]) % 2);
    stream[at] ^= changes[2];
  }
  return stream;
}

}  // namespace

// A length that there is memory for would be taken, and the fuzzer would only measure how much it has: there is not much.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=256"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const monarch::ByteSpan bytes = monarch::as_byte_span(data + 1, size - 1);
  MONARCH_CHECK(read(bytes, SIZE_MAX, false) == read(bytes, 1 + data[0] % 97, true));
  const monarch::ByteSpan before = bytes.first(bytes.size() * (data[0] % 8) / 8), rest = bytes.subspan(before.size());
  MONARCH_CHECK(read(rest, SIZE_MAX, false, before) == read(rest, 1 + data[0] % 97, true, before));
  const std::vector<std::byte> changed = changed_record(rest);
  MONARCH_CHECK(read(changed, SIZE_MAX, false) == read(changed, 1 + static_cast<size_t>(data[0]) * 97, true));
  return 0;
}
