#include "quit_signal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>

#include "gil.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "state.h"

namespace monarch {

namespace {

// How long the report may wait for the GIL before the script's own threads are shown without it.
constexpr int64_t kGilLimitNs = 2'000'000'000;

constinit std::atomic<int> quit_fd{-1};
pid_t script = 0;
std::atomic<bool> reporting{false};  // what comes meanwhile is ignored
std::atomic<uintptr_t> number{0};    // of that report
std::atomic<bool> has_gil{false};

void on_quit(int signal_number) {
  const int saved = errno;
  if (getpid() == script) {
    eventfd_write(quit_fd, 1);
  } else {  // a forked child
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
  errno = saved;
}

bool is_ours() {
  struct sigaction current = {};
  return sigaction(SIGQUIT, nullptr, &current) == 0 && current.sa_handler == &on_quit;
}

// What can be said without Python: unformatted, of this process only.
void show_own_stacks() {
  state().runtime->of_machine()->take_own_stacks([](const std::vector<ThreadStack>& threads) {
    std::string text = "Python does not get to a report, somebody holds the GIL in C; the threads of this process:";
    for (const ThreadStack& thread : threads) {
      if (!thread.text.empty()) text += "\n" + thread.name + ": " + thread.text;
    }
    log_line(text);
  });
}

void* report(void*) {
  pthread_setname_np(pthread_self(), "monarch-stacks");
  GilThread python;
  has_gil = true;
  if (state().report_stacks && !state().finalizing) {
    Ref done = Ref::steal(PyObject_CallNoArgs(state().report_stacks.get()));
    if (!done) PyErr_WriteUnraisable(state().report_stacks.get());
  }
  reporting = false;
  return nullptr;
}

// The report gives the GIL away while it waits for others, and whoever takes it then may keep it.
void* take_gil(void* of_report) {
  pthread_setname_np(pthread_self(), "monarch-stacks");
  GilThread python;
  if (reinterpret_cast<uintptr_t>(of_report) == number) has_gil = true;
  return nullptr;
}

// Reactor. Until the report is done, or can be seen not to get on.
void look_for_gil(uintptr_t of_report) {
  state().runtime->timers().after(kGilLimitNs, [of_report] {
    if (!reporting || of_report != number) return;
    if (!has_gil) return show_own_stacks();
    has_gil = false;
    pthread_t thread;
    if (!sys::start_thread(&thread, take_gil, reinterpret_cast<void*>(of_report))) return;
    pthread_detach(thread);
    look_for_gil(of_report);
  });
}

// Reactor.
void on_wanted() {
  eventfd_t ignored;
  eventfd_read(quit_fd, &ignored);
  if (reporting.exchange(true)) return;
  ++number;
  has_gil = false;
  pthread_t thread;
  if (!sys::start_thread(&thread, report, nullptr)) {
    show_own_stacks();
    reporting = false;
    return;
  }
  pthread_detach(thread);
  look_for_gil(number);
}

}  // namespace

void watch_quit_signal() {
  struct sigaction current = {};
  const bool main_thread = syscall(SYS_gettid) == getpid();
  if (!main_thread || sigaction(SIGQUIT, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  UniqueFd event = sys::make_eventfd();
  if (!event) return;
  script = getpid();
  quit_fd = event.release();  // for good: a signal may be on its way to it
  state().runtime->of_machine()->reactor().add(quit_fd, POLLIN, [](uint32_t) { on_wanted(); });
  struct sigaction action = {};
  action.sa_handler = &on_quit;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGQUIT, &action, nullptr);
}

void leave_quit_signal() {
  if (quit_fd >= 0 && is_ours()) signal(SIGQUIT, SIG_DFL);
}

}  // namespace monarch
