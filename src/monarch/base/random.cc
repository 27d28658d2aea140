#include "monarch/base/random.h"

#include <sys/random.h>

#include "monarch/base/check.h"

namespace monarch {

void fill_random(void* out, size_t size) {
  MONARCH_CHECK(getrandom(out, size, 0) == static_cast<ssize_t>(size));
}

uint64_t SystemRandom::next_u64() {
  uint64_t value;
  fill_random(&value, sizeof value);
  return value;
}

}  // namespace monarch
