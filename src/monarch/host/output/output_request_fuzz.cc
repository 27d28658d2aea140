#include <cstdlib>
#include <cstring>
#include <vector>

#include "monarch/host/output/output_route.h"

// What decodes names only what a request may name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  for (size_t fds = 0; fds <= 3; ++fds) {
    auto request = monarch::decode_output_request(bytes, fds);
    if (!request) continue;
    const bool open = request->kind == monarch::OutputRequest::kOpen;
    if (request->kind > monarch::OutputRequest::kTail || fds != (open ? 2u : 1u)) std::abort();
    if (request->kind != monarch::OutputRequest::kOptions && request->nodes.size() != 1) std::abort();
    if (static_cast<unsigned>(request->stream) > 1) std::abort();
  }
  return 0;
}
