#include <algorithm>

#include "monarch/net/message.h"

// Any bytes in any portions: the stream gives messages that can be read to their ends, or fails and stays failed. Only
// parts that lie in an arena have no bytes yet, and only where there is one.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kSizeMax = 1 << 20;
  if (size == 0) return 0;
  const auto arena_parts = data[0] % 2 == 0 ? monarch::ArenaParts::kRefused : monarch::ArenaParts::kAllowed;
  const uint8_t portion = data[0] | 1;
  ++data;
  --size;
  monarch::RecordAssembler assembler(arena_parts, kSizeMax);
  uint64_t sum = 0;
  for (size_t round = 0; size != 0; ++round) {
    const auto into = assembler.buffer();
    if (into.empty()) __builtin_trap();
    const size_t count = std::min({into.size(), size, size_t{1} + (portion == 255 ? size : portion * round % 97)});
    std::memcpy(into.data(), data, count);
    data += count;
    size -= count;
    if (!assembler.advance(count, 1)) {
      if (assembler.error().empty() || assembler.take() || assembler.advance(0, 1)) __builtin_trap();
      return 0;
    }
    if (auto message = assembler.take()) {
      sum += message->route().hops;
      for (std::byte byte : message->body) sum += static_cast<uint64_t>(byte);
      const auto& refs = message->arena_refs();
      if (arena_parts == monarch::ArenaParts::kRefused && !refs.empty()) __builtin_trap();
      size_t next_ref = 0;
      for (uint32_t p = 0; p < message->parts.size(); ++p) {
        const monarch::Part& part = message->parts[p];
        if (next_ref < refs.size() && refs[next_ref].part == p) {
          if (part.data != nullptr) __builtin_trap();
          ++next_ref;
          continue;
        }
        for (size_t i = 0; i < part.size; ++i) sum += static_cast<uint64_t>(part.data[i]);
      }
      if (next_ref != refs.size()) __builtin_trap();
    }
  }
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}
