#include <cstdlib>

#include "monarch/host/start/attach.h"

// Whatever somebody who knows the token of a monarch-hostd orders, or a monarch-hostd reports.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  const ByteSpan bytes = as_byte_span(data, size);
  const auto without_size = [](const std::string& message) {
    return as_byte_span(message.data() + sizeof(uint32_t), message.size() - sizeof(uint32_t));
  };
  if (auto order = decode_order(bytes)) {
    const auto encode = [](const ClientOrder& any) {
      return std::visit([](const auto& of) { return encode_order(of); }, any);
    };
    if (const auto* attach = std::get_if<AttachOrder>(&*order)) {
      const Bootstrap& host = attach->host;
      if (host_number(host.key.id()) == 0 || host.parent == 0 || host.host_lease_ns <= 0) std::abort();
    } else if (std::get<RelayOrder>(*order).to.port == 0) {
      std::abort();
    }
    const std::string message = encode(*order);
    auto again = decode_order(without_size(message));
    if (!again || again->index() != order->index() || encode(*again) != message) std::abort();
  }
  if (auto report = decode_report(bytes)) {
    const std::string message = encode_report(*report);
    auto again = decode_report(without_size(message));
    if (!again || encode_report(*again) != message) std::abort();
  }
  return 0;
}
