// monarch-guard <fd> [<file>...]: see host/start/guard.h. Plain system calls, no library of ours: it must start in well
// under a millisecond and must outlive everything else.
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "monarch/host/start/guard.h"

namespace {

constexpr int kGroupsMax = 65536;
constexpr int kGentleLimitMs = 1000;
monarch::GuardEntry groups[kGroupsMax];
int count = 0;
int fork_server = -1;  // its pidfd; there is one at a time

bool is_gentle(monarch::GuardEntry entry) { return entry >= monarch::kGuardGentle; }
pid_t group_of(monarch::GuardEntry entry) { return static_cast<pid_t>(entry & (monarch::kGuardGentle - 1)); }

void note(monarch::GuardEntry entry) {
  const monarch::GuardEntry group = entry > 0 ? entry : -entry;
  int at = 0;
  while (at < count && groups[at] != group) ++at;
  if (entry > 1 && at == count && count < kGroupsMax) {
    groups[count++] = entry;
    if (is_gentle(entry)) fork_server = static_cast<int>(syscall(SYS_pidfd_open, group_of(entry), 0));
  }
  if (entry < 0 && at < count) {
    groups[at] = groups[--count];
    if (is_gentle(group) && fork_server >= 0) close(fork_server);
    if (is_gentle(group)) fork_server = -1;
  }
}

// A fork server ends what its workers leave to it, before itself. It may be stopped.
void end_gently() {
  if (fork_server < 0) return;
  syscall(SYS_pidfd_send_signal, fork_server, SIGTERM, nullptr, 0);
  syscall(SYS_pidfd_send_signal, fork_server, SIGCONT, nullptr, 0);
  pollfd ended{fork_server, POLLIN, 0};
  poll(&ended, 1, kGentleLimitMs);
}

// All in a folder, which is empty of folders.
void empty_folder(const char* folder) {
  DIR* const opened = opendir(folder);
  if (opened == nullptr) return;
  while (const dirent* entry = readdir(opened)) unlinkat(dirfd(opened), entry->d_name, 0);
  closedir(opened);
}

// With its folder, if that is empty then, and the one around it. As remove_token_file() (host/membership/token_file.h).
// One that ends in a slash: all in that folder.
void remove_file(const char* path) {
  char folder[PATH_MAX];
  const char* slash = strrchr(path, '/');
  if (slash == nullptr || slash - path >= PATH_MAX) return;
  memcpy(folder, path, static_cast<size_t>(slash - path));
  folder[slash - path] = '\0';
  struct stat info;
  if (lstat(folder, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return;  // not ours
  slash[1] == '\0' ? empty_folder(folder) : void(unlink(path));
  rmdir(folder);
  if (char* const above = strrchr(folder, '/')) {
    *above = '\0';
    rmdir(folder);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
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
  for (int i = 0; i < count; ++i) {
    if (!is_gentle(groups[i])) kill(-group_of(groups[i]), SIGKILL);
  }
  end_gently();
  for (int i = 0; i < count; ++i) {
    if (is_gentle(groups[i])) kill(-group_of(groups[i]), SIGKILL);
  }
  // Only who has started this writes them, and that is gone.
  for (int i = 2; i < argc; ++i) remove_file(argv[i]);
  _exit(0);  // nothing that a build adds to the end of a program may hold this up
}
