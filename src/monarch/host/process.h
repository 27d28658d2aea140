// Starting a process: vfork and exec, so that the cost does not grow with the size of the script.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

struct ProcessSpec {
  std::string program;            // looked up as execvp does; empty: argv[0]
  std::vector<std::string> argv;
  std::vector<std::string> env;   // "NAME=value", the whole environment
  std::vector<int> keep_fds;      // stay open in the child under the same numbers; all others are close-on-exec
  std::string cwd;                // empty: as here
  int stdout_fd = -1;             // become its stdout and stderr; -1: as here
  int stderr_fd = -1;
  bool death_signal = true;       // SIGKILL when the *thread* that starts it ends: start from the reactor
};

struct Process {
  pid_t pid = -1;
  UniqueFd pidfd;  // readable when the process has ended
};

// The child leads a session of its own (no terminal signals), with default signal handling and nothing blocked.
Result<Process> start_process(const ProcessSpec& spec);

struct ExitStatus {
  bool known = false;
  int code = 0;    // exit code, if signal is 0
  int signal = 0;  // what killed it
};

// Takes the exit status of a child of ours that has ended.
ExitStatus reap(const Process& process);

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string describe(const ExitStatus& status);

}  // namespace monarch
