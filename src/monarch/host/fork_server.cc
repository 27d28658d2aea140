#include "monarch/host/fork_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "monarch/base/clock.h"

namespace monarch {

namespace {
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * kFdCount);
}

bool send_fork_request(int socket, NodeId node, const std::array<int, kFdCount>& fds) {
  iovec iov{&node, sizeof node};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kControlBytes] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kFdCount);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * kFdCount);
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == sizeof node;
}

void ForkServer::report(const ForkReport& report) { send(socket_, &report, sizeof report, MSG_NOSIGNAL); }

void ForkServer::report_ready() { report({.kind = ForkReport::kReady}); }

void ForkServer::report_spawned(NodeId node, pid_t pid) {
  children_[pid] = node;
  report({.kind = ForkReport::kSpawned, .pid = pid, .node = node});
}

void ForkServer::report_failed(NodeId node, int error) {
  report({.kind = ForkReport::kFailed, .node = node, .signal = error});
}

void ForkServer::reap() {
  for (;;) {
    siginfo_t info{};
    // Only our own children live in this process, so any of them may be taken. What a worker started and left in its
    // process group ends with it, before the number of the group can be used again.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    kill(-info.si_pid, SIGKILL);
    waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED);
    auto found = children_.find(info.si_pid);
    if (found == children_.end()) continue;
    ForkReport exited{.kind = ForkReport::kExited, .pid = info.si_pid, .node = found->second};
    (info.si_code == CLD_EXITED ? exited.code : exited.signal) = info.si_status;
    report(exited);
    children_.erase(found);
  }
}

bool ForkServer::has_request(int wait_ms) {
  sigset_t child, previous;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &previous);
  UniqueFd signals(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  const int64_t end_ns = monotonic_ns() + wait_ms * int64_t{1'000'000};
  bool asked = false;
  for (;;) {
    reap();
    const int64_t left_ns = std::max<int64_t>(0, end_ns - monotonic_ns());
    pollfd fds[2] = {{socket_, POLLIN, 0}, {signals.get(), POLLIN, 0}};
    const int ready = poll(fds, 2, wait_ms < 0 ? -1 : static_cast<int>((left_ns + 999'999) / 1'000'000));
    if (fds[1].revents != 0) {
      signalfd_siginfo info;
      while (read(signals.get(), &info, sizeof info) > 0) {
      }
      continue;
    }
    asked = fds[0].revents != 0 || (ready < 0 && errno != EINTR);
    if (asked || (wait_ms >= 0 && monotonic_ns() >= end_ns)) break;
  }
  sigprocmask(SIG_SETMASK, &previous, nullptr);
  return asked;
}

std::optional<ForkServer::Request> ForkServer::next() {
  for (;;) {
    has_request(-1);
    NodeId node;
    iovec iov{&node, sizeof node};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[kControlBytes];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    cmsghdr* header = got == sizeof node ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(int) * kFdCount)) return std::nullopt;
    Request request{node, {}};
    int numbers[kFdCount];
    std::memcpy(numbers, CMSG_DATA(header), sizeof numbers);
    for (int i = 0; i < kFdCount; ++i) request.fds[i].reset(numbers[i]);
    return request;
  }
}

}  // namespace monarch
