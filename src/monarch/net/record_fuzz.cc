#include <algorithm>

#include "monarch/net/message.h"

// Any bytes in any portions: the stream gives messages that can be read to their ends, or fails and stays failed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kSizeMax = 1 << 20;
  if (size == 0) return 0;
  const uint8_t portion = data[0];
  ++data;
  --size;
  monarch::RecordAssembler assembler(kSizeMax);
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
      for (std::byte byte : message->body) sum += static_cast<uint64_t>(byte);
      for (const auto& part : message->parts) {
        for (size_t i = 0; part.data != nullptr && i < part.size; ++i) sum += static_cast<uint64_t>(part.data[i]);
      }
      for (const auto& ref : message->arena_refs()) sum += message->parts[ref.part].size;
    }
  }
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}
