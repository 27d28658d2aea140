// One line to stderr, written with one system call so that lines of several threads and processes never mix.
#pragma once

#include <string_view>

namespace monarch {

// Prints "monarch: <line>\n". Thread-safe; never blocks on a lock.
void log_line(std::string_view line);

}  // namespace monarch
