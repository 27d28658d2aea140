// The guard: a tiny process that reads a pipe and, when every writer is gone, kills the process groups that were
// registered on it and not taken back. It ends what a killed script leaves behind, grandchildren included, and takes away
// the files that are named to it, whether they are there or not: that with the job's token
// (host/membership/token_file.h), and the sockets at which processes come that user code starts (launch_door.h).
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace monarch {

// One message of this on a SOCK_SEQPACKET socket: group > 0 registers a process group, < 0 takes it back. Twice is once.
// With kGuardGentle it is a fork server's: it is asked to end (SIGTERM), since it ends what its workers have started in
// sessions of their own, and killed if it has not within a second. Where there is no guard, /dev/null takes its place.
using GuardEntry = int64_t;
inline constexpr GuardEntry kGuardGentle = GuardEntry{1} << 40;

// `pipe_fd` is the guard's socket. Never waits: false, with EAGAIN: it does not read. A worker registers its own group,
// first thing; its host does so too, when it has heard of it, and takes it back.
bool guard_register(int pipe_fd, GuardEntry group);
bool guard_forget(int pipe_fd, GuardEntry group);

}  // namespace monarch
