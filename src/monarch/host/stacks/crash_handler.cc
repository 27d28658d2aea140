#include "monarch/host/stacks/crash_handler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kFrames = 32;
constexpr size_t kStackBytes = size_t{64} << 10;

// ---- What the handler uses ----

LastWords* words = nullptr;
int language = -1;
long language_begin = 0;
bool all_frames = false;
bool cores_are_files = false;  // and are not given to a program, for which RLIMIT_CORE of 0 is no limit
pid_t process = 0;
struct sigaction before[std::size(kSignals)];
std::atomic<pid_t> crashed{0};  // the first thread that did

size_t write_text(char* to, size_t room, const char* text) {
  const size_t size = strnlen(text, room);
  memcpy(to, text, size);
  return size;
}

size_t write_hex(char* to, size_t room, uintptr_t number) {
  char digits[2 + 2 * sizeof number + 1] = "0x";
  int used = 2;
  for (int shift = 8 * sizeof number - 4; shift >= 0; shift -= 4) {
    const unsigned digit = number >> shift & 0xf;
    if (digit != 0 || used > 2 || shift == 0) digits[used++] = "0123456789abcdef"[digit];
  }
  return write_text(to, room, digits);
}

// The frame as a line, innermost first; its size.
size_t write_frame(char* to, void* address) {
  Dl_info info{};
  const bool known = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  const char* name = known && info.dli_sname != nullptr ? info.dli_sname : "";
  const void* base = *name != '\0' ? info.dli_saddr : known ? info.dli_fbase : nullptr;
  size_t size = write_text(to, 256, name);
  size += write_text(to + size, 1, "+");
  size += write_hex(to + size, 20, reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base));
  size += write_text(to + size, 4, " in ");
  size += write_text(to + size, 200, known ? info.dli_fname : "?");
  to[size++] = '\n';
  return size;
}

// dladdr() takes the lock of the loader: a crash inside of that ends here, with the frames before it. It looks through all
// that a library exports, 20 us for a frame of an interpreter's: no further than anybody reads.
[[gnu::noinline]] void write_frames(char* to, size_t room) {
  constexpr int kOwn = 3;  // of this function, of the handler, and of what the kernel has that return to
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  size_t used = 0;
  for (int i = kOwn; i < count; ++i) {
    char line[512];
    const size_t size = write_frame(line, frames[i]);
    if (used + size >= room || (!all_frames && is_base_frame({line, size}))) break;
    memcpy(to + used, line, size);
    used += size;
  }
}

// For a core that nobody will get the kernel still stops all threads before the first may end: 0.7 of 2 ms, where they
// have to wait for a processor.
void have_no_core() {
  rlimit limit{};
  if (cores_are_files && getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0) prctl(PR_SET_DUMPABLE, 0);
}

bool finds_files_for_cores() {
  const UniqueFd fd = sys::open_file("/proc/sys/kernel/core_pattern", O_RDONLY);
  char first = '|';
  return fd.get() >= 0 && read(fd.get(), &first, 1) == 1 && first != '|';
}

// Another thread is at it, and ends the process when it is done. Not if that is stuck.
void wait_for_first() {
  constexpr timespec kTurn{0, 10'000'000};
  for (int turn = 0; turn < 100; ++turn) nanosleep(&kTurn, nullptr);
}

// A signal that kill() has sent may come to any thread: what that was in has nothing to do with it.
void on_crash(int signal, siginfo_t* info, void* context) {
  const size_t index = static_cast<size_t>(std::find(std::begin(kSignals), std::end(kSignals), signal) - kSignals);
  struct sigaction next = before[index];
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  pid_t none = 0;
  const bool first = crashed.compare_exchange_strong(none, self);
  if (first && getpid() == process) {
    if (info->si_code != SI_USER) write_frames(words->native, sizeof words->native - 1);
    if (language >= 0) lseek(language, language_begin, SEEK_SET);
  } else if (first && language >= 0) {
    dup2(STDERR_FILENO, language);
  } else if (!first && none != self) {
    wait_for_first();
  }
  sigaction(signal, &next, nullptr);
  have_no_core();
  if (first && (next.sa_flags & SA_SIGINFO) != 0) return next.sa_sigaction(signal, info, context);
  if (first && next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) return next.sa_handler(signal);
  raise(signal);  // with what was there before; blocked until this returns
}

}  // namespace

void note_crashes(LastWords& left, int language_fd, long language_at) {
  if (words != nullptr) return;
  all_frames = shows_runtime_frames();
  cores_are_files = finds_files_for_cores();
  void* ignored[1];
  backtrace(ignored, 1);  // which loads what it needs, and must not in a handler
  words = &left;
  language = language_fd;
  language_begin = language_at;
  process = getpid();
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action {};
    action.sa_sigaction = &on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(kSignals[i], &action, &before[i]);
  }
}

CrashStack::CrashStack() : memory_(sys::map(kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)) {
  if (memory_ == MAP_FAILED) return;
  stack_t stack{};
  stack.ss_sp = memory_;
  stack.ss_size = kStackBytes;
  sigaltstack(&stack, nullptr);
}

CrashStack::~CrashStack() {
  if (memory_ == MAP_FAILED) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(memory_, kStackBytes);
}

}  // namespace monarch
