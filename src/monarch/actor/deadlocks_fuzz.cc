// Bytes from another process become a probe, or are refused; what is read can be written and is read again.
#include "monarch/actor/deadlocks.h"
#include "monarch/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto probe = monarch::Probe::decode(monarch::as_byte_span(data, size));
  if (probe) {
    const std::string bytes = probe->encoded();
    MONARCH_CHECK(monarch::Probe::decode(monarch::as_byte_span(bytes.data(), bytes.size())));
  }
  return 0;
}
