// Names of the functions that places in a file of code belong to, from its table of symbols. For people: where that has
// been stripped, there are few.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace monarch {

// For each of `offsets`, in bytes from the start of the ELF file at `path`, the function there without its arguments; ""
// where there is none, or no such file. Reads the file; nothing in it is trusted.
std::vector<std::string> function_names(const std::string& path, std::span<const uint64_t> offsets);

}  // namespace monarch
