#include <cstdlib>
#include <cstring>

#include "monarch/wire/tree_cast.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  auto cast = decode_tree_cast(as_byte_span(data, size));
  if (!cast) return 0;
  size_t targets = 0;
  for (size_t i = 0; i < cast->host_count(); ++i) targets += cast->host(i).targets;
  if (targets != cast->target_count()) std::abort();
  for (size_t i = 0; i < targets; ++i) static_cast<void>(cast->target(i));
  const std::string again = encode_tree_cast(*cast);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  return 0;
}
