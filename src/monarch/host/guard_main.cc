// monarch-guard <fd> [<token file>]: see host/guard.h. Plain system calls, no library of ours: it must start in well under a
// millisecond and must outlive everything else.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
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

// With its folder, if that is empty then.
void remove_token(char* path) {
  unlink(path);
  char* slash = strrchr(path, '/');
  if (slash == nullptr) return;
  *slash = '\0';
  rmdir(path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
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
  // Only the script writes it, and the script is gone.
  if (argc == 3) remove_token(argv[2]);
  return 0;
}
