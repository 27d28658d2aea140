// CHECK: a broken invariant ends the process with a message, in release builds too.
#pragma once

namespace monarch::internal {

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace monarch::internal

#define MONARCH_CHECK(condition) \
  (__builtin_expect(!!(condition), 1) ? (void)0 : ::monarch::internal::check_failed(__FILE__, __LINE__, #condition))
