#include "monarch/base/demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace monarch {

std::string demangled(const std::string& name) {
  constexpr size_t kSizeMax = 128;
  if (name.size() > kSizeMax) return name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return text == nullptr ? name : text.get();
}

}  // namespace monarch
