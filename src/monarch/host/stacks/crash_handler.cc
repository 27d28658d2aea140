#include "monarch/host/stacks/crash_handler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
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
pid_t process = 0;
struct sigaction before[std::size(kSignals)];
std::atomic<bool> crashed{false};

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

// dladdr() takes the lock of the loader: a crash inside of that ends here, with the frames before it.
[[gnu::noinline]] void write_frames(char* to, size_t room) {
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  size_t used = 0;
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(frames[i]);
    Dl_info info{};
    const bool known = dladdr(frames[i], &info) != 0 && info.dli_fname != nullptr;
    const char* name = known && info.dli_sname != nullptr ? info.dli_sname : "";
    const void* base = *name != '\0' ? info.dli_saddr : known ? info.dli_fbase : nullptr;
    char line[512];
    size_t size = write_text(line, 256, name);
    size += write_text(line + size, 1, "+");
    size += write_hex(line + size, 20, address - reinterpret_cast<uintptr_t>(base));
    size += write_text(line + size, 4, " in ");
    size += write_text(line + size, 200, known ? info.dli_fname : "?");
    line[size++] = '\n';
    if (used + size >= room) break;
    memcpy(to + used, line, size);
    used += size;
  }
}

// Those of write_frames(), of the handler, and of what the kernel has it return to.
void drop_own_frames(char* text) {
  constexpr int kOwn = 3;
  char* rest = text;
  for (int i = 0; i < kOwn && rest != nullptr; ++i) rest = strchr(rest, '\n') == nullptr ? nullptr : strchr(rest, '\n') + 1;
  if (rest != nullptr) memmove(text, rest, strlen(rest) + 1);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  const size_t index = static_cast<size_t>(std::find(std::begin(kSignals), std::end(kSignals), signal) - kSignals);
  struct sigaction next = before[index];
  const bool first = !crashed.exchange(true);
  if (first && getpid() == process) {
    write_frames(words->native, sizeof words->native - 1);
    drop_own_frames(words->native);
    if (language >= 0) lseek(language, language_begin, SEEK_SET);
  } else if (first && language >= 0) {
    dup2(STDERR_FILENO, language);
  }
  sigaction(signal, &next, nullptr);
  if (first && (next.sa_flags & SA_SIGINFO) != 0) return next.sa_sigaction(signal, info, context);
  if (first && next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) return next.sa_handler(signal);
  raise(signal);  // with what was there before; blocked until this returns
}

}  // namespace

void note_crashes(LastWords& left, int language_fd, long language_at) {
  if (words != nullptr) return;
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
