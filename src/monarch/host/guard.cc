#include "monarch/host/guard.h"

#include <unistd.h>

namespace monarch {

namespace {
void put(int pipe_fd, GuardEntry entry) {
  [[maybe_unused]] ssize_t count = write(pipe_fd, &entry, sizeof entry);
}
}  // namespace

void guard_register(int pipe_fd, pid_t group) { put(pipe_fd, group); }
void guard_forget(int pipe_fd, pid_t group) { put(pipe_fd, -GuardEntry{group}); }

}  // namespace monarch
