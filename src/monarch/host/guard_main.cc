// monarch-guard <fd> [<token file>]: see host/guard.h. Plain system calls, no library of ours: it must start in well
// under a millisecond and must outlive everything else.
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

// With its folder, if that is empty then. As remove_token_file() (host/token_file.h).
void remove_token(const char* path) {
  char folder[PATH_MAX];
  const char* slash = strrchr(path, '/');
  if (slash == nullptr || slash - path >= PATH_MAX) return;
  memcpy(folder, path, static_cast<size_t>(slash - path));
  folder[slash - path] = '\0';
  struct stat info;
  if (lstat(folder, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return;  // not ours
  unlink(path);
  rmdir(folder);
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
