#include <cstdlib>

#include "monarch/actor/successions.h"

// What decodes can be taken up, whatever it says; who looks afterwards comes to an end, and what is told on says the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using monarch::Successions;
  auto notice = Successions::Notice::decode(monarch::as_byte_span(data, size));
  if (!notice) return 0;
  Successions known, told;
  known.apply(*notice);
  const std::string all = known.all().encoded();
  auto again = Successions::Notice::decode(monarch::as_byte_span(all.data(), all.size()));
  if (!again) std::abort();
  told.apply(*again);
  for (const auto& [node, next] : notice->processes) {
    if (known.latest(node) != told.latest(node) || known.count_of(node) != told.count_of(node)) std::abort();
  }
  return 0;
}
