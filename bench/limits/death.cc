// Limit of W10: N processes are killed at once, until one thread that sleeps on their robust futexes knows how each ends.
//
// A library for death.py, so that the victims are forked from what workers are forked from: an interpreter that has
// imported what they need. As a worker, each has threads besides, and BYTES of memory that it has written to.
//
// Nothing is pinned: N + 1 processes on a few cores are the scheduler's business.
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "limit.h"

namespace {

constexpr int kFutexWaitv = 449;
constexpr int kVictimsMax = 127;
constexpr int kThreads = 2;

struct Waiter {
  std::uint64_t expected, address;
  std::uint32_t flags, reserved;
};

struct alignas(64) Life {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t>& word() { return *reinterpret_cast<std::atomic<std::uint32_t>*>(&mutex); }
};

void must(bool held, const char* what) {
  if (held) return;
  std::perror(what);
  std::exit(1);
}

void write_to(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  std::memset(memory, 1, bytes);
}

[[noreturn]] void* sleep_for_ever(void*) {
  for (;;) pause();
}

[[noreturn]] void be_victim(Life& life, std::size_t bytes, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  write_to(bytes);
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    must(pthread_create(&thread, nullptr, sleep_for_ever, nullptr) == 0, "pthread_create");
  }
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&life.mutex, &robust);
  pthread_mutex_lock(&life.mutex);
  life.word().fetch_or(FUTEX_WAITERS);
  must(write(ready, "x", 1) == 1, "write");
  for (;;) pause();
}

/// The 52nd field of its stat.
int exit_code_of(pid_t pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int file = open(path, O_RDONLY);
  const ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  must(count > 0, "read");
  text[count] = '\0';
  return std::atoi(std::strrchr(text, ' '));
}

double round_ms(int count, std::size_t bytes) {
  const std::size_t size = sizeof(Life) * kVictimsMax;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  auto* lives = static_cast<Life*>(memory);
  int ready[2];
  must(pipe(ready) == 0, "pipe");
  pid_t pids[kVictimsMax];
  for (int i = 0; i < count; ++i) {
    pids[i] = fork();
    must(pids[i] >= 0, "fork");
    if (pids[i] == 0) be_victim(lives[i], bytes, ready[1]);
  }
  char byte;
  for (int i = 0; i < count; ++i) must(read(ready[0], &byte, 1) == 1, "read");
  usleep(20'000);
  // The killer is a process of its own, as it is in the systems that are measured.
  auto* killed = new (static_cast<char*>(memory) + size - sizeof(Life)) std::atomic<std::uint64_t>(0);
  const pid_t killer = fork();
  if (killer == 0) {
    usleep(20'000);
    killed->store(now_ns());
    for (int i = 0; i < count; ++i) kill(pids[i], SIGKILL);
    _exit(0);
  }
  bool known[kVictimsMax] = {};
  for (int left = count; left > 0;) {
    Waiter waiters[kVictimsMax];
    std::uint32_t waiting = 0;
    for (int i = 0; i < count; ++i) {
      if (known[i]) continue;
      const std::uint32_t word = lives[i].word().load();
      if ((word & FUTEX_OWNER_DIED) != 0) {
        must(exit_code_of(pids[i]) == SIGKILL, "exit code");
        known[i] = true;
        --left;
      } else {
        waiters[waiting++] = {word, reinterpret_cast<std::uint64_t>(&lives[i].mutex), 2, 0};
      }
    }
    if (left > 0 && waiting == static_cast<std::uint32_t>(left)) syscall(kFutexWaitv, waiters, waiting, 0, nullptr, 0);
  }
  const std::uint64_t end = now_ns();
  const std::uint64_t start = killed->load();
  waitpid(killer, nullptr, 0);
  for (int i = 0; i < count; ++i) waitpid(pids[i], nullptr, 0);
  munmap(memory, size);
  close(ready[0]), close(ready[1]);
  return static_cast<double>(end - start) / 1e6;
}

}  // namespace

/// ROW=N:BYTES, for so many seconds. 0: done.
extern "C" int measure_deaths(double seconds, const char* row) {
  const char* victims = std::strchr(row, '=');
  const char* bytes = victims == nullptr ? nullptr : std::strchr(victims, ':');
  const int count = bytes == nullptr ? 0 : std::atoi(victims + 1);
  if (count < 1 || count >= kVictimsMax) return 2;
  std::vector<double> times;
  const std::uint64_t until = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (times.size() < 5 || now_ns() < until) times.push_back(round_ms(count, std::strtoull(bytes + 1, nullptr, 10)));
  print_row(std::string(row, victims), "limit", "ms", times);
  std::fflush(stdout);
  return 0;
}
