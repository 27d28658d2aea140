#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "monarch/base/system.h"
#include "monarch/host/stacks/symbols.h"

// A file that says that it is code.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const monarch::UniqueFd file = monarch::sys::make_memfd("fuzz", 0);
  if (write(file.get(), data, size) != static_cast<ssize_t>(size)) return 0;
  const uint64_t offsets[] = {0, 64, 4096, UINT64_MAX};
  monarch::function_names("/proc/self/fd/" + std::to_string(file.get()), offsets);
  return 0;
}
