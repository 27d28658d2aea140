// Any text: what parses is written the same way again, and what it holds, be it what it may, makes a context or an error.
#include "monarch/base/check.h"
#include "monarch/net/tls/tls_channel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto credentials = monarch::Credentials::parse(text);
  if (!credentials) return 0;
  auto again = monarch::Credentials::parse(credentials->to_text());
  MONARCH_CHECK(again.ok() && again->key == credentials->key && again->certificate == credentials->certificate);
  auto context = monarch::TlsContext::make(*credentials);
  MONARCH_CHECK(context.ok() || !context.error().message.empty());
  return 0;
}
