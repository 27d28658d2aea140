#include "monarch/host/start/starter.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "monarch/base/hex.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/start/attach.h"
#include "monarch/host/start/guard.h"

namespace monarch {

namespace {

ExitStatus unknown_because(std::string why) {
  ExitStatus status;
  status.because = std::move(why);
  return status;
}

// How long a prepared launch waits for what is short; those that hold nothing yet wait as long as others are under way, and
// then this long.
constexpr int64_t kShortageLimitNs = 10'000'000'000;
constexpr int64_t kAloneLimitNs = 1'000'000'000;
constexpr int64_t kShortageRetryNs = 10'000'000;
// How long the fork server has to end its descendants and itself, and then to be gone when it was killed.
constexpr int64_t kForkServerGraceNs = 250'000'000;
constexpr int64_t kKillLimitNs = 500'000'000;
// A debugger may hold back the end of a process: how often it is looked for.
constexpr int64_t kReapRetryNs = 10'000'000;
constexpr int kReapTries = 30;
constexpr int64_t kReapHeldNs = 500'000'000;  // of one that has been given up
constexpr int64_t kFindPidfdNs = 100'000'000;
// Whose life is given back, and /proc does not say yet that it ends: how often it is looked for. Then its pidfd will say.
constexpr int kEndingTries = 20;
constexpr int64_t kEndingRetryNs = 1'000'000;
// When the guard does not read: how often it is tried.
constexpr int64_t kGuardRetryNs = 100'000'000;
constexpr int kGuardDeathsMax = 10;
// So many are started by exec before others on the reactor have their turn.
constexpr int kExecsAtOnce = 4;
constexpr size_t kLaunchDescriptors = 16;
constexpr size_t kSpareDescriptors = 16;
constexpr size_t kLaterDescriptors = 3;    // the guard's pipe, the record, the pidfd
constexpr size_t kServerDescriptors = 12;  // of the guard and the fork server, and while they are started

// monarch-guard lies beside this library, or in bin/ beside it.
std::string guard_program() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&guard_register), &info) == 0) return "";
  std::string folder = info.dli_fname;
  folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/') + 1);
  for (const std::string& path : {folder + "bin/monarch-guard", folder + "monarch-guard"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

bool is_shortage(int error) {
  return error == EAGAIN || error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM || error == EMFILE ||
         error == ENFILE;
}

// Others leave what a child of theirs may have written (host/stacks/crash_handler.h).
bool leaves_stack(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT;
}

bool ends_within(const Process& process, int limit_ms) {
  pollfd fd{process.pidfd.get(), POLLIN, 0};
  return poll(&fd, 1, limit_ms) == 1;
}

}  // namespace

Starter::Starter(Reactor& reactor, Connector& connector, OutputRoute& output, int budget_fd, const JobAddress& address,
                 NodeId self, Events events, StartProcess start_process)
    : reactor_(reactor),
      connector_(connector),
      output_(output),
      address_(address),
      budget_fd_(budget_fd),
      self_(self),
      events_(std::move(events)),
      start_process_(std::move(start_process)),
      shows_runtime_(shows_runtime_frames()),
      lives_([this](NodeId node) { reactor_.post([this, node] { on_life_released(node, kEndingTries); }); }) {}

Starter::~Starter() {
  if (fork_socket_) reactor_.remove(fork_socket_.get());
  if (fork_server_.pidfd) reactor_.remove(fork_server_.pidfd.get());
  if (guard_.pidfd) reactor_.remove(guard_.pidfd.get());
  for (auto& [node, running] : running_) {
    if (running.process.pidfd) reactor_.remove(running.process.pidfd.get());
    if (running.hostd) reactor_.remove(running.hostd.get());
  }
  for (auto& [node, running] : running_) {
    if (!running.process.pidfd || running.elsewhere) continue;  // its monarch-hostd ends it, when the socket closes
    signal_process(running.process, SIGKILL);
    kill_group(running.process);
  }
  for (auto& [node, running] : running_) {
    if (!running.forked && !running.awaited && ends_within(running.process, 100)) try_reap(running.process);
  }
  door_.reset();
  fork_socket_.reset();
  if (fork_server_.pid > 0) {  // it takes with it what is left of its workers
    signal_process(fork_server_, SIGTERM);
    signal_process(fork_server_, SIGCONT);  // it may be stopped
    if (!ends_within(fork_server_, 1000)) signal_process(fork_server_, SIGKILL);
    if (ends_within(fork_server_, 1000)) try_reap(fork_server_);
  }
  guard_pipe_.reset();
  if (guard_.pid <= 0) return;
  signal_process(guard_, SIGCONT);  // as above
  if (ends_within(guard_, 2000)) try_reap(guard_);
}

// ---- The guard ----

// On the reactor, since PDEATHSIG belongs to the thread that starts a process. Without the guard everything works but the
// end of what users' actors started themselves when the script is killed.
void Starter::start_guard() {
  if (guard_pipe_ || guard_missing_) return;
  const std::string program = guard_program();
  UniqueFd ends[2];
  guard_missing_ = program.empty();
  if (guard_missing_) {
    return log_line("monarch-guard is missing: processes that actors start may outlive a killed script");
  }
  // After a shortage the next launch tries again.
  const auto short_of = [this](const std::string& why) {
    if (!std::exchange(guard_short_, true)) log_line("cannot start the guard yet: " + why);
  };
  if (!sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, ends)) {
    return short_of(sys::shortage_error("make its socket").message);
  }
  ProcessSpec spec;
  spec.argv = {program, std::to_string(ends[0].get())};
  // The sockets of workers, which are killed with their guards, go with the script.
  const std::string door = door_path();
  if (address_.script == self_) {
    spec.argv.push_back(door.substr(0, door.rfind('/') + 1));
    spec.argv.push_back(address_.token_path());
  } else if (host_number(self_) != 0) {
    spec.argv.push_back(door);
  }
  spec.keep_fds = {ends[0].get()};
  spec.cwd = "/";
  spec.death_signal = 0;
  auto started = start_process_(spec);
  if (!started) return short_of(started.error().message);
  guard_short_ = false;
  guard_ = std::move(*started);
  guard_pipe_ = std::move(ends[1]);
  reactor_.add(guard_.pidfd.get(), EPOLLIN, [this](uint32_t) { guard_died(); });
  if (fork_server_.pid > 0) tell_guard(kGuardGentle | fork_server_.pid);
  for (const auto& [node, running] : running_) {
    if (running.process.pid > 0 && !running.elsewhere) tell_guard(running.process.pid);
  }
}

// Somebody has killed it. The next one is told of all that it knew.
void Starter::guard_died() {
  reactor_.remove(guard_.pidfd.get());
  const auto status = try_reap(guard_);
  guard_ = {};
  guard_pipe_.reset();
  guard_waiting_.clear();
  guard_missing_ = ++guard_deaths_ > kGuardDeathsMax;
  start_guard();
  log_line("the guard " + describe(status.value_or(ExitStatus{})) +
           (guard_pipe_ ? "; another one takes its place" : "; what actors start may outlive a killed script"));
}

// It may be stopped: what it does not take waits.
void Starter::tell_guard(GuardEntry entry) {
  if (!guard_pipe_) return;
  // What waits to be said of a process that has ended is wrong by now; but that it has ended must be said: it may have told
  // the guard of itself.
  if (entry < 0) std::erase(guard_waiting_, -entry);
  if (guard_waiting_.empty() && guard_register(guard_pipe_.get(), entry)) return;
  guard_waiting_.push_back(entry);
  if (guard_waiting_.size() == 1) reactor_.after(kGuardRetryNs, [this] { flush_guard(); });
}

void Starter::flush_guard() {
  while (guard_pipe_ && !guard_waiting_.empty()) {
    if (!guard_register(guard_pipe_.get(), guard_waiting_.front()) && errno == EAGAIN) break;
    guard_waiting_.pop_front();
  }
  if (!guard_waiting_.empty()) reactor_.after(kGuardRetryNs, [this] { flush_guard(); });
}

// ---- Launching ----

Status Starter::expect(size_t count) const {
  const std::string what = "start " + std::to_string(count) + (count == 1 ? " process" : " processes");
  const size_t starting = kLaunchDescriptors + kLaterDescriptors + (fork_ready_ ? 0 : kServerDescriptors);
  return sys::expect_descriptors(count * kDescriptorsEach + starting + kSpareDescriptors, what.c_str());
}

bool Starter::take_slot() {
  if (slots_.fetch_add(1) < kUnderWayMax) return true;
  slots_.fetch_sub(1);
  return false;
}

void Starter::give_slot() {
  slots_.fetch_sub(1);
  pump_later(0);
}

// The first ones are prepared at once, by the thread that wants them: what it sends next goes on a link that is started.
void Starter::launch(Order order) {
  auto launching = std::make_shared<Launching>(std::move(order));
  if (launching->order.launch.is_awaited) {
    return reactor_.post([this, launching] {
      start_guard();
      if (ending_) return not_started(launching->node(), "its owner is ending");
      if (auto open = open_door(); !open) return not_started(launching->node(), open.error().message);
      awaited_.emplace(launching->node(), launching);
    });
  }
  bool prepared = false;
  if (take_slot()) {
    prepared = prepare(*launching).ok();
    if (!prepared) slots_.fetch_sub(1);
  }
  reactor_.post([this, launching, prepared] {
    start_guard();
    (prepared ? ready_ : waiting_).push_back(launching);
    if (ending_) return fail_waiting("its owner is ending", /*forks_only=*/false);
    pump_later(0);
  });
}

// Any thread. What can be made before its turn has come; what there is already stays.
Status Starter::prepare(Launching& launching) {
  const Order& order = launching.order;
  // Enough for all of it, and some for others: half a launch holds what nobody can use.
  if (!launching.has_output) {
    // Those under way want some more, when their turn has come, and so does what is to start them.
    const auto later = static_cast<size_t>(std::max(slots_.load(), 1)) * kLaterDescriptors;
    const size_t servers = fork_ready_ ? 0 : kServerDescriptors;
    if (auto room = sys::expect_descriptors(kLaunchDescriptors + later + servers + kSpareDescriptors, "start a process");
        !room) {
      return room.error();
    }
    auto output = output_.open(launching.node(), order.bootstrap.owner, order.mesh, order.launch.output);
    const bool too_long = launching.short_since_ns != 0 && reactor_.now_ns() - launching.short_since_ns > kAloneLimitNs / 2;
    if (!output && too_long) output = output_.without_announcement();
    if (!output) return output.error();
    launching.fds[kFdStdout] = std::move(output->out);
    launching.fds[kFdStderr] = std::move(output->err);
    launching.fds[kFdOutput] = std::move(output->route);
    launching.has_output = true;
  }
  if (!launching.has_ends) {
    auto ends = connector_.start_child(*order.link);
    if (!ends) return ends.error();
    ends->listener = std::move(launching.order.listener);
    put_ends(launching.fds, std::move(*ends));
    launching.has_ends = true;
  }
  return Ok{};
}

void Starter::pump_later(int64_t delay_ns) {
  if (delay_ns != 0) {
    if (std::exchange(retry_armed_, true)) return;
    reactor_.after(delay_ns, [this] {
      retry_armed_ = false;
      pump();
    });
  } else if (!std::exchange(pump_posted_, true)) {
    reactor_.post([this] { pump(); });
  }
}

void Starter::pump() {
  pump_posted_ = false;
  int execs = 0;
  const auto start = [&](const LaunchingPtr& launching) {
    if (!launching->order.launch.use_fork_server && ++execs > kExecsAtOnce) return pump_later(0), false;
    return begin(launching);
  };
  for (const LaunchingPtr& launching : std::exchange(ready_, {})) {
    if (!start(launching)) ready_.push_back(launching);
  }
  while (!waiting_.empty() && take_slot()) {
    const LaunchingPtr first = waiting_.front();
    if (auto prepared = prepare(*first); !prepared) {
      slots_.fetch_sub(1);  // not give_slot(), which would look again at once
      if (wait_out(*first, slots_.load() > 0 ? 0 : kAloneLimitNs)) return;
      waiting_.pop_front();
      not_started(first->node(), prepared.error().message);
      continue;
    }
    first->short_since_ns = 0;
    waiting_.pop_front();
    if (!start(first)) ready_.push_back(first);
  }
}

// Something is short. False: that has lasted too long; `limit_ns` 0: it cannot.
bool Starter::wait_out(Launching& launching, int64_t limit_ns) {
  const int64_t now_ns = reactor_.now_ns();
  if (launching.short_since_ns == 0 || limit_ns == 0) launching.short_since_ns = now_ns;
  if (limit_ns != 0 && now_ns - launching.short_since_ns > limit_ns) return false;
  pump_later(kShortageRetryNs);
  return true;
}

// True: it is under way, or has failed. False: not yet.
bool Starter::begin(const LaunchingPtr& launching) {
  Launching& it = *launching;
  const bool elsewhere = it.order.launch.hostd.has_value();
  const bool forks = it.order.launch.use_fork_server && !elsewhere;
  const bool by_number = !forks && !elsewhere && !it.guest;
  const auto fail = [&](const std::string& why) {
    it.fds = {};
    give_slot();
    not_started(it.node(), why);
    return true;
  };
  if (forks && !fork_server_wanted_) return fail("the fork server " + fork_server_end_);
  if (forks && !fork_ready_) return false;
  const auto missing = [&](const Error& why) { return wait_out(it, kShortageLimitNs) ? false : fail(why.message); };
  if (!it.fds[kFdGuard]) {
    // What user code has started may live among other process numbers than these.
    it.fds[kFdGuard] = guard_pipe_ && !it.guest ? sys::duplicate(guard_pipe_.get()) : sys::open_file("/dev/null", O_WRONLY);
    if (!it.fds[kFdGuard]) return missing(sys::shortage_error("share the guard"));
  }
  it.order.bootstrap.parent_pid = it.guest ? 0 : forks ? fork_server_.pid : getpid();
  std::vector<int> numbers;
  for (int i = 0; i < kFdCount && by_number; ++i) {
    numbers.push_back(i == kFdStdout || i == kFdStderr ? -1 : it.fds[i].get());
  }
  if (!numbers.empty()) numbers[kFdBudget] = budget_fd_;
  auto record = write_bootstrap(it.order.bootstrap, numbers);
  if (!record) return missing(record.error());
  it.fds[kFdRecord] = std::move(*record);
  it.life = map_life(it.fds[kFdRecord].get());
  it.last_words = map_last_words(it.fds[kFdRecord].get());
  if (!memory_known_) memory_known_ = memory_reader_.read();
  if (elsewhere) {
    begin_elsewhere(launching);
    return true;
  }
  if (by_number) {
    const std::string why = begin_exec(it, numbers);
    if (!why.empty()) return fail(why);
    give_slot();
    return true;
  }
  std::array<int, kFdCount> given;
  for (int i = 0; i < kFdCount; ++i) given[i] = it.fds[i].get();
  given[kFdBudget] = budget_fd_;
  if (it.guest) {
    if (LaunchDoor::admit(*it.guest, it.node(), given)) return admitted(it), true;
    if (is_shortage(errno)) return missing(sys::shortage_error("hand a process what a worker is given"));
    return fail("it ended before it was given what a worker is given");
  }
  if (send_fork_request(fork_socket_.get(), it.node(), given)) {
    Running& running = running_[it.node()];
    running.forked = true;
    running.life = std::move(it.life);
    running.last_words = std::move(it.last_words);
    return true;
  }
  if (is_shortage(errno)) return missing(sys::shortage_error("ask the fork server for a process"));
  return fail(std::string("the fork server cannot be reached: ") + std::strerror(errno));
}

// An error, or nothing.
std::string Starter::begin_exec(Launching& launching, const std::vector<int>& numbers) {
  const Launch& launch = launching.order.launch;
  ProcessSpec spec;
  for (int fd : numbers) {
    if (fd >= 0) spec.keep_fds.push_back(fd);
  }
  const int record = launching.fds[kFdRecord].get();
  spec.keep_fds.push_back(record);
  spec.stdout_fd = launching.fds[kFdStdout].get();
  spec.stderr_fd = launching.fds[kFdStderr].get();
  spec.program = launch.program;
  spec.argv = launch.argv;
  spec.argv.push_back(std::to_string(record));
  spec.env = launch.env;
  spec.cwd = launch.cwd;
  spec.oom_score = oom_score_;
  auto started = start_process_(spec);
  launching.fds = {};
  if (!started) return started.error().message;
  Running& running = running_[launching.node()];
  running.life = std::move(launching.life);
  running.last_words = std::move(launching.last_words);
  spawned(launching.node(), std::move(*started));
  return "";
}

// ---- By a program's own code ----

// In a folder of the job, which lies in that of the script on its host: whoever has to do with the job knows it.
std::string Starter::door_path() const {
  const bool is_here = host_number(self_) == 0 && !address_.folder.empty() && address_.check_here().ok();
  constexpr size_t kJobBytes = 4;
  const std::string job = to_hex(address_.job.data(), kJobBytes);
  return launch_door_path((is_here ? address_.folder : runtime_folder()) + "/launch-" + job, self_);
}

Status Starter::open_door() {
  if (!door_) {
    door_ = std::make_unique<LaunchDoor>(
        reactor_, door_path(), [this](NodeId node, LaunchDoor::Guest guest) { on_guest(node, std::move(guest)); });
  }
  return door_->open();
}

void Starter::on_guest(NodeId node, LaunchDoor::Guest guest) {
  const auto found = awaited_.extract(node);
  if (!found) {
    const bool is_there = running_.contains(node);
    return LaunchDoor::refuse(guest, is_there ? "it is there already, and this would be the second"
                                              : "it has been given up");
  }
  found.mapped()->guest = std::move(guest);
  waiting_.push_back(found.mapped());
  pump_later(0);
}

// It has been given what a worker is given.
void Starter::admitted(Launching& launching) {
  launching.fds = {};
  give_slot();
  Running& running = running_[launching.node()];
  running.awaited = true;
  running.life = std::move(launching.life);
  running.last_words = std::move(launching.last_words);
  spawned(launching.node(), std::move(launching.guest->process));
}

void Starter::withdraw(NodeId node) {
  if (awaited_.erase(node) != 0) not_started(node, "it was stopped before");
}

void Starter::hear_news(NodeId node, const LaunchNews& news) {
  if (awaited_.contains(node) || (news.kind != LaunchNews::kLate && drop_waiting(node, ""))) {
    awaited_.erase(node);
    const std::string tail = news.tail.empty() ? "" : "\nThe last that it printed to stderr:\n  " + indented(news.tail);
    const std::string ended = "it ended before it was there; its launcher says: ";
    return not_started(node, (news.kind == LaunchNews::kExited ? ended + news.describe() : news.text) + tail);
  }
  const auto found = running_.find(node);
  if (found == running_.end() || !found->second.awaited || news.kind == LaunchNews::kLate) return;
  Running& running = found->second;
  if (news.kind == LaunchNews::kFailed) {
    if (running.end_seen) return;
    running.because = "was ended because " + news.text;
    return kill(node);
  }
  if (running.told) return;  // too late
  running.news = news;
  if (running.end_seen) return tell_end(node);
  reactor_.after(kNewsLimitNs, [this, node, said = news.describe()] {
    auto still = running_.find(node);
    if (still == running_.end() || still->second.end_seen) return;
    still->second.news.reset();
    log_line("the launcher of a process says that it has ended (" + said + "), but it lives: pid " +
             std::to_string(still->second.process.pid));
  });
}

// It has ended, or is at its end. Who has started it may say more, and is waited for.
void Starter::see_end(NodeId node, const ExitStatus& status) {
  Running& running = running_[node];
  if (!running.seen.known) running.seen = status;
  const bool first = !std::exchange(running.end_seen, true);
  // What it has left in its group, while that is known to be its own. A dump of its memory is not to be cut short.
  if (first && !running.ended && !leaves_stack(status.signal)) kill_group(running.process);
  if (running.news || running.told || !running.because.empty()) return tell_end(node);
  if (first) reactor_.after(kNewsLimitNs, [this, node] { tell_end(node); });
}

// Once it is told how it ends, and once it has.
void Starter::tell_end(NodeId node) {
  const auto found = running_.find(node);
  if (found == running_.end()) return;
  Running& running = found->second;
  const bool first = !running.told;
  if (first) {
    ExitStatus status = running.because.empty() ? running.seen : unknown_because(running.because);
    if (const auto& news = running.news) {
      LaunchNews more = *news;
      if (!status.known && status.because.empty()) {
        status.known = news->status.known;
        status.code = news->status.code;
        status.signal = news->status.signal;
      }
      // What is known already need not be said twice.
      if (status.code == news->status.code && status.signal == news->status.signal) more.status.known = false;
      status.launcher = more.describe();
      status.launcher_tail = more.tail;
    }
    complete(running, status);
  }
  const ExitStatus status = *running.told;
  if (running.ended) return exited(node, status);
  if (!first) return;
  events_.on_dying(node, status);
  reactor_.after(kReportLimitNs, [this, node] { look_for_end(node); });
}

// ---- By a monarch-hostd ----

// It may take long to answer, and others need the slot.
void Starter::begin_elsewhere(const LaunchingPtr& launching) {
  Running& running = running_[launching->node()];
  running.forked = running.elsewhere = true;
  running.life = std::move(launching->life);
  running.last_words = std::move(launching->last_words);
  give_slot();
  HostDial::start(reactor_, *launching->order.launch.hostd,
                  [this, launching](Result<UniqueFd> socket) { ask_hostd(launching, std::move(socket)); });
}

void Starter::ask_hostd(const LaunchingPtr& launching, Result<UniqueFd> socket) {
  const NodeId node = launching->node();
  const auto found = running_.find(node);
  if (found == running_.end()) return;
  const auto fail = [&](const std::string& why) {
    const bool given_up = found->second.given_up;
    running_.erase(found);
    if (!given_up) not_started(node, why);
  };
  if (found->second.given_up) return fail("");
  if (!socket) return fail(socket.error().message);
  std::array<int, kFdCount> given;
  for (int i = 0; i < kFdCount; ++i) given[i] = launching->fds[i].get();
  given[kFdBudget] = budget_fd_;
  if (!send_fork_request(socket->get(), node, given)) {
    return fail("the host at " + launching->order.launch.hostd->to_text() + " does not take what it is asked for: " +
                std::strerror(errno));
  }
  launching->fds = {};
  found->second.hostd = std::move(*socket);
  reactor_.add(found->second.hostd.get(), EPOLLIN, [this, node](uint32_t) { on_hostd(node); });
}

void Starter::on_hostd(NodeId node) {
  for (;;) {
    const auto found = running_.find(node);
    if (found == running_.end() || !found->second.hostd) return;
    UniqueFd pidfd;
    const auto report = receive_fork_report(found->second.hostd.get(), &pidfd);
    if (!report) return errno == EAGAIN ? void() : leave_hostd(node, kEndedWithHostd);
    switch (report->kind) {
      case ForkReport::kSpawned:
        // The host may be in another namespace, where the number means somebody else; 0: it has none that is known here.
        spawned(node, Process{pidfd ? pid_behind(pidfd).value_or(0) : 0, std::move(pidfd)});
        break;
      case ForkReport::kExited:
        return exited(node, {.known = true, .code = report->code, .signal = report->signal, .because = {}});
      case ForkReport::kFailed:
        return exited(node, unknown_because("could not be started: the host has no room for another process"));
      default:
        break;
    }
  }
}

// It ends what it has started, and the process's own pidfd says when that has ended.
void Starter::leave_hostd(NodeId node, const std::string& because) {
  Running& running = running_[node];
  reactor_.remove(running.hostd.get());
  running.hostd.reset();
  running.because = because;
  if (!running.process.pidfd || running.ended) exited(node, unknown_because(running.because));
}

// False: it does not wait.
bool Starter::drop_waiting(NodeId node, const std::string& why) {
  for (auto* queue : {&ready_, &waiting_}) {
    const auto found = std::find_if(queue->begin(), queue->end(), [&](const auto& each) { return each->node() == node; });
    if (found == queue->end()) continue;
    queue->erase(found);
    if (queue == &ready_) give_slot();
    if (!why.empty()) not_started(node, why);
    return true;
  }
  return false;
}

void Starter::fail_waiting(const std::string& why, bool forks_only) {
  std::vector<NodeId> failed;
  for (auto* queue : {&ready_, &waiting_}) {
    std::erase_if(*queue, [&](const LaunchingPtr& each) {
      const Launch& launch = each->order.launch;
      if (forks_only && (!launch.use_fork_server || launch.hostd)) return false;
      if (queue == &ready_) give_slot();
      failed.push_back(each->node());
      return true;
    });
  }
  if (!forks_only) {
    for (const auto& [node, launching] : std::exchange(awaited_, {})) failed.push_back(node);
  }
  for (NodeId node : failed) not_started(node, why);
}

void Starter::kill(NodeId node) {
  auto found = running_.find(node);
  if (found == running_.end()) {
    withdraw(node);
    drop_waiting(node, "it was stopped before");
    return;
  }
  Running& running = found->second;
  const bool is_there = running.process.pid >= 0;
  if (running.elsewhere && is_there) {
    // A process in another namespace is out of reach for signals, unless that lies within this one.
    const bool told = running.process.pidfd && signal_process(running.process, SIGKILL);
    if (!told && running.hostd && !running.ended) leave_hostd(node, "was killed");
    return;
  }
  running.kill_when_known = !running.process.pidfd;
  if (!running.process.pidfd) {
    // The fork server does not answer: it may be stopped. Nobody waits for that.
    const bool unborn = running.forked && !is_there;
    if (!unborn || std::exchange(running.given_up, true)) return;
    if (!running.elsewhere) give_slot();
    return not_started(node, "it was stopped before");
  }
  signal_process(running.process, SIGKILL);
  // Of a forked one, which the server has perhaps not reaped: the server does it.
  if (!running.forked && !running.ended) kill_group(running.process);
}

void Starter::end() {
  ending_ = true;
  fail_waiting("stopped", /*forks_only=*/false);
}

// ---- What became of it ----

void Starter::spawned(NodeId node, Process process) {
  auto found = running_.find(node);
  if (found == running_.end()) return;
  found->second.process = std::move(process);
  // What a monarch-hostd has started it ends, when this process is gone; and its numbers may mean others here.
  if (!found->second.elsewhere) tell_guard(found->second.process.pid);
  const pid_t pid = found->second.process.pid;
  if (!found->second.given_up) events_.on_spawned(node, pid > 0 ? pid : -1);
  if (found->second.process.pidfd) return watch(node);
  if (!found->second.elsewhere) return reactor_.post([this, node] { find_pidfd(node); });
  if (found->second.kill_when_known) kill(node);  // its monarch-hostd says when it ends
}

void Starter::watch(NodeId node) {
  Running& running = running_[node];
  reactor_.add(running.process.pidfd.get(), EPOLLIN, [this, node](uint32_t) { on_ended(node); });
  lives_.add(node, std::move(running.life));
  if (running.kill_when_known) kill(node);
}

// There was no descriptor for it. The number is the worker's if the server has not told of its end a while after it was
// looked at.
void Starter::find_pidfd(NodeId node) {
  auto found = running_.find(node);
  if (found == running_.end() || !fork_socket_) return;
  auto pidfd = std::make_shared<UniqueFd>(sys::open_pidfd(found->second.process.pid));  // shared: a task is copyable
  reactor_.after(kFindPidfdNs, [this, node, pidfd] {
    if (!*pidfd) return find_pidfd(node);
    on_fork_server();
    auto still = running_.find(node);
    if (still == running_.end() || !fork_socket_) return;
    still->second.process.pidfd = std::move(*pidfd);
    watch(node);
  });
}

// It ends; or has become another program, or lost its main thread, and then this was all that its life could say.
void Starter::on_life_released(NodeId node, int tries) {
  // Who killed it may be the fork server, or its monarch-hostd, by its own death, which says more.
  on_fork_server();
  on_hostd(node);
  auto found = running_.find(node);
  if (found == running_.end() || found->second.given_up || !found->second.because.empty()) return;
  if (found->second.forked && !found->second.elsewhere && !fork_socket_) return;
  Running& running = found->second;
  if (const auto status = read_ending(running.process)) {
    if (running.awaited) return see_end(node, *status);
    reactor_.after(kReportLimitNs, [this, node] { look_for_end(node); });
    return events_.on_dying(node, complete(running, *status));
  }
  if (tries > 1) reactor_.after(kEndingRetryNs, [this, node, tries] { on_life_released(node, tries - 1); });
}

// The pidfd of who has threads says nothing while a debugger that has attached to them does not take note of their end.
void Starter::look_for_end(NodeId node) {
  auto found = running_.find(node);
  if (found == running_.end() || found->second.ended) return;
  if (has_ended(found->second.process)) return on_ended(node);
  reactor_.after(kReportLimitNs, [this, node] { look_for_end(node); });
}

void Starter::on_ended(NodeId node) {
  Running& running = running_[node];
  reactor_.remove(running.process.pidfd.get());
  running.ended = true;
  if (running.awaited) {
    kill_group(running.process);
    return see_end(node, read_exit_status(running.process));
  }
  if (!running.forked) return reap_exec(node, kReapTries);
  if (!running.because.empty()) return exited(node, unknown_because(running.because));
  reactor_.after(kReportLimitNs, [this, node] {
    auto found = running_.find(node);
    if (found == running_.end()) return;  // the server has told
    const ExitStatus status = read_exit_status(found->second.process);
    kill_group(found->second.process);
    exited(node, status);
  });
}

void Starter::reap_exec(NodeId node, int tries) {
  auto found = running_.find(node);
  if (found == running_.end()) return;
  Process& process = found->second.process;
  if (const auto status = try_reap(process)) return exited(node, *status);
  if (tries > 1) {
    reactor_.after(kReapRetryNs, [this, node, tries] { reap_exec(node, tries - 1); });
    return;
  }
  // It has ended all the same, and nobody waits for a debugger to let go.
  const ExitStatus status = read_exit_status(process);
  reap_held({process.pid, std::move(process.pidfd)});
  exited(node, status);
}

void Starter::reap_held(Process process) {
  if (try_reap(process)) return;
  auto held = std::make_shared<Process>(std::move(process));  // shared: a task is copyable
  reactor_.after(kReapHeldNs, [this, held] { reap_held(std::move(*held)); });
}

void Starter::exited(NodeId node, const ExitStatus& how) {
  auto found = running_.find(node);
  if (found == running_.end()) return;
  Running& running = found->second;
  const ExitStatus status = complete(running, how);  // a copy: it may be a part of what goes
  if (running.process.pid > 0 && !running.elsewhere) tell_guard(-GuardEntry{running.process.pid});
  if (running.hostd) reactor_.remove(running.hostd.get());
  if (running.process.pidfd && !running.ended) reactor_.remove(running.process.pidfd.get());
  const bool given_up = running.given_up;
  const auto gone = running_.extract(found);  // its pages are unmapped when that has been told
  if (!given_up) events_.on_exited(node, status);
  lives_.remove(node);
}

// With what the process has left, and what the kernel says of it.
const ExitStatus& Starter::complete(Running& running, const ExitStatus& status) {
  if (running.told) return *running.told;
  ExitStatus& whole = running.told.emplace(status);
  if (const LastWords* left = last_words_of(running.last_words)) {
    whole.endpoints = read_endpoints(*left);
    if (leaves_stack(status.signal)) whole.stack = read_stack(*left, shows_runtime_);
  }
  // Of another machine's memory, or another container's, nothing is known here.
  if (status.signal == SIGKILL && !running.elsewhere) {
    whole.out_of_memory = judge_kill(*memory_known_, memory_reader_.read());
  }
  return whole;
}

void Starter::not_started(NodeId node, const std::string& why) { events_.on_not_started(node, why); }

// ---- The fork server ----

void Starter::start_fork_server(std::vector<std::string> argv, std::vector<std::string> env, WarmServer given) {
  if (fork_server_wanted_.exchange(true)) return;
  ProcessSpec spec;
  spec.argv = std::move(argv);
  spec.env = std::move(env);
  {
    std::lock_guard lock(fork_env_mutex_);
    fork_env_ = spec.env;
  }
  // No directory of its own: that of this process may be one that cannot be entered again.
  spec.death_signal = SIGTERM;  // it ends its workers, and what they have left to it, before itself
  auto warm = std::make_shared<WarmServer>(std::move(given));  // shared: a task is copyable
  reactor_.post([this, spec = std::move(spec), warm] {
    if (!take_warm_server(*warm)) try_fork_server(spec, reactor_.now_ns() + kAloneLimitNs);
  });
}

bool Starter::take_warm_server(WarmServer& warm) {
  if (ending_ || !warm) return false;
  start_guard();
  auto started = warm.started();
  if (!started) return false;
  fork_line_ = warm.take_line();
  use_fork_server(std::move(*started), warm.take_socket());
  return true;
}

void Starter::offer_workers_to_oom_killer() {
  reactor_.post([this] { oom_score_ = raised_oom_score(kWorkersOomScore); });
}

std::vector<std::string> Starter::fork_environment() const {
  std::lock_guard lock(fork_env_mutex_);
  return fork_env_;
}

void Starter::try_fork_server(const ProcessSpec& command, int64_t until_ns) {
  if (ending_) return;
  start_guard();
  const auto failed = [&](const Error& why) {
    if (why.code != ErrorCode::kUnavailable || reactor_.now_ns() > until_ns) {
      return fork_server_gone("could not be started: " + why.message);
    }
    reactor_.after(kShortageRetryNs, [this, command, until_ns] { try_fork_server(command, until_ns); });
  };
  UniqueFd pair[2];
  if (!sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, pair)) return failed(sys::shortage_error("make its socket"));
  ProcessSpec spec = command;
  spec.argv.push_back(std::to_string(pair[1].get()));
  spec.keep_fds = {pair[1].get()};
  spec.oom_score = oom_score_;
  auto started = start_process_(spec);
  if (!started) return failed(started.error());
  use_fork_server(std::move(*started), std::move(pair[0]));
}

void Starter::use_fork_server(Process server, UniqueFd socket) {
  fork_server_ = std::move(server);
  fork_socket_ = std::move(socket);
  tell_guard(kGuardGentle | fork_server_.pid);
  reactor_.add(fork_socket_.get(), EPOLLIN, [this](uint32_t) { on_fork_server(); });
  reactor_.add(fork_server_.pidfd.get(), EPOLLIN, [this](uint32_t) { fork_server_ended(); });
}

void Starter::on_fork_server() {
  while (fork_socket_) {
    UniqueFd pidfd;
    const auto report = receive_fork_report(fork_socket_.get(), &pidfd);
    if (!report) return errno == EAGAIN ? void() : lose_fork_server();
    on_fork_report(*report, std::move(pidfd));
  }
}

void Starter::on_fork_report(const ForkReport& report, UniqueFd pidfd) {
  switch (report.kind) {
    case ForkReport::kReady:
      fork_ready_ = true;
      return pump_later(0);
    case ForkReport::kSpawned:
      if (const auto found = running_.find(report.node); found == running_.end() || !found->second.given_up) give_slot();
      return spawned(report.node, Process{report.pid, std::move(pidfd)});
    case ForkReport::kExited:
      return exited(report.node, ExitStatus{.known = true, .code = report.code, .signal = report.signal, .because = {}});
    case ForkReport::kFailed:
      if (const auto found = running_.extract(report.node); found && found.mapped().given_up) return;
      give_slot();
      errno = report.signal;
      return not_started(report.node, sys::shortage_error("fork").message);
    default:
      return;
  }
}

// Its socket has ended, or it is not wanted any more: it is made to end, and its pidfd will say when.
void Starter::lose_fork_server() {
  if (!fork_socket_) return;
  reactor_.remove(fork_socket_.get());
  fork_socket_.reset();
  fork_ready_ = false;
  signal_process(fork_server_, SIGTERM);
  signal_process(fork_server_, SIGCONT);
  const pid_t pid = fork_server_.pid;
  reactor_.after(kForkServerGraceNs, [this, pid] {
    if (fork_server_.pid == pid) signal_process(fork_server_, SIGKILL);
  });
  reactor_.after(kForkServerGraceNs + kKillLimitNs, [this, pid] {
    if (fork_server_.pid == pid) fork_server_gone("does not end, though it was killed");
  });
}

void Starter::fork_server_ended() {
  on_fork_server();  // its last words
  lose_fork_server();
  const auto status = fork_line_ ? WarmServer::read_end(fork_line_.get()) : try_reap(fork_server_);
  if (status) return fork_server_gone(describe(*status));
  // A debugger has it. Until that lets go, the pidfd would wake us all the time.
  reactor_.remove(fork_server_.pidfd.get());
  const pid_t pid = fork_server_.pid;
  reactor_.after(kReapRetryNs, [this, pid] {
    if (fork_server_.pid == pid) fork_server_ended();
  });
}

// What it was to start fails; what it had started dies with it (PDEATHSIG).
void Starter::fork_server_gone(const std::string& how) {
  if (fork_server_.pid > 0) {
    reactor_.remove(fork_server_.pidfd.get());
    tell_guard(-(kGuardGentle | fork_server_.pid));
    fork_server_ = {};
    fork_line_.reset();
  }
  if (!ending_) log_line("the fork server " + how);
  fork_server_end_ = how;
  fork_server_wanted_ = false;
  fail_waiting("the fork server " + how, /*forks_only=*/true);
  std::vector<NodeId> orphans;
  for (auto& [node, running] : running_) {
    if (running.forked && !running.elsewhere) orphans.push_back(node);
  }
  for (NodeId node : orphans) {
    Running& running = running_[node];
    if (running.process.pid < 0) {
      const bool given_up = running.given_up;
      running_.erase(node);
      if (given_up) continue;
      give_slot();
      not_started(node, "the fork server " + how);
      continue;
    }
    running.because = "was killed because the fork server died (it " + how + ")";
    if (!running.process.pidfd || running.ended) {
      exited(node, ExitStatus{.known = false, .code = 0, .signal = 0, .because = running.because});
      continue;
    }
    signal_process(running.process, SIGKILL);
    kill_group(running.process);
    reactor_.after(kKillLimitNs, [this, node, because = running.because] { exited(node, unknown_because(because)); });
  }
}

}  // namespace monarch
