#include <cstdlib>
#include <cstring>

#include "monarch/wire/replies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  if (size == 0) return 0;
  if (auto seen = decode_seen(as_byte_span(data + 1, size - 1))) {
    const std::string again = encode_seen(*seen);
    if (again.size() != size - 1 || std::memcmp(again.data(), data + 1, size - 1) != 0) std::abort();
    for (const SeenCall& call : *seen) {
      if (!call.missing.empty() && !call.is_missing(call.missing.front().first)) std::abort();
    }
  }
  auto entries = decode_replies(as_byte_span(data + 1, size - 1), data[0]);
  if (!entries) return 0;
  const std::string again = encode_replies(*entries);
  if (again.size() != size - 1 || std::memcmp(again.data(), data + 1, size - 1) != 0) std::abort();
  return 0;
}
