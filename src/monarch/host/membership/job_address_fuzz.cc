// What parses is written the same way again; nothing else is accepted.
#include "monarch/base/check.h"
#include "monarch/host/membership/job_address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto address = monarch::JobAddress::parse(text);
  if (!address) return 0;
  auto again = monarch::JobAddress::parse(address->to_text());
  MONARCH_CHECK(again.ok() && *again == *address && !address->name().empty());
  return 0;
}
