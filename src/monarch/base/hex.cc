#include "monarch/base/hex.h"

namespace monarch {

namespace {
constexpr std::string_view kDigits = "0123456789abcdef";
}

std::string to_hex(const void* data, size_t size) {
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(std::string_view text, void* out, size_t size) {
  if (text.size() != 2 * size) return false;
  for (size_t i = 0; i < size; ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    static_cast<unsigned char*>(out)[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return true;
}

}  // namespace monarch
