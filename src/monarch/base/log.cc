#include "monarch/base/log.h"

#include <unistd.h>

#include <string>

namespace monarch {

void log_line(std::string_view line) {
  std::string text = "monarch: ";
  text.append(line).push_back('\n');
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace monarch
