#include "actor_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace monarch {

namespace {

// A stack of its own costs a thread two changes of the process's memory map, a fifth of what it takes to start it. Who
// starts many gets the others from slabs; these are as large as other stacks, memory only where they are touched.
constexpr int kOrdinaryThreads = 4;
constexpr size_t kStacksPerSlab = 16;

constexpr size_t kPageTableSpan = size_t{2} << 20;  // x86-64, and aarch64 with pages of 4 KiB
constexpr int kMadvGuardInstall = 102;  // Linux 6.13: a guard page without a mapping of its own

// Null: from wherever ordinary threads get theirs.
void* take_stack(size_t size) {
  static std::mutex mutex;
  static int threads = 0;
  static std::byte* next = nullptr;
  static size_t left = 0;
  std::lock_guard lock(mutex);
  if (threads < kOrdinaryThreads) {
    ++threads;
    return nullptr;
  }
  if (left == 0) {
    const size_t bytes = kStacksPerSlab * size + kPageTableSpan;
    void* slab = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (slab == MAP_FAILED) return nullptr;
    madvise(slab, bytes, MADV_NOHUGEPAGE);
    // The upper end of a stack and the guard page of the next share a page table.
    const auto start = reinterpret_cast<uintptr_t>(slab);
    next = static_cast<std::byte*>(slab) + (kPageTableSpan * 3 / 2 - start % kPageTableSpan) % kPageTableSpan;
    left = kStacksPerSlab;
  }
  std::byte* stack = std::exchange(next, next + size);
  --left;
  const size_t page = static_cast<size_t>(getpagesize());
  if (madvise(stack, page, kMadvGuardInstall) != 0) mprotect(stack, page, PROT_NONE);
  return stack;
}

void* run(void* work) {
  (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(work)))();
  return nullptr;
}

}  // namespace

void start_actor_thread(std::function<void()> work) {
  pthread_attr_t attributes;
  size_t stack_size = 0;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_getstacksize(&attributes, &stack_size);
  if (void* stack = take_stack(stack_size)) pthread_attr_setstack(&attributes, stack, stack_size);
  auto kept = std::make_unique<std::function<void()>>(std::move(work));
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, run, kept.get());
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot start a thread for an actor");
  kept.release();
}

}  // namespace monarch
