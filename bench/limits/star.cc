// Limit of W4: 64 bytes to N blocked processes and one answer from each.
//
//   star ROW SECONDS N...      rows ROW_N, system `limit` (one copy in shared memory, one futex wakes all, an atomic
//                              counter gathers) and `limit:socket` (a unix socket to each, epoll gathers)
//
// Nothing is pinned: N + 1 processes on a few cores are the scheduler's business.
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <new>

#include "limit.h"

namespace {

constexpr std::size_t kMessageBytes = 64;
using Message = std::array<char, kMessageBytes>;

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

void must(bool held, const char* what) {
  if (held) return;
  std::perror(what);
  std::exit(1);
}

/// Forks `count` children that run `serve(index)`; they die with this process.
std::vector<pid_t> fork_children(int count, const std::function<void(int)>& serve) {
  std::vector<pid_t> children;
  for (int index = 0; index < count; ++index) {
    const pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(index);
      _exit(0);
    }
    children.push_back(pid);
  }
  return children;
}

void end_children(const std::vector<pid_t>& children) {
  for (const pid_t pid : children) kill(pid, SIGKILL);
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
}

std::vector<double> time_rounds(const std::function<void()>& round, double seconds) {
  for (int i = 0; i < 20; ++i) round();
  std::vector<double> times_ms;
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (now_ns() < end) {
    const std::uint64_t start = now_ns();
    round();
    times_ms.push_back(static_cast<double>(now_ns() - start) / 1e6);
  }
  return times_ms;
}

struct Shared {
  alignas(64) std::atomic<std::uint32_t> turn{0};      // a new value is a new message
  alignas(64) std::atomic<std::uint32_t> answered{0};  // how many have answered this turn
  alignas(64) std::atomic<std::uint32_t> done{0};      // the last answer of a turn raises it
  alignas(64) Message message{};
  alignas(64) std::atomic<std::uint32_t> sum{0};  // what the answers add up to: proof that each saw the message
};

std::vector<double> futex_star(int count, double seconds) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  auto* shared = new (memory) Shared;
  const auto members = static_cast<std::uint32_t>(count);
  const auto children = fork_children(count, [shared, members](int) {
    std::uint32_t seen = 0;
    for (;;) {
      while (shared->turn.load() == seen) futex(&shared->turn, FUTEX_WAIT, seen);
      seen = shared->turn.load();
      shared->sum.fetch_add(static_cast<unsigned char>(shared->message[0]));
      if (shared->answered.fetch_add(1) + 1 == members) {
        shared->done.fetch_add(1);
        futex(&shared->done, FUTEX_WAKE, 1);
      }
    }
  });
  char stamp = 0;
  auto times = time_rounds(
      [&] {
        stamp = static_cast<char>(stamp % 100 + 1);
        shared->answered = 0;
        shared->sum = 0;
        shared->message.fill(stamp);
        const std::uint32_t before = shared->done.load();
        shared->turn.fetch_add(1);
        futex(&shared->turn, FUTEX_WAKE, INT_MAX);
        while (shared->done.load() == before) futex(&shared->done, FUTEX_WAIT, before);
        must(shared->sum == members * static_cast<std::uint32_t>(stamp), "wrong sum of answers");
      },
      seconds);
  end_children(children);
  munmap(memory, sizeof(Shared));
  return times;
}

std::vector<double> socket_star(int count, double seconds) {
  std::vector<std::array<int, 2>> pairs(static_cast<std::size_t>(count));
  for (auto& pair : pairs) must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0, "socketpair");
  const auto children = fork_children(count, [&pairs](int index) {
    Message message{};
    const int link = pairs[static_cast<std::size_t>(index)][1];
    while (recv(link, message.data(), message.size(), MSG_WAITALL) == static_cast<ssize_t>(message.size())) {
      if (send(link, message.data(), message.size(), 0) < 0) return;
    }
  });
  const int poll = epoll_create1(0);
  for (const auto& pair : pairs) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = pair[0];
    must(epoll_ctl(poll, EPOLL_CTL_ADD, pair[0], &event) == 0, "epoll_ctl");
  }
  char stamp = 0;
  auto times = time_rounds(
      [&] {
        Message message{}, answer{};
        message.fill(stamp = static_cast<char>(stamp % 100 + 1));
        for (const auto& pair : pairs) must(send(pair[0], message.data(), message.size(), 0) > 0, "send");
        epoll_event events[64];
        for (int answered = 0; answered < count;) {
          const int ready = epoll_wait(poll, events, 64, -1);
          for (int i = 0; i < ready; ++i, ++answered) {
            must(recv(events[i].data.fd, answer.data(), answer.size(), MSG_WAITALL) > 0, "recv");
            must(answer == message, "wrong answer");
          }
        }
      },
      seconds);
  end_children(children);
  for (const auto& pair : pairs) close(pair[0]), close(pair[1]);
  close(poll);
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: star ROW SECONDS N...\n"), 2;
  const double seconds = std::atof(argv[2]);
  for (int i = 3; i < argc; ++i) {
    const std::string row = std::string(argv[1]) + "_" + argv[i];
    print_row(row, "limit", "ms", futex_star(std::atoi(argv[i]), seconds));
    print_row(row, "limit:socket", "ms", socket_star(std::atoi(argv[i]), seconds));
  }
}
