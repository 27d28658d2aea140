// Limit of W6: a payload from ordinary memory to another process, one at a time, in GB/s (1e9 bytes).
//
//   copy SECONDS CPU_A CPU_B NAME=BYTES...
//
// Rows W6_NAME and W6s_NAME, system `limit`: one copy into warm shared memory, past the caches if it is larger than
// these (base/copy.h); the receiver, polling on the other core, looks at the first and last byte (W6) or sums all 64-bit
// words in place (W6s), and answers. System `limit:vm_read`: the receiver copies straight out of the sender's memory
// (process_vm_readv) into a warm buffer of its own. For orientation, system `ref:memcpy`: one thread, one copy, no
// other process.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "limit.h"
#include "monarch/base/arch.h"
#include "monarch/base/copy.h"

namespace {

struct Shared {
  alignas(64) std::atomic<std::uint64_t> asked{0};
  alignas(64) std::atomic<std::uint64_t> answered{0};
  alignas(64) std::uint64_t answer = 0;
  char* source = nullptr;  // where the payload lies in the sender; set before the first question
};

/// Touched memory. Private memory asks for huge pages, as NumPy does for large arrays.
char* warm_memory(std::size_t size, int visibility) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, visibility | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::perror("mmap"), std::exit(1);
  if (visibility == MAP_PRIVATE) madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 1, size);
  return static_cast<char*>(memory);
}

std::uint64_t sum_words(const char* data, std::size_t size) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < size / sizeof *words; ++i) sum += words[i];
  return sum;
}

std::uint64_t look(const char* data, std::size_t size, bool everything) {
  if (everything) return sum_words(data, size);
  return static_cast<unsigned char>(data[0]) + 256u * static_cast<unsigned char>(data[size - 1]);
}

/// Polls until `word` is `value`, giving the core away now and then (both sides may share one).
void await(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  for (unsigned step = 1; word.load(std::memory_order_acquire) != value; ++step) {
    monarch::arch::pause();
    if (step % 64 == 0) sched_yield();
  }
}

enum class Way { kSharedMemory, kVmRead };

/// Copies the sender's `source` (same address there) to `target`, or ends the process.
void read_from(pid_t sender, char* source, char* target, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const iovec local{target + done, size - done}, remote{source + done, size - done};
    const ssize_t copied = process_vm_readv(sender, &local, 1, &remote, 1, 0);
    if (copied <= 0) std::perror("process_vm_readv"), _exit(1);
    done += static_cast<std::size_t>(copied);
  }
}

std::vector<double> send_copies(Way way, std::size_t size, bool everything, double seconds, int cpu_a, int cpu_b) {
  auto* shared = new (warm_memory(sizeof(Shared), MAP_SHARED)) Shared;
  char* slab = way == Way::kSharedMemory ? warm_memory(size, MAP_SHARED) : nullptr;
  const pid_t sender = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_thread(cpu_b);
    if (slab == nullptr) slab = warm_memory(size, MAP_PRIVATE);
    std::memset(slab, 1, size);  // the child's page tables are warm too
    for (std::uint64_t turn = 1;; ++turn) {
      await(shared->asked, turn);
      if (way == Way::kVmRead) read_from(sender, shared->source, slab, size);
      shared->answer = look(slab, size, everything);
      shared->answered.store(turn, std::memory_order_release);
    }
  }
  pin_thread(cpu_a);
  // Private memory is made after the fork: copy-on-write would break its huge pages up.
  char* source = shared->source = warm_memory(size, MAP_PRIVATE);
  std::vector<double> rates;
  const std::uint64_t start_ns = now_ns();
  const auto warm_ns = static_cast<std::uint64_t>(seconds * 0.25e9);
  const auto end_ns = static_cast<std::uint64_t>(seconds * 1.25e9);
  const std::uint64_t middle = sum_words(source, size) - sum_words(source, 8) - sum_words(source + size - 8, 8);
  for (std::uint64_t turn = 1; now_ns() - start_ns < end_ns || rates.size() < 3; ++turn) {
    source[0] = static_cast<char>(turn % 251);
    source[size - 1] = static_cast<char>(turn % 241);
    const std::uint64_t begin = now_ns();
    if (way == Way::kSharedMemory) monarch::copy_bytes(slab, source, size);
    shared->asked.store(turn, std::memory_order_release);
    await(shared->answered, turn);
    const std::uint64_t elapsed = now_ns() - begin;
    const std::uint64_t expected =
        everything ? middle + sum_words(source, 8) + sum_words(source + size - 8, 8) : look(source, size, false);
    if (shared->answer != expected) std::fprintf(stderr, "wrong answer\n"), std::exit(1);
    if (begin - start_ns > warm_ns) rates.push_back(static_cast<double>(size) / static_cast<double>(elapsed));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  munmap(source, size);
  if (slab != nullptr) munmap(slab, size);
  return rates;
}

std::vector<double> plain_copy(std::size_t size, double seconds, int cpu) {
  pin_thread(cpu);
  char* source = warm_memory(size, MAP_PRIVATE);
  char* target = warm_memory(size, MAP_PRIVATE);
  std::vector<double> rates;
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (now_ns() < end || rates.size() < 3) {
    ++source[0];
    const std::uint64_t begin = now_ns();
    std::memcpy(target, source, size);
    asm volatile("" ::: "memory");
    rates.push_back(static_cast<double>(size) / static_cast<double>(now_ns() - begin));
  }
  munmap(source, size), munmap(target, size);
  return rates;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "usage: copy SECONDS CPU_A CPU_B NAME=BYTES...\n"), 2;
  const double seconds = std::atof(argv[1]);
  const int cpu_a = std::atoi(argv[2]), cpu_b = std::atoi(argv[3]);
  for (int i = 4; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::size_t size = std::strtoull(argument.c_str() + equals + 1, nullptr, 10);
    for (const bool everything : {false, true}) {
      const std::string row = (everything ? "W6s_" : "W6_") + name;
      print_row(row, "limit", "GB/s", send_copies(Way::kSharedMemory, size, everything, seconds, cpu_a, cpu_b));
      print_row(row, "limit:vm_read", "GB/s", send_copies(Way::kVmRead, size, everything, seconds, cpu_a, cpu_b));
    }
    print_row("W6_" + name, "ref:memcpy", "GB/s", plain_copy(size, seconds / 2, cpu_a));
  }
}
