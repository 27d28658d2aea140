#include <cstdlib>

#include "monarch/host/start/launch.h"

namespace {

bool has_nul(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (text.find('\0') != text.npos) return true;
  }
  return false;
}

// What decodes encodes to what decodes to the same.
template <typename T, typename Decode>
std::string round_trip(const T& value, Decode decode) {
  const std::string bytes = encode(value);
  auto again = decode(monarch::as_byte_span(bytes.data(), bytes.size()));
  if (!again || encode(*again) != bytes) std::abort();
  return bytes;
}

}  // namespace

// Whatever somebody orders: a process can be started from it, by execve with texts that are whole.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  const ByteSpan bytes = as_byte_span(data, size);
  if (auto payload = decode_worker_payload(bytes)) round_trip(*payload, decode_worker_payload);
  LaunchDefaults host;
  if (auto defaults = decode_launch_defaults(bytes)) {
    round_trip(*defaults, decode_launch_defaults);
    host = std::move(*defaults);
  } else {
    host.interpreter = host.forkable = "python";
    host.env = {"PATH=/bin", "PYTHONHASHSEED=0"};
    host.new_only = {"PYTHON"};
    host.fork_server = {"python"};
  }
  auto order = decode_launch_order(bytes);
  if (!order) return 0;
  round_trip(*order, decode_launch_order);
  const auto launches = complete(*order, host, host.env);
  if (launches.size() != order->launches.size()) std::abort();
  for (const Launch& launch : launches) {
    if (has_nul(launch.argv) || has_nul(launch.env) || has_nul({launch.program})) std::abort();
    if (launch.use_fork_server && !wants_fork_server(*order, host)) std::abort();
    if (!decode_worker_payload(as_byte_span(launch.payload.data(), launch.payload.size()))) std::abort();
  }
  return 0;
}
