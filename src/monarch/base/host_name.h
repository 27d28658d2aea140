// What this machine calls itself.

#pragma once

#include <string>

namespace monarch {

// The name of the machine (or container), for people; "unknown" if it has none.
std::string host_name();

}  // namespace monarch
