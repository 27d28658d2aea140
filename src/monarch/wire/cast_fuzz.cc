#include <cstdlib>
#include <cstring>

#include "monarch/wire/cast.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  const ByteSpan bytes = as_byte_span(data, size);
  auto frame = decode_cast(bytes);
  if (!frame) return 0;
  const std::string again = encode_cast(frame->header, frame->targets, frame->body);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  return 0;
}
