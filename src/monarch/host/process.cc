#include "monarch/host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace monarch {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

const std::string& program_of(const ProcessSpec& spec) { return spec.program.empty() ? spec.argv[0] : spec.program; }

struct ChildPlan {
  const char* program;
  char** argv;
  char** env;
  const int* fds;
  size_t fd_count;
  const char* cwd;
  int stdout_fd;
  int stderr_fd;
  bool death_signal;
  pid_t parent;
  volatile int error;
};

// Runs in the vforked child, on the parent's memory: only system calls, nothing that allocates or locks.
[[noreturn]] void run_child(ChildPlan* plan) {
  setsid();
  if (plan->death_signal) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan->parent) _exit(127);
  }
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan->stdout_fd >= 0) dup2(plan->stdout_fd, STDOUT_FILENO);
  if (plan->stderr_fd >= 0) dup2(plan->stderr_fd, STDERR_FILENO);
  for (size_t i = 0; i < plan->fd_count; ++i) fcntl(plan->fds[i], F_SETFD, 0);
  if (plan->cwd != nullptr && chdir(plan->cwd) != 0) {
    plan->error = errno;
    _exit(127);
  }
  execvpe(plan->program, plan->argv, plan->env);
  plan->error = errno;
  _exit(127);
}

}  // namespace

Result<Process> start_process(const ProcessSpec& spec) {
  std::vector<char*> argv = pointers(spec.argv);
  std::vector<char*> env = pointers(spec.env);
  ChildPlan plan{.program = program_of(spec).c_str(),
                 .argv = argv.data(),
                 .env = env.data(),
                 .fds = spec.keep_fds.data(),
                 .fd_count = spec.keep_fds.size(),
                 .cwd = spec.cwd.empty() ? nullptr : spec.cwd.c_str(),
                 .stdout_fd = spec.stdout_fd,
                 .stderr_fd = spec.stderr_fd,
                 .death_signal = spec.death_signal,
                 .parent = getpid(),
                 .error = 0};
  // The child shares our memory until exec: no handler of ours may run in it.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  const pid_t pid = vfork();
  if (pid == 0) run_child(&plan);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (pid < 0) return Error{ErrorCode::kUnavailable, std::string("cannot start a process: ") + strerror(fork_error)};
  if (plan.error != 0) {
    waitpid(pid, nullptr, 0);
    return Error{ErrorCode::kUnsupported, "cannot run " + program_of(spec) + ": " + strerror(plan.error)};
  }
  Process process{pid, UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
  if (!process.pidfd) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return Error{ErrorCode::kUnavailable, std::string("cannot watch a process: ") + strerror(errno)};
  }
  return process;
}

ExitStatus reap(const Process& process) {
  siginfo_t info{};
  kill(-process.pid, SIGKILL);  // what it started and left in its group; the number is ours until we have reaped
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process.pidfd.get()), &info, WEXITED) != 0) return {};
  ExitStatus status;
  status.known = true;
  if (info.si_code == CLD_EXITED) {
    status.code = info.si_status;
  } else {
    status.signal = info.si_status;
  }
  return status;
}

std::string describe(const ExitStatus& status) {
  if (!status.known) return "ended, and its exit status is not known";
  if (status.signal != 0) {
    return "was killed by signal " + std::to_string(status.signal) + " (" + strsignal(status.signal) + ")";
  }
  return "exited with code " + std::to_string(status.code);
}

}  // namespace monarch
