#include "monarch/host/stacks/thread_stacks.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr size_t kTextMax = size_t{64} << 10;
// For a thread that blocks the signal while it runs: it may be in the middle of starting another one, or of the handler.
constexpr int64_t kBlockedLimitNs = 20'000'000;
// A thread whose stack could not be read is asked so often, at this distance.
constexpr int kTornMax = 5;
constexpr int64_t kTornWaitNs = 1'000'000;
constexpr int kHandlerFrames = 2;  // of the handler, and of what returns from it

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// ---- What the handler uses ----

constinit std::atomic<pid_t> asked{0};  // the thread that is to write; negative: it is writing
constinit std::atomic<int> written_fd{-1};
using Writer = void (*)(int signal);
constinit Writer writer = nullptr;
constinit int text_fd = -1;
void* frames[ThreadStacks::kFramesMax + kHandlerFrames];
int frame_count = 0;

// What a thread was just changing may not be fit to be read: CPython's faulthandler, for one, follows the frames of the
// thread that it has interrupted, and has met half of one (3.11, some thousands of dumps). Nobody may die of being asked,
// so faults of the thread that writes end its writing, for as long as that takes.
constexpr int kFaults[] = {SIGSEGV, SIGBUS};
struct sigaction before_faults[std::size(kFaults)];
sigjmp_buf after_fault;
bool torn = false;  // it has ended so

void on_fault(int signal, siginfo_t* info, void*) {
  const bool is_fault = info->si_code > 0;  // else somebody has sent it
  if (is_fault && asked == -this_thread()) siglongjmp(after_fault, 1);
  // Another thread's: what was there before has it, when the instruction faults again.
  const auto index = static_cast<size_t>(std::find(std::begin(kFaults), std::end(kFaults), signal) - kFaults);
  sigaction(signal, &before_faults[index], nullptr);
  if (!is_fault) raise(signal);  // blocked until this returns
}

void catch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  for (size_t i = 0; i < std::size(kFaults); ++i) sigaction(kFaults[i], &action, &before_faults[i]);
}

void leave_faults() {
  for (size_t i = 0; i < std::size(kFaults); ++i) {
    struct sigaction found = {};
    sigaction(kFaults[i], &before_faults[i], &found);
    if (found.sa_sigaction != &on_fault) sigaction(kFaults[i], &found, nullptr);  // somebody's, set meanwhile
  }
}

[[gnu::noinline]] void on_signal(int signal) {
  const int saved = errno;
  pid_t self = this_thread();
  // Not by whom it was for, if that comes too late: another one may be writing by now.
  if (asked.compare_exchange_strong(self, -self)) {
    frame_count = 0;
    catch_faults();
    torn = sigsetjmp(after_fault, 1) != 0;
    if (!torn) {
      frame_count = backtrace(frames, ThreadStacks::kFramesMax + kHandlerFrames);
      if (writer != nullptr) writer(signal);
    }
    leave_faults();
    asked = 0;
    eventfd_write(written_fd, 1);
  }
  errno = saved;
}

bool is_handled(int signal) {
  struct sigaction current = {};
  return sigaction(signal, nullptr, &current) == 0 && current.sa_handler == &on_signal;
}

bool handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = &on_signal;
  // Blocked meanwhile: a thread that is asked again and again, and runs only for that, would never return from it.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  return sigaction(signal, &action, nullptr) == 0;
}

int choose_signal() {
  for (int signal = SIGRTMAX - 1; signal >= SIGRTMIN; --signal) {
    struct sigaction current = {};
    if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) return signal;
  }
  return 0;
}

// ---- What the kernel says of a thread ----

std::string read_file(const std::string& path) {
  const UniqueFd file = sys::open_file(path.c_str(), O_RDONLY);
  char bytes[4096];
  const ssize_t size = file ? read(file.get(), bytes, sizeof bytes) : 0;
  return {bytes, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

std::string_view field(std::string_view status, std::string_view label) {
  const size_t at = status.find(label);
  if (at == status.npos) return {};
  std::string_view value = status.substr(at + label.size());
  value.remove_prefix(std::min(value.find_first_not_of("\t "), value.size()));
  return value.substr(0, value.find('\n'));
}

bool has_bit(std::string_view mask, int signal) {
  return (std::strtoull(std::string(mask).c_str(), nullptr, 16) >> (signal - 1) & 1) != 0;
}

// `folder`: of a process or thread in /proc. What is not known stays as it is; `*blocked`, where wanted: its signals.
ThreadStack look_at(const std::string& folder, std::string* blocked = nullptr) {
  ThreadStack task;
  const std::string status = read_file(folder + "/status");
  task.name = field(status, "Name:");
  if (const std::string_view state = field(status, "State:"); !state.empty()) task.state = state[0];
  if (std::string wchan = read_file(folder + "/wchan"); wchan != "0") task.waits_in = std::move(wchan);
  if (blocked != nullptr) *blocked = field(status, "SigBlk:");
  return task;
}

std::vector<pid_t> thread_ids() {
  std::vector<pid_t> ids;
  const pid_t self = this_thread();
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return ids;
  while (const dirent* entry = readdir(folder)) {
    const pid_t thread = static_cast<pid_t>(std::atoi(entry->d_name));
    if (thread > 0 && thread != self && ids.size() < ThreadStacks::kThreadsMax) ids.push_back(thread);
  }
  closedir(folder);
  return ids;
}

std::string read_text() {
  std::string text(kTextMax, '\0');
  const ssize_t size = text_fd < 0 ? 0 : pread(text_fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

void clear_text() {
  if (text_fd < 0 || lseek(text_fd, 0, SEEK_CUR) == 0) return;
  sys::truncate(text_fd, 0);
  lseek(text_fd, 0, SEEK_SET);
}

}  // namespace

ThreadStack look_at_process(pid_t pid) { return look_at("/proc/" + std::to_string(pid)); }

int ThreadStacks::signal_number() {
  static const int chosen = choose_signal();
  return chosen;
}

bool ThreadStacks::add_writer(UniqueFd fd) {
  struct sigaction current = {};
  const int signal = signal_number();
  if (signal == 0 || sigaction(signal, nullptr, &current) != 0) return false;
  if (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN || current.sa_handler == &on_signal) return false;
  writer = current.sa_handler;
  text_fd = fd.release();
  return handle(signal);
}

ThreadStacks::~ThreadStacks() {
  written_fd = -1;
  if (written_) reactor_.remove(written_.get());
}

bool ThreadStacks::install() {
  const int signal = signal_number();
  if (signal == 0) return false;
  if (written_) return is_handled(signal);  // or somebody has taken it away
  if (writer == nullptr ? !handle(signal) : !is_handled(signal)) return false;
  written_ = sys::make_eventfd();
  if (!written_) return false;
  void* ignored[1];
  backtrace(ignored, 1);  // which loads what it needs, and must not in a handler
  written_fd = written_.get();
  reactor_.add(written_.get(), POLLIN, [this](uint32_t) { on_written(); });
  return true;
}

void ThreadStacks::take(Done done) {
  waiting_.push_back(std::move(done));
  if (!running_) begin();
}

void ThreadStacks::begin() {
  running_ = true;
  served_ = std::exchange(waiting_, {});
  threads_.clear();
  limits_ns_.clear();
  index_ = 0;
  ends_ns_ = reactor_.now_ns() + kLimitNs;
  const bool can_ask = install();
  const int signal = signal_number();
  for (const pid_t id : thread_ids()) {
    std::string blocked;
    ThreadStack thread = look_at("/proc/self/task/" + std::to_string(id), &blocked);
    if (thread.state == '?') continue;  // it has ended
    thread.thread = id;
    threads_.push_back(std::move(thread));
    int64_t limit_ns = can_ask ? kThreadLimitNs : 0;
    if (has_bit(blocked, signal)) limit_ns = thread.state == 'R' ? std::min(limit_ns, kBlockedLimitNs) : 0;
    limits_ns_.push_back(limit_ns);
  }
  next();
}

// One after the other: they share what they write to.
void ThreadStacks::next() {
  for (; index_ < threads_.size(); ++index_) {
    const int64_t left_ns = ends_ns_ - reactor_.now_ns();
    if (limits_ns_[index_] == 0 || left_ns <= 0) continue;
    const pid_t id = threads_[index_].thread;
    clear_text();
    asked = id;
    if (syscall(SYS_tgkill, getpid(), id, signal_number()) != 0) {
      asked = 0;
      continue;  // it has ended
    }
    timer_ = reactor_.after(std::min(left_ns, limits_ns_[index_]), [this] { on_late(); });
    return;
  }
  finish();
}

void ThreadStacks::on_written() {
  eventfd_t ignored;
  eventfd_read(written_.get(), &ignored);
  if (timer_ != 0 && asked == 0) collect();  // else one that was given up
}

void ThreadStacks::collect() {
  reactor_.cancel(std::exchange(timer_, 0));
  if (torn && ++torn_count_ < kTornMax) {  // not at once: the signal would come before it has done anything
    timer_ = reactor_.after(kTornWaitNs, [this] {
      timer_ = 0;
      next();
    });
    return;
  }
  torn_count_ = 0;
  ThreadStack& thread = threads_[index_];
  thread.taken = true;
  if (!torn) thread.text = read_text();
  for (int i = kHandlerFrames; i < frame_count; ++i) thread.code.push_back(reinterpret_cast<uintptr_t>(frames[i]));
  ++index_;
  next();
}

void ThreadStacks::on_late() {
  timer_ = 0;
  pid_t id = threads_[index_].thread;
  if (asked.compare_exchange_strong(id, 0)) {
    ++index_;
    return next();
  }
  if (id == 0) return collect();
  // It is at it, and until it is done there is nothing for others to write to.
  timer_ = reactor_.after(kThreadLimitNs, [this] { on_late(); });
  if (reactor_.now_ns() >= ends_ns_) serve();
}

void ThreadStacks::serve() {
  const std::vector<Done> served = std::exchange(served_, {});
  for (const Done& done : served) done(threads_);
}

void ThreadStacks::finish() {
  running_ = false;
  serve();
  if (!running_ && !waiting_.empty()) begin();
}

}  // namespace monarch
