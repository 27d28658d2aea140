#include "actor_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "monarch/base/system.h"

namespace monarch {

namespace {

// A stack of its own costs a thread two changes of the process's memory map, a fifth of what it takes to start it. Who
// starts many gets the others from slabs; these are as large as other stacks, memory only where they are touched.
constexpr int kOrdinaryThreads = 4;
constexpr size_t kStacksPerSlab = 16;

constexpr size_t kPageTableSpan = size_t{2} << 20;  // x86-64, and aarch64 with pages of 4 KiB
constexpr int kMadvGuardInstall = 102;  // Linux 6.13: a guard page without a mapping of its own

std::mutex stacks_mutex;
std::vector<std::byte*> returned_stacks;  // of threads that have ended, or that there was not

void return_stack(std::byte* stack) {
  std::lock_guard lock(stacks_mutex);
  returned_stacks.push_back(stack);
}

// Null: from wherever ordinary threads get theirs.
std::byte* take_stack(size_t size) {
  static int threads = 0;
  static std::byte* next = nullptr;
  static size_t left = 0;
  std::lock_guard lock(stacks_mutex);
  if (!returned_stacks.empty()) {
    std::byte* stack = returned_stacks.back();
    returned_stacks.pop_back();
    return stack;
  }
  if (threads < kOrdinaryThreads) {
    ++threads;
    return nullptr;
  }
  if (left == 0) {
    const size_t bytes = kStacksPerSlab * size + kPageTableSpan;
    void* slab = sys::map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1);
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

struct Thread {
  std::function<void()> work;
  std::byte* stack;  // null: not one of ours
  size_t stack_size;
};

struct Ended {
  pthread_t thread;
  std::byte* stack;
  size_t stack_size;
};
std::vector<Ended> ended;  // and not joined yet; stacks_mutex

// Each has nothing left to do when it is among them, but to join those before it.
void join(const std::vector<Ended>& threads) {
  for (const Ended& each : threads) {
    pthread_join(each.thread, nullptr);
    if (each.stack == nullptr) continue;
    const size_t guard = static_cast<size_t>(getpagesize());
    madvise(each.stack + guard, each.stack_size - guard, MADV_DONTNEED);
    return_stack(each.stack);
  }
}

void* run(void* started) {
  std::unique_ptr<Thread> self(static_cast<Thread*>(started));
  self->work();
  self->work = nullptr;
  std::vector<Ended> others;
  {
    std::lock_guard lock(stacks_mutex);
    others.swap(ended);
    ended.push_back({pthread_self(), self->stack, self->stack_size});
  }
  join(others);
  return nullptr;
}

}  // namespace

bool start_actor_thread(std::function<void()> work) {
  pthread_attr_t attributes;
  size_t stack_size = 0;
  pthread_attr_init(&attributes);
  pthread_attr_getstacksize(&attributes, &stack_size);
  std::byte* stack = take_stack(stack_size);
  if (stack != nullptr) pthread_attr_setstack(&attributes, stack, stack_size);
  auto kept = std::make_unique<Thread>(Thread{std::move(work), stack, stack_size});
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t thread;
  const int error = sys::must_fail(EAGAIN) ? EAGAIN : pthread_create(&thread, &attributes, run, kept.get());
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    if (stack != nullptr) return_stack(stack);
    errno = error;
    return false;
  }
  kept.release();
  return true;
}

}  // namespace monarch
