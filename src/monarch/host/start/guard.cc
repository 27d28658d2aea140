#include "monarch/host/start/guard.h"

#include <errno.h>
#include <sys/socket.h>

namespace monarch {

namespace {
bool put(int pipe_fd, GuardEntry entry) {
  // A guard that has died must cost nobody a SIGPIPE, and one that is stopped no time.
  return send(pipe_fd, &entry, sizeof entry, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == ENOTSOCK;
}
}  // namespace

bool guard_register(int pipe_fd, GuardEntry group) { return put(pipe_fd, group); }
bool guard_forget(int pipe_fd, GuardEntry group) { return put(pipe_fd, -group); }

}  // namespace monarch
