#include <cstdlib>

#include "monarch/wire/failure.h"

// What decodes has a text, and encodes to what decodes to the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto failure = monarch::Failure::decode(monarch::as_byte_span(data, size));
  if (!failure) return 0;
  const std::string again = failure->encoded();
  auto second = monarch::Failure::decode(monarch::as_byte_span(again.data(), again.size()));
  if (!second || second->text() != failure->text() || second->encoded() != again) std::abort();
  return 0;
}
