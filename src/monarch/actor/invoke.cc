#include "monarch/actor/invoke.h"

namespace monarch::internal {

void throw_bad_arguments(const ValueReader& reader) { throw BadArguments(reader.error().message); }

void throw_wrong_count(const std::string& expected, uint32_t found) {
  throw BadArguments("expected " + expected + (expected == "1" ? " argument" : " arguments") + ", got " +
                     std::to_string(found));
}

uint32_t begin_arguments(ValueReader& reader) {
  uint32_t count = 0;
  if (!reader.begin_tuple(count)) throw_bad_arguments(reader);
  return count;
}

void end_arguments(ValueReader& reader) {
  reader.end();
  if (!reader.done()) {
    reader.trailing();
    throw_bad_arguments(reader);
  }
}

}  // namespace monarch::internal
