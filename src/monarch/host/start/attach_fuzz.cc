#include <cstdlib>

#include "monarch/host/start/attach.h"

// Whatever somebody who knows the token of a monarch-hostd orders, or a monarch-hostd reports.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  const ByteSpan bytes = as_byte_span(data, size);
  const auto without_size = [](const std::string& message) {
    return as_byte_span(message.data() + sizeof(uint32_t), message.size() - sizeof(uint32_t));
  };
  if (auto order = decode_attach(bytes)) {
    if (host_number(order->host.key.id()) == 0 || order->host.parent == 0 || order->host.host_lease_ns <= 0) std::abort();
    const std::string message = encode_attach(*order);
    auto again = decode_attach(without_size(message));
    if (!again || again->host.key.id() != order->host.key.id() || encode_attach(*again) != message) std::abort();
  }
  if (auto report = decode_report(bytes)) {
    const std::string message = encode_report(*report);
    auto again = decode_report(without_size(message));
    if (!again || encode_report(*again) != message) std::abort();
  }
  return 0;
}
