// What parses is written the same way again; nothing else is accepted.
#include "monarch/base/check.h"
#include "monarch/net/tcp/tcp_address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto address = monarch::TcpAddress::parse(text);
  if (!address) {
    MONARCH_CHECK(address.error().message.size() < 400);
    return 0;
  }
  MONARCH_CHECK(address->to_text() == text);
  auto again = monarch::TcpAddress::parse(address->to_text());
  MONARCH_CHECK(again.ok() && *again == *address);
  if (auto numeric = monarch::numeric_address(address->dial)) MONARCH_CHECK(numeric->port() == address->dial.port);
  return 0;
}
