#include <cstdlib>
#include <cstring>
#include <memory>

#include "monarch/wire/last_words.h"

// Whatever a dead process has left, it is read.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto left = std::make_unique<monarch::LastWords>();
  memset(static_cast<void*>(left.get()), 'a', sizeof *left);
  // The input is spread over all parts.
  char* const bytes = reinterpret_cast<char*>(left.get());
  for (size_t at = 0; at < size; ++at) bytes[at * 61 % sizeof *left] = static_cast<char>(data[at]);
  for (const std::string& endpoint : monarch::read_endpoints(*left)) {
    if (endpoint.find('\n') != std::string::npos) std::abort();
  }
  monarch::read_stack(*left, size % 2 == 0);
  return 0;
}
