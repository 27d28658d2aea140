#include "monarch/host/start/warm_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>

#include "monarch/base/bytes.h"
#include "monarch/base/system.h"
#include "monarch/host/start/fork_server.h"

namespace monarch {

namespace {

constexpr int kStartedLimitMs = 200;
constexpr int kEndLimitMs = 2500;  // for the server to end what it has started, and itself

// What the holder says on its line: first this of its server, whose pidfd comes along, and at its end how that was.
struct HolderReport {
  int32_t pid = 0;    // 0: it has ended
  int32_t known = 0;  // whether how is
  int32_t code = 0;
  int32_t signal = 0;
};

bool is_readable(int fd, int limit_ms) {
  pollfd readable{fd, POLLIN, 0};
  return poll(&readable, 1, limit_ms) == 1;
}

// nullopt: there is none (EAGAIN), or the holder is gone.
std::optional<HolderReport> receive(int line, UniqueFd* pidfd) {
  HolderReport report;
  auto got = sys::receive_message(line, std::as_writable_bytes(std::span(&report, 1)), MSG_DONTWAIT);
  if (got.size >= 0 && got.size != sizeof report) errno = EPIPE;
  if (got.size != sizeof report) return std::nullopt;
  if (got.fds.size() == 1) *pidfd = std::move(got.fds.front());
  return report;
}

bool say(int line, const HolderReport& report, std::span<const int> fds) {
  return sys::send_message(line, as_byte_span(&report, sizeof report), fds, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace

std::string inherited_traits() {
  std::string traits;
  const auto add = [&traits](const auto& value) {
    traits.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  add(getpriority(PRIO_PROCESS, 0));
  add(sched_getscheduler(0));
  add(syscall(SYS_ioprio_get, 1, 0));  // of this process
  cpu_set_t processors;
  CPU_ZERO(&processors);
  sched_getaffinity(0, sizeof processors, &processors);
  add(processors);
  for (int resource = 0; resource < static_cast<int>(RLIM_NLIMITS); ++resource) {
    rlimit limit{};
    getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
    add(limit);
  }
  for (const char* file : {"/proc/self/oom_score_adj", "/proc/self/cgroup"}) {
    const UniqueFd open = sys::open_file(file, O_RDONLY);
    char text[4096];
    const ssize_t size = open ? read(open.get(), text, sizeof text) : 0;
    traits.append(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  return traits;
}

bool WarmServer::connect(UniqueFd* server, UniqueFd* held) {
  UniqueFd sockets[2], line[2];
  if (!sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, sockets) || !sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, line)) {
    return false;
  }
  socket_ = std::move(sockets[0]);
  *server = std::move(sockets[1]);
  line_ = std::move(line[0]);
  *held = std::move(line[1]);
  return true;
}

void WarmServer::hold(const ProcessSpec& command, UniqueFd server, UniqueFd line, Clock& clock) {
  become_subreaper(clock);
  ProcessSpec spec = command;
  spec.argv.push_back(std::to_string(server.get()));
  spec.keep_fds = {server.get()};
  auto started = start_process(spec);
  server.reset();
  if (!started) _exit(1);
  const int pidfd = started->pidfd.get();
  if (!say(line.get(), {.pid = started->pid}, {&pidfd, 1})) {  // a shortage: nobody would know it
    end_descendants();
    _exit(1);
  }
  // Nobody says anything to here: what is readable of the line is its end.
  pollfd ends[] = {{line.get(), POLLIN, 0}, {pidfd, POLLIN, 0}};
  while (poll(ends, 2, -1) < 0) {
  }
  if (ends[0].revents != 0) {
    signal_process(*started, SIGTERM);
    signal_process(*started, SIGCONT);  // it may be stopped
    is_readable(pidfd, kEndLimitMs);
  } else {
    // Its number stays its own until the host lets go of the line: its guard has it.
    const ExitStatus status = read_exit_status(*started);
    say(line.get(), {.known = status.known, .code = status.code, .signal = status.signal}, {});
    while (poll(ends, 1, -1) < 0) {
    }
  }
  end_descendants();
  _exit(0);
}

std::optional<Process> WarmServer::started() {
  Process process;
  if (!line_ || !is_readable(line_.get(), kStartedLimitMs)) return std::nullopt;
  const auto report = receive(line_.get(), &process.pidfd);
  if (!report || report->pid == 0 || !process.pidfd || is_readable(process.pidfd.get(), 0)) return std::nullopt;
  process.pid = report->pid;
  return process;
}

std::optional<ExitStatus> WarmServer::read_end(int line) {
  UniqueFd none;
  const auto report = receive(line, &none);
  if (!report && errno == EAGAIN) return std::nullopt;
  ExitStatus status;
  if (!report) return status;  // its holder has been killed, and it with that
  status.known = report->known != 0;
  status.code = report->code;
  status.signal = report->signal;
  return status;
}

}  // namespace monarch
