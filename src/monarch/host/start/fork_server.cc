#include "monarch/host/start/fork_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "monarch/base/bytes.h"
#include "monarch/base/system.h"
#include "monarch/host/start/process.h"
#include "monarch/wire/hello.h"

namespace monarch {

namespace {

// How long deaths wait where there is no descriptor to hear of them.
constexpr int kBlindWaitMs = 50;
static_assert(kFdCount <= sys::kFdsPerMessageMax);

// ---- The end of all descendants: in a signal's handler, so nothing but system calls ----

constexpr int64_t kEndLimitNs = 2'000'000'000;
constexpr int kDeadTries = 10;  // for those who cannot be reaped though they have ended: a debugger has them

pid_t server_pid = -1;
Clock* clock_here = nullptr;
bool sees_children = false;  // else no more is ended than what ends with its parent

struct Parentage {
  pid_t parent = -1;  // -1: the process is gone
  bool ended = false;
  bool unread = false;  // there are no descriptors
};

using Path = char[64];

void join(Path& path, std::initializer_list<const char*> parts) {
  size_t size = 0;
  for (const char* part : parts) {
    for (; *part != '\0' && size + 1 < sizeof path; ++part) path[size++] = *part;
  }
  path[size] = '\0';
}

pid_t number_of(const char* digit) {
  pid_t number = 0;
  for (; *digit >= '0' && *digit <= '9'; ++digit) number = number * 10 + (*digit - '0');
  return number;
}

// `stat` is that file of a process, or of one of its threads.
Parentage parentage_of(const Path& stat) {
  char text[512];
  const int fd = open(stat, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {.unread = errno != ENOENT && errno != ESRCH && errno != EACCES};
  const ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  if (count <= 0) return {};
  text[count] = '\0';
  const char* at = strrchr(text, ')');  // its name may hold anything; then: ") S 123"
  if (at == nullptr || strlen(at) < 5) return {};
  return {.parent = number_of(at + 4), .ended = at[2] == 'Z'};
}

// Calls `use` with the name of each process, or of each thread of one. False: it cannot be read.
template <typename Use>
bool each_number_in(const char* folder, Use use) {
  struct Entry {  // linux_dirent64
    uint64_t inode;
    int64_t offset;
    unsigned short size;
    unsigned char type;
    char name[];
  };
  alignas(Entry) char entries[4096];
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t count;
  while ((count = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
    for (ssize_t at = 0; at < count;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->size;
      if (entry->name[0] >= '1' && entry->name[0] <= '9') use(entry->name);
    }
  }
  close(fd);
  return count == 0;
}

// Of a process whose first thread has: it leaves its children to others when the last one has.
bool all_threads_have_ended(const char* pid) {
  Path folder;
  join(folder, {"/proc/", pid, "/task"});
  bool ended = true;
  const bool read_all = each_number_in(folder, [&](const char* thread) {
    Path stat;
    join(stat, {folder, "/", thread, "/stat"});
    const Parentage found = parentage_of(stat);
    ended = ended && !found.unread && (found.parent < 0 || found.ended);
  });
  return read_all && ended;
}

// What is a child of this process by now, whoever was its parent at first. Whether any has not ended yet. Their children
// are left until they have come to this process: who watches over a mount is the last of a row of processes, and undoes it
// when those above it have been killed.
bool kill_children() {
  const pid_t self = getpid();
  bool any = false;
  const bool read_all = each_number_in("/proc", [&](const char* name) {
    Path stat;
    join(stat, {"/proc/", name, "/stat"});
    const Parentage found = parentage_of(stat);
    any = any || found.unread;
    if (found.parent != self) return;
    any = any || !found.ended || !all_threads_have_ended(name);
    const pid_t pid = number_of(name);
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
  });
  return any || !read_all;
}

}  // namespace

// Each that dies leaves its children to us: until there is none.
void end_descendants() {
  const int64_t until_ns = clock_here->now_ns() + kEndLimitNs;
  for (int dead = 0; dead < kDeadTries && clock_here->now_ns() < until_ns;) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if ((reaped < 0 && errno == ECHILD) || !sees_children) return;
    dead = kill_children() ? 0 : dead + 1;
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

namespace {

void on_terminate(int) {
  if (getpid() != server_pid) {  // a worker that has not left yet
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
    return;
  }
  end_descendants();
  _exit(0);
}

}  // namespace

ForkServer::ForkServer(int socket, Clock& clock) : socket_(socket), clock_(clock) {
  become_subreaper(clock);
  rehearse_handshake();
}

void become_subreaper(Clock& clock) {
  clock_here = &clock;
  sees_children = proc_has_our_numbers();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  server_pid = getpid();
  struct sigaction action {};
  action.sa_handler = on_terminate;
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGCHLD, SIG_DFL);  // who ignores it never learns how its children end, and it is inherited
}

void leave_fork_server() {
  signal(SIGTERM, SIG_DFL);
  server_pid = -1;
}

std::optional<ForkReport> receive_fork_report(int socket, UniqueFd* pidfd) {
  ForkReport report;
  auto got = sys::receive_message(socket, std::as_writable_bytes(std::span(&report, 1)), MSG_DONTWAIT);
  if (got.size >= 0 && got.size != sizeof report) errno = EPIPE;
  if (got.size != sizeof report) return std::nullopt;
  if (got.fds.size() == 1) *pidfd = std::move(got.fds.front());
  return report;
}

bool send_fork_request(int socket, NodeId node, const std::array<int, kFdCount>& fds) {
  return sys::send_message(socket, as_byte_span(&node, sizeof node), fds, MSG_DONTWAIT) == sizeof node;
}

// Waits for room: who does not read is stopped, and nothing here is urgent then. Where the kernel has too many descriptors
// under way, it goes without.
bool ForkServer::report(const ForkReport& report, int pidfd) {
  const auto bytes = as_byte_span(&report, sizeof report);
  const std::span<const int> beside(&pidfd, pidfd >= 0 ? 1 : 0);
  if (sys::send_message(socket_, bytes, beside, 0) >= 0) return pidfd >= 0;
  if (pidfd >= 0) sys::send_message(socket_, bytes, {}, 0);
  return false;
}

void ForkServer::report_ready() { report({.kind = ForkReport::kReady}); }

void ForkServer::report_spawned(NodeId node, pid_t pid) {
  // Nobody else reaps it, so the number is its own.
  const UniqueFd pidfd = sys::open_pidfd(pid);
  const bool went = report({.kind = ForkReport::kSpawned, .pid = pid, .node = node}, pidfd.get());
  children_[pid] = Worker{node, went};
}

void ForkServer::report_failed(NodeId node, int error) {
  report({.kind = ForkReport::kFailed, .node = node, .signal = error});
}

void ForkServer::reap() {
  for (;;) {
    siginfo_t info{};
    // Only our own children, and orphans that have come to us, live in this process: any of them may be taken. What a
    // worker started and left in its process group ends with it, before the number of the group can be used again.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto found = children_.find(info.si_pid);
    if (found == children_.end()) {
      waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED);
      continue;
    }
    kill(-info.si_pid, SIGKILL);
    const Worker worker = found->second;
    children_.erase(found);
    ForkReport exited{.kind = ForkReport::kExited, .pid = info.si_pid, .node = worker.node};
    (info.si_code == CLD_EXITED ? exited.code : exited.signal) = info.si_status;
    if (!worker.has_pidfd) report(exited);
    waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED);
    if (worker.has_pidfd) report(exited);
  }
}

bool ForkServer::has_request(int wait_ms) {
  sigset_t child, previous;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &previous);
  const UniqueFd signals = sys::make_signalfd(&child);
  const int64_t end_ns = clock_.now_ns() + wait_ms * int64_t{1'000'000};
  bool asked = false;
  for (;;) {
    reap();
    const int64_t left_ns = std::max<int64_t>(0, end_ns - clock_.now_ns());
    pollfd fds[2] = {{socket_, POLLIN, 0}, {signals.get(), POLLIN, 0}};
    int limit_ms = wait_ms < 0 ? -1 : static_cast<int>((left_ns + 999'999) / 1'000'000);
    if (!signals && (limit_ms < 0 || limit_ms > kBlindWaitMs)) limit_ms = kBlindWaitMs;
    const int ready = poll(fds, 2, limit_ms);
    if (fds[1].revents != 0) {
      signalfd_siginfo info;
      while (read(signals.get(), &info, sizeof info) > 0) {
      }
      continue;
    }
    asked = fds[0].revents != 0 || (ready < 0 && errno != EINTR);
    if (asked || (wait_ms >= 0 && clock_.now_ns() >= end_ns)) break;
  }
  sigprocmask(SIG_SETMASK, &previous, nullptr);
  return asked;
}

std::optional<ForkServer::Request> ForkServer::next() {
  for (;;) {
    has_request(-1);
    NodeId node;
    auto got = sys::receive_message(socket_, std::as_writable_bytes(std::span(&node, 1)), 0);
    if (got.size != sizeof node) {
      end_descendants();
      return std::nullopt;
    }
    Request request{node, {}};
    if (got.fds.size() == kFdCount) {
      std::move(got.fds.begin(), got.fds.end(), request.fds.begin());
      return request;
    }
    report_failed(node, EMFILE);  // the server has no room for them
  }
}

}  // namespace monarch
