// Starting a process: vfork and exec, so that the cost does not grow with the size of the script.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/wire/failure.h"

namespace monarch {

struct ProcessSpec {
  std::string program;            // looked up as execvp does; empty: argv[0]
  std::vector<std::string> argv;
  std::vector<std::string> env;   // "NAME=value", the whole environment
  std::vector<int> keep_fds;      // stay open in the child under the same numbers; all others are close-on-exec
  std::string cwd;                // empty: as here
  int stdout_fd = -1;             // become its stdout and stderr; -1: as here
  int stderr_fd = -1;
  std::string oom_score{};        // what its /proc/self/oom_score_adj gets; empty: as here
  int death_signal = SIGKILL;     // it gets when the *thread* that starts it ends: start from the reactor. 0: none
};

struct Process {
  pid_t pid = -1;
  UniqueFd pidfd;  // readable when the process has ended
};

// The process's number as this process sees it, which for one of another pid namespace is not that which is said there.
// 0: it has none here. nullopt: it has been reaped, or that cannot be read.
std::optional<pid_t> pid_behind(const UniqueFd& pidfd);
// False: /proc is that of another pid namespace, where numbers mean others, and is not to be asked about any process.
bool proc_has_our_numbers();

// For ProcessSpec: the kernel's OOM killer takes the process rather than this one, even where this one has another
// `thousandths` of all memory (of its cgroup's limit).
std::string raised_oom_score(int thousandths);

// The child leads a session of its own (no terminal signals), with default signal handling, nothing blocked, and the limit
// of descriptors that this process had at first (base/system.h).
Result<Process> start_process(const ProcessSpec& spec);

// Takes the exit status of a child of ours, and ends what is left of its group. Waits for its end.
ExitStatus reap(const Process& process);
// The same, and never waits. nullopt: it has not ended; or a debugger has it, and it will be there later.
std::optional<ExitStatus> try_reap(const Process& process);

// Signals to a process that another one will reap go by its pidfd: its number may be somebody else's by now. False: it is
// gone.
bool signal_process(const Process& process, int number);
// The same for all of its group, whose leader it is; where the kernel cannot do that by pidfd (before 6.9), only as long as
// nobody has reaped it.
void kill_group(const Process& process);
// How a process has ended that is somebody else's child, and that nobody has reaped. Not known: it lives, or was reaped.
ExitStatus read_exit_status(const Process& process);
// The same before that, as soon as its main thread is at its end and all others must end too: nothing runs in it any more,
// while its memory, its descriptors and its number may be there for a while. nullopt: it lives, has been reaped, or that
// cannot be told (yet).
std::optional<ExitStatus> read_ending(const Process& process);
// Whether nothing but its status is left of it, and nobody has reaped it. Says so too where its pidfd does not: of a
// process with threads that a debugger has attached to and not looked at since.
bool has_ended(const Process& process);

}  // namespace monarch
