// What a line says at last that carriage returns begin anew, as progress bars do.
#pragma once

#include <string_view>

namespace monarch {

// What stands behind the last carriage return that something follows, with those at the end: "1%\r2%\r" -> "2%\r". `line`
// has no newline.
inline std::string_view last_state(std::string_view line) {
  const size_t last = line.find_last_not_of('\r');
  if (last == line.npos) return line.substr(line.empty() ? 0 : line.size() - 1);
  const size_t rewrite = line.find_last_of('\r', last);
  return rewrite == line.npos ? line : line.substr(rewrite + 1);
}

inline std::string_view without_returns(std::string_view line) {
  return line.substr(0, line.find_last_not_of('\r') + 1);
}

}  // namespace monarch
