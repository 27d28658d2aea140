#include "monarch/host/guard.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

namespace monarch {

namespace {
void put(int pipe_fd, GuardEntry entry) {
  // A guard that has died must cost nobody a SIGPIPE.
  if (send(pipe_fd, &entry, sizeof entry, MSG_NOSIGNAL) >= 0 || errno != ENOTSOCK) return;
  [[maybe_unused]] ssize_t count = write(pipe_fd, &entry, sizeof entry);
}
}  // namespace

void guard_register(int pipe_fd, pid_t group) { put(pipe_fd, group); }
void guard_forget(int pipe_fd, pid_t group) { put(pipe_fd, -GuardEntry{group}); }

}  // namespace monarch
