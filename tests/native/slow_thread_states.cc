// Preloaded into a Python: each thread state takes 20 ms to be made, and a child of a fork() that falls into that time
// ends with 99.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace {
std::atomic<int> being_made{0};

[[gnu::constructor]] void watch() {
  pthread_atfork(nullptr, nullptr, [] {
    if (being_made != 0) _exit(99);
  });
}
}  // namespace

extern "C" void* PyThreadState_New(void* interpreter) {
  static const auto make = reinterpret_cast<void* (*)(void*)>(dlsym(RTLD_NEXT, "PyThreadState_New"));
  ++being_made;
  usleep(20'000);
  void* const made = make(interpreter);
  --being_made;
  return made;
}
