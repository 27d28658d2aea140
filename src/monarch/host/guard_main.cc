// monarch-guard <fd>: see host/guard.h. Plain system calls, no library of ours: it must start in well under a
// millisecond and must outlive everything else.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "monarch/host/guard.h"

namespace {

constexpr int kGroupsMax = 65536;
monarch::GuardEntry groups[kGroupsMax];
int count = 0;

void note(monarch::GuardEntry entry) {
  if (entry > 1) {
    if (count < kGroupsMax) groups[count++] = entry;
    return;
  }
  for (int i = 0; i < count; ++i) {
    if (groups[i] == -entry) {
      groups[i] = groups[--count];
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int fd = atoi(argv[1]);
  for (;;) {
    monarch::GuardEntry entry;
    const ssize_t got = read(fd, &entry, sizeof entry);
    if (got == sizeof entry) {
      note(entry);
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  for (int i = 0; i < count; ++i) kill(static_cast<pid_t>(-groups[i]), SIGKILL);
  return 0;
}
