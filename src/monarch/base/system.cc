#include "monarch/base/system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "monarch/base/check.h"
#include "monarch/base/log.h"

namespace monarch::sys {

namespace {

constexpr uint64_t kNotCounting = 0;
std::atomic<uint64_t> fails_at{kNotCounting};  // the number of the call that fails, or UINT64_MAX to count only
std::atomic<uint64_t> seen{0};

// So many descriptors are open here; -1: not even that can be found out.
int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = -3;  // ".", ".." and the one that reads
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

std::atomic<bool> manages_limit{false};
std::atomic<uint64_t> limit_at_first{0};

// `make` gives a descriptor or -1.
template <typename Make>
UniqueFd make_descriptor(Make make) {
  if (must_fail(EMFILE)) return UniqueFd();
  int fd = make();
  if (fd < 0 && errno == EMFILE && raise_descriptor_limit()) fd = make();
  return UniqueFd(fd);
}

// The same for two.
template <typename Make>
bool make_descriptors(UniqueFd out[2], Make make) {
  int pair[2];
  if (must_fail(EMFILE)) return false;
  bool made = make(pair) == 0;
  if (!made && errno == EMFILE && raise_descriptor_limit()) made = make(pair) == 0;
  if (!made) return false;
  out[0].reset(pair[0]);
  out[1].reset(pair[1]);
  return true;
}

}  // namespace

void manage_descriptor_limit() { manages_limit.store(true); }

bool raise_descriptor_limit() {
  if (!manages_limit.load(std::memory_order_relaxed)) return false;
  const int error = errno;
  rlimit limit{};
  const bool can = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max;
  const uint64_t at_first = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  const bool raised = can && setrlimit(RLIMIT_NOFILE, &limit) == 0;
  uint64_t none = 0;
  if (raised) limit_at_first.compare_exchange_strong(none, at_first);
  errno = error;
  return raised;
}

uint64_t original_descriptor_limit() { return limit_at_first.load(std::memory_order_relaxed); }

Status expect_descriptors(size_t count, const char* what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Ok{};
  const int open = open_descriptors();
  if (open < 0) return Ok{};
  const uint64_t wanted = static_cast<uint64_t>(open) + count;
  if (wanted > limit.rlim_cur && raise_descriptor_limit()) limit.rlim_cur = limit.rlim_max;
  if (wanted <= limit.rlim_cur) return Ok{};
  return Error{ErrorCode::kUnavailable, std::string("cannot ") + what + ": out of file descriptors: " +
                                            std::to_string(count) + " are needed and " + std::to_string(open) + " of " +
                                            std::to_string(limit.rlim_cur) + " in use, raise ulimit -n"};
}

// Numbers are given from below: how high this one is says how many are left.
bool leaves_descriptors(int fd) {
  rlimit limit{};
  const auto leaves = [&] {
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 || static_cast<uint64_t>(fd) + kSpareDescriptors < limit.rlim_cur;
  };
  return leaves() || (raise_descriptor_limit() && leaves());
}

void fail_nth(uint64_t nth) {
  seen.store(0);
  fails_at.store(nth == 0 ? UINT64_MAX : nth);
}

uint64_t calls_seen() { return seen.load(); }

bool must_fail(int error) {
  const uint64_t at = fails_at.load(std::memory_order_relaxed);
  if (__builtin_expect(at == kNotCounting, 1)) return false;
  if (seen.fetch_add(1) + 1 != at) return false;
  errno = error;
  return true;
}

UniqueFd make_epoll() { return make_descriptor([] { return epoll_create1(EPOLL_CLOEXEC); }); }

int epoll_add(int epoll, int fd, epoll_event* event) {
  return must_fail(ENOSPC) ? -1 : epoll_ctl(epoll, EPOLL_CTL_ADD, fd, event);
}

UniqueFd make_eventfd() {
  return make_descriptor([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

UniqueFd make_timerfd() {
  return make_descriptor([] { return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); });
}

UniqueFd make_signalfd(const void* signals) {
  return make_descriptor(
      [&] { return signalfd(-1, static_cast<const sigset_t*>(signals), SFD_CLOEXEC | SFD_NONBLOCK); });
}

UniqueFd make_memfd(const char* name, unsigned flags) {
  return make_descriptor([&] { return memfd_create(name, flags | MFD_CLOEXEC); });
}

int truncate(int fd, off_t size) { return must_fail(ENOSPC) ? -1 : ftruncate(fd, size); }

int allocate(int fd, uint64_t offset, uint64_t size) {
  if (must_fail(ENOSPC)) return -1;
  int done;
  do {
    done = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size));
  } while (done != 0 && errno == EINTR);
  return done;
}

void* map(size_t size, int protection, int flags, int fd, uint64_t offset) {
  return must_fail(ENOMEM) ? MAP_FAILED : mmap(nullptr, size, protection, flags, fd, static_cast<off_t>(offset));
}

void* map_over(void* at, size_t size, int protection, int flags, int fd) {
  return must_fail(ENOMEM) ? MAP_FAILED : mmap(at, size, protection, flags | MAP_FIXED, fd, 0);
}

UniqueFd make_socket(int domain, int type) {
  return make_descriptor([&] { return socket(domain, type | SOCK_CLOEXEC, 0); });
}

bool make_socket_pair(int domain, int type, UniqueFd out[2]) {
  return make_descriptors(out, [&](int* pair) { return socketpair(domain, type | SOCK_CLOEXEC, 0, pair); });
}

bool make_pipe(UniqueFd out[2], int flags) {
  return make_descriptors(out, [&](int* pair) { return pipe2(pair, flags | O_CLOEXEC); });
}

UniqueFd accept(int listener) {
  return make_descriptor([&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); });
}

UniqueFd duplicate(int fd) {
  return make_descriptor([&] { return fcntl(fd, F_DUPFD_CLOEXEC, 3); });
}

UniqueFd open_file(const char* path, int flags, mode_t mode) {
  return make_descriptor([&] { return open(path, flags | O_CLOEXEC, mode); });
}

UniqueFd open_pidfd(pid_t pid) {
  return make_descriptor([&] { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); });
}

UniqueFd open_file_in(int folder, const char* name, int flags, mode_t mode) {
  return make_descriptor([&] { return openat(folder, name, flags | O_CLOEXEC, mode); });
}

bool start_thread(pthread_t* thread, void* (*run)(void*), void* context) {
  sigset_t all, previous;  // it inherits the mask
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  const int error = must_fail(EAGAIN) ? EAGAIN : pthread_create(thread, nullptr, run, context);
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  errno = error;
  return error == 0;
}

ssize_t send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, int flags) {
  MONARCH_CHECK(fds.size() <= kFdsPerMessageMax);
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsPerMessageMax)];
  if (!fds.empty()) {
    if (must_fail(ETOOMANYREFS)) return -1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    std::memset(control, 0, message.msg_controllen);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

Received receive_message(int socket, std::span<std::byte> into, int flags) {
  iovec iov{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsPerMessageMax)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  Received received{};
  do {
    received.size = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received.size < 0 && errno == EINTR);
  if (received.size < 0) return received;
  received.lost = (message.msg_flags & MSG_CTRUNC) != 0;
  if (received.lost) raise_descriptor_limit();  // for the next one
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      received.fds.emplace_back(fd);
    }
  }
  if (received.fds.empty() || !must_fail(EMFILE)) return received;
  received.fds.clear();  // as the kernel does it: the message comes, its descriptors do not
  received.lost = true;
  return received;
}

ssize_t send_pieces(int socket, std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_pieces(int socket, std::span<const iovec> into) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(into.data());
  message.msg_iovlen = into.size();
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  return received;
}

Error shortage_error(const char* what) {
  const int error = errno;
  std::string text = std::string("cannot ") + what + ": ";
  if (error == EMFILE || error == ENFILE) {
    text += error == EMFILE ? "out of file descriptors" : "the system is out of file descriptors";
    rlimit limit{};
    const int count = open_descriptors();
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      text += ": " + (count >= 0 ? std::to_string(count) : "all " + std::to_string(limit.rlim_cur)) +
              " in use, raise ulimit -n";
    }
  } else {
    text += std::strerror(error);
    if (error == EAGAIN || error == ENOMEM) text += " (out of memory, processes or threads: see ulimit -a)";
    if (error == ENOSPC) {
      text += " (out of shared memory, see /dev/shm, or of watched descriptors, see fs.epoll.max_user_watches)";
    }
  }
  errno = error;
  return Error{ErrorCode::kUnavailable, std::move(text)};
}

void end_for_shortage(const char* what) {
  log_line(shortage_error(what).message);
  flush_log();
  std::_Exit(1);
}

}  // namespace monarch::sys
