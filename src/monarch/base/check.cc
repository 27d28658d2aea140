#include "monarch/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "monarch/base/log.h"

namespace monarch::internal {

void check_failed(const char* file, int line, const char* condition) {
  flush_log(50'000'000);  // what led to it
  std::fprintf(stderr, "monarch: %s:%d: CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace monarch::internal
