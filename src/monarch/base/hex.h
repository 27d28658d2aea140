// Bytes as lower-case hex digits, and back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace monarch {

std::string to_hex(const void* data, size_t size);

// False, with `out` in any state: `text` is not exactly 2 * size such digits.
bool from_hex(std::string_view text, void* out, size_t size);

}  // namespace monarch
