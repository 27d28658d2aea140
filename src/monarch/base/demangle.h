// Names of C++ for people.
#pragma once

#include <string>

namespace monarch {

// What c++filt says of a mangled name; of any other, and of one with more than 128 bytes, the name itself: its parts may
// refer to each other, so that the text doubles with every ten bytes, and somebody else may have written it.
std::string demangled(const std::string& name);

}  // namespace monarch
