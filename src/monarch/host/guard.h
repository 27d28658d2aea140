// The guard: a tiny process that reads a pipe and, when every writer is gone, kills the process groups that were
// registered on it and not taken back. It ends what a killed script leaves behind, grandchildren included, and takes away
// the file with the job's token (host/token_file.h), whether there is one or not.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace monarch {

// One message of this on a SOCK_SEQPACKET socket: group > 0 registers a process group, < 0 takes it back. Where
// there is no guard, /dev/null takes its place.
using GuardEntry = int64_t;

// Registers the calling process's own group; for a worker, first thing. `pipe_fd` is the guard's socket.
void guard_register(int pipe_fd, pid_t group);
void guard_forget(int pipe_fd, pid_t group);

}  // namespace monarch
