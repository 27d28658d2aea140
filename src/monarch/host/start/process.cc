#include "monarch/host/start/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "monarch/base/forked.h"
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
  const std::string* oom_score;
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

void set_all_handlers(sighandler_t handler) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) sigaction(signal, &action, nullptr);
  }
}

// Runs in the vforked child, on the parent's memory: only system calls, nothing that allocates or locks.
[[noreturn]] void run_child(ChildPlan* plan) {
  setsid();
  // What has come so far, while all were blocked, was meant for the group that this process was born into: Ctrl-C.
  set_all_handlers(SIG_IGN);
  set_all_handlers(SIG_DFL);
  if (plan->death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, plan->death_signal);
    if (getppid() != plan->parent) _exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan->stdout_fd >= 0) dup2(plan->stdout_fd, STDOUT_FILENO);
  if (plan->stderr_fd >= 0) dup2(plan->stderr_fd, STDERR_FILENO);
  for (size_t i = 0; i < plan->fd_count; ++i) fcntl(plan->fds[i], F_SETFD, 0);
  if (!plan->oom_score->empty()) {
    const UniqueFd file = sys::open_file("/proc/self/oom_score_adj", O_WRONLY);
    if (write(file.get(), plan->oom_score->data(), plan->oom_score->size()) < 0) errno = 0;  // then it is as its parent is
  }
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
                 .oom_score = &spec.oom_score,
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
  const ForkToExec becomes_another_program;
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

std::optional<pid_t> pid_behind(const UniqueFd& pidfd) {
  char path[64], text[512];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd.get());
  const UniqueFd file = sys::open_file(path, O_RDONLY);
  const ssize_t size = file ? read(file.get(), text, sizeof text - 1) : -1;
  if (size <= 0) return std::nullopt;
  text[size] = 0;
  const char* const line = strstr(text, "\nPid:");
  const pid_t pid = line == nullptr ? -1 : static_cast<pid_t>(strtol(line + 5, nullptr, 10));
  return pid >= 0 ? std::optional(pid) : std::nullopt;
}

bool proc_has_our_numbers() {
  char self[16] = {};
  return readlink("/proc/self", self, sizeof self - 1) > 0 && atoi(self) == getpid();
}

std::string raised_oom_score(int thousandths) {
  char own[16] = {};
  const UniqueFd file = sys::open_file("/proc/self/oom_score_adj", O_RDONLY);
  if (!file || read(file.get(), own, sizeof own - 1) <= 0) return "";
  return std::to_string(std::min(1000, atoi(own) + thousandths));
}

Result<Process> start_process(const ProcessSpec& spec) {
  UniqueFd null;
  if (!stays_open(STDIN_FILENO) || !stays_open(STDOUT_FILENO) || !stays_open(STDERR_FILENO)) {
    null = sys::open_file("/dev/null", O_RDWR);
    if (!null) return sys::shortage_error("start a process");
  }
  return start_with(spec, null.get());
}

namespace {

constexpr unsigned kSignalTheGroup = 1 << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

int send_signal(const Process& process, int number, unsigned flags) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, process.pidfd.get(), number, nullptr, flags));
}

}  // namespace

bool signal_process(const Process& process, int number) { return send_signal(process, number, 0) == 0; }

void kill_group(const Process& process) {
  if (send_signal(process, SIGKILL, kSignalTheGroup) == 0 || errno != EINVAL) return;
  if (process.pid > 0 && send_signal(process, 0, 0) == 0) kill(-process.pid, SIGKILL);
}

namespace {

std::optional<ExitStatus> take_status(const Process& process, int options) {
  siginfo_t info{};
  kill_group(process);  // what it started and left there
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process.pidfd.get()), &info, WEXITED | options) != 0) {
    return ExitStatus{};
  }
  if (info.si_pid == 0) return std::nullopt;
  ExitStatus status;
  status.known = true;
  (info.si_code == CLD_EXITED ? status.code : status.signal) = info.si_status;
  return status;
}

}  // namespace

ExitStatus reap(const Process& process) { return *take_status(process, 0); }

std::optional<ExitStatus> try_reap(const Process& process) { return take_status(process, WNOHANG); }

namespace {

// What /proc says of a process, or of a thread.
struct TaskStat {
  char state = 0;
  uint64_t flags = 0;    // PF_* of the kernel
  size_t threads = 0;    // of its process, those that are ending too
  uint64_t pending = 0;  // signals that this very thread is about to get
  int exit_code = 0;     // as waitpid() gives it: 0 for who may not know

  bool is_ending() const {
    constexpr uint64_t kExiting = 0x4;  // PF_EXITING
    return has_ended() || (flags & kExiting) != 0;
  }
  bool has_ended() const { return state == 'Z' || state == 'X'; }
  bool must_end() const { return is_ending() || (pending & (uint64_t{1} << (SIGKILL - 1))) != 0; }
};

// Nothing: see errno.
std::optional<TaskStat> read_stat(const char* path) {
  constexpr int kState = 3, kFlags = 9, kThreads = 20, kPending = 31, kExitCode = 52;  // as proc(5) counts
  char text[1024];
  const UniqueFd file = sys::open_file(path, O_RDONLY);
  const ssize_t count = file ? read(file.get(), text, sizeof text - 1) : -1;
  if (count <= 0) return std::nullopt;
  text[count] = '\0';
  char* at = strrchr(text, ')');  // its name may hold anything
  if (at == nullptr || at[1] != ' ') return std::nullopt;
  TaskStat stat;
  stat.state = at[2];
  ++at;
  int field = kState;
  for (; at != nullptr && field <= kExitCode; ++field, at = strchr(at + 1, ' ')) {
    if (field == kFlags) stat.flags = strtoull(at, nullptr, 10);
    if (field == kThreads) stat.threads = strtoull(at, nullptr, 10);
    if (field == kPending) stat.pending = strtoull(at, nullptr, 10);
    if (field == kExitCode) stat.exit_code = atoi(at);
  }
  if (field <= kExitCode) return std::nullopt;
  return stat;
}

std::optional<std::vector<pid_t>> threads_of(pid_t pid) {
  if (!proc_has_our_numbers()) return std::nullopt;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* folder = opendir(path);
  if (folder == nullptr) return std::nullopt;
  std::vector<pid_t> threads;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') threads.push_back(atoi(entry->d_name));
  }
  closedir(folder);
  return threads;
}

constexpr int kLists = 100;  // until one is whole: each that is not has lost a thread meanwhile

bool all_threads(pid_t pid, bool (TaskStat::*are)() const) {
  const auto threads = threads_of(pid);
  if (!threads) return false;
  char path[64];
  for (const pid_t thread : *threads) {
    std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    const auto stat = read_stat(path);
    const bool gone = !stat && (errno == ENOENT || errno == ESRCH);
    if (!gone && !(stat && ((*stat).*are)())) return false;
  }
  // Any that went, or was about to, may have started another one before; and a list ends with a thread that goes while it
  // is read. One that has as many as there were just before it is whole: nobody is there but those that were seen, who end
  // and start nobody.
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  for (int i = 0; i < kLists; ++i) {
    const auto before = read_stat(path);
    const auto now = threads_of(pid);
    const auto seen = [&](pid_t id) { return std::find(threads->begin(), threads->end(), id) != threads->end(); };
    if (!before || !now || !std::all_of(now->begin(), now->end(), seen)) return false;
    if (now->size() == before->threads) return true;
  }
  return false;
}

// Whether the kernel lets this process know how that one ends: it asks the same of who reads this.
bool may_know_exit_code(pid_t pid) {
  char path[64], space[64];
  std::snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
  return readlink(path, space, sizeof space) > 0;
}

ExitStatus decode_status(int raw) {
  ExitStatus status;
  status.known = true;
  if (WIFSIGNALED(raw)) {
    status.signal = WTERMSIG(raw);
  } else {
    status.code = WEXITSTATUS(raw);
  }
  return status;
}

std::optional<TaskStat> read_stat(const Process& process) {
  if (!proc_has_our_numbers()) return std::nullopt;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process.pid);
  const auto stat = read_stat(path);
  // Else the number may have been somebody else's.
  return send_signal(process, 0, 0) == 0 ? stat : std::nullopt;
}

}  // namespace

ExitStatus read_exit_status(const Process& process) {
  const auto stat = read_stat(process);
  return stat && stat->state == 'Z' ? decode_status(stat->exit_code) : ExitStatus{};
}

std::optional<ExitStatus> read_ending(const Process& process) {
  const auto ends_with = [&]() -> std::optional<int> {
    const auto stat = read_stat(process);
    return stat && stat->is_ending() && !WIFSTOPPED(stat->exit_code) ? std::optional(stat->exit_code) : std::nullopt;
  };
  const std::optional<int> code = ends_with();
  if (!code) return std::nullopt;
  // A main thread that ends by itself does so with a code of its own, or for another program (which ends all other threads,
  // and lives on) with 0. So, it seems, does everybody about whom this process may not know. The thread that has become the
  // other program takes the main thread's number, perhaps meanwhile, and is then not found under its own: who ends still
  // does so afterwards.
  if (!all_threads(process.pid, &TaskStat::must_end) || !may_know_exit_code(process.pid) || ends_with() != code) {
    return std::nullopt;
  }
  return decode_status(*code);
}

bool has_ended(const Process& process) {
  return all_threads(process.pid, &TaskStat::has_ended) && send_signal(process, 0, 0) == 0;
}

}  // namespace monarch
