#include "monarch/host/start/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "monarch/base/system.h"

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
  int null_fd;  // for the standard streams that the child would not have
  int death_signal;
  uint64_t descriptor_limit;
  pid_t parent;
  volatile int error;
  volatile bool error_in_cwd;
};

// A standard stream that is closed would be the first file that the program opens; so would one that exec closes, as a file
// of the user's is that has got its number.
bool stays_open(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// Runs in the vforked child, on the parent's memory: only system calls, nothing that allocates or locks.
[[noreturn]] void run_child(ChildPlan* plan) {
  setsid();
  if (plan->death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, plan->death_signal);
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
  rlimit limit{};
  if (plan->descriptor_limit != 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = plan->descriptor_limit;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (stays_open(fd)) continue;
    fd == plan->null_fd ? fcntl(fd, F_SETFD, 0) : dup2(plan->null_fd, fd);
  }
  if (plan->cwd != nullptr && chdir(plan->cwd) != 0) {
    plan->error = errno;
    plan->error_in_cwd = true;
    _exit(127);
  }
  execvpe(plan->program, plan->argv, plan->env);
  plan->error = errno;
  _exit(127);
}

// Apart from its caller, whose variables vfork() could clobber.
[[gnu::noinline]] Result<Process> start_with(const ProcessSpec& spec, int null_fd) {
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
                 .null_fd = null_fd,
                 .death_signal = spec.death_signal,
                 .descriptor_limit = sys::original_descriptor_limit(),
                 .parent = getpid(),
                 .error = 0,
                 .error_in_cwd = false};
  // The child shares our memory until exec: no handler of ours may run in it.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  const pid_t pid = sys::must_fail(EAGAIN) ? -1 : vfork();
  if (pid == 0) run_child(&plan);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  errno = fork_error;
  if (pid < 0) return sys::shortage_error("start a process");
  if (plan.error != 0) {
    waitpid(pid, nullptr, 0);
    if (plan.error_in_cwd) {
      return Error{ErrorCode::kUnsupported, "cannot enter the directory " + spec.cwd + ": " + strerror(plan.error)};
    }
    return Error{ErrorCode::kUnsupported, "cannot run " + program_of(spec) + ": " + strerror(plan.error)};
  }
  Process process{pid, sys::open_pidfd(pid)};
  if (!process.pidfd) {
    const Error why = sys::shortage_error("watch a process");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return why;
  }
  return process;
}

}  // namespace

Result<Process> start_process(const ProcessSpec& spec) {
  UniqueFd null;
  if (!stays_open(STDIN_FILENO) || !stays_open(STDOUT_FILENO) || !stays_open(STDERR_FILENO)) {
    null = sys::open_file("/dev/null", O_RDWR);
    if (!null) return sys::shortage_error("start a process");
  }
  return start_with(spec, null.get());
}

namespace {

std::optional<ExitStatus> take_status(const Process& process, int options) {
  siginfo_t info{};
  kill(-process.pid, SIGKILL);  // what it started and left in its group; the number is ours until we have reaped
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process.pidfd.get()), &info, WEXITED | options) != 0) {
    return ExitStatus{};
  }
  if (info.si_pid == 0) return std::nullopt;
  ExitStatus status;
  status.known = true;
  (info.si_code == CLD_EXITED ? status.code : status.signal) = info.si_status;
  return status;
}

constexpr unsigned kSignalTheGroup = 1 << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

int send_signal(const Process& process, int number, unsigned flags) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, process.pidfd.get(), number, nullptr, flags));
}

}  // namespace

ExitStatus reap(const Process& process) { return *take_status(process, 0); }

std::optional<ExitStatus> try_reap(const Process& process) { return take_status(process, WNOHANG); }

bool signal_process(const Process& process, int number) { return send_signal(process, number, 0) == 0; }

void kill_group(const Process& process) {
  if (send_signal(process, SIGKILL, kSignalTheGroup) == 0 || errno != EINVAL) return;
  if (send_signal(process, 0, 0) == 0) kill(-process.pid, SIGKILL);
}

ExitStatus read_exit_status(const Process& process) {
  ExitStatus status;
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process.pid);
  UniqueFd file = sys::open_file(path, O_RDONLY);
  const ssize_t count = file ? read(file.get(), text, sizeof text - 1) : -1;
  if (count <= 0 || send_signal(process, 0, 0) != 0) return status;  // the number may have been somebody else's
  text[count] = '\0';
  const char* at = strrchr(text, ')');  // its name may hold anything
  if (at == nullptr || at[1] != ' ' || at[2] != 'Z') return status;
  const char* last = strrchr(text, ' ');  // the 52nd field, as waitpid() gives it
  const int raw = atoi(last);
  status.known = true;
  if (WIFSIGNALED(raw)) {
    status.signal = WTERMSIG(raw);
  } else {
    status.code = WEXITSTATUS(raw);
  }
  return status;
}

}  // namespace monarch
