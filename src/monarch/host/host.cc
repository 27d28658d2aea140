#include "monarch/host/host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>

#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "monarch/host/guard.h"

namespace monarch {

namespace {

// Requests that may be on their way to the fork server: its socket holds a limited number of messages and the kernel a
// limited number of descriptors in flight.
constexpr int kForksUnderWayMax = 32;
// How long a process may live on after its link has ended.
constexpr int64_t kUnlinkedLimitNs = 1'000'000'000;
constexpr int64_t kUnobservedNs = 1'000'000'000;
// How long after everybody was killed the fork server may take to say so.
constexpr int64_t kReapLimitNs = 500'000'000;
// How long a death waits for the last lines of the dead.
constexpr int64_t kTailLimitNs = 200'000'000;
// How long processes may take to end whose owner is gone.
constexpr int64_t kOrphanGraceNs = 3'000'000'000;

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

std::string cause_of(const std::string& label, pid_t pid, const ExitStatus& status) {
  std::string text = "the process this actor was running on ";
  if (!status.known) {
    text += "ended, and its exit status is not known";
  } else if (status.signal != 0) {
    text += "failed: " + std::string(sigabbrev_np(status.signal) == nullptr ? "Signal" : strsignal(status.signal)) +
            "(sig=" + std::to_string(status.signal) + ")";
  } else if (status.code != 0) {
    text += "exited with non-zero code " + std::to_string(status.code);
  } else {
    text += "exited with code 0 without being asked to";
  }
  return text + " (" + label + ", pid " + std::to_string(pid) + ")";
}

}  // namespace

Host::Host(Reactor& reactor, Node& node, Connector& connector, JobAddress address, OutputRoute output)
    : reactor_(reactor),
      node_(node),
      connector_(connector),
      address_(std::move(address)),
      output_(std::move(output)) {}

Host::~Host() {
  if (fork_socket_) reactor_.remove(fork_socket_.get());
  if (fork_server_.pidfd) reactor_.remove(fork_server_.pidfd.get());
  for (auto& [node, child] : children_) {
    if (child.process.pidfd && !child.exited) reactor_.remove(child.process.pidfd.get());
  }
  // Nobody outlives the host: its groups first, then the fork server, whose end ends its children (PDEATHSIG).
  for (auto& [node, child] : children_) {
    if (child.pid > 0 && !child.exited) kill(-child.pid, SIGKILL);
  }
  fork_socket_.reset();
  if (fork_server_.pid > 0) {
    kill(-fork_server_.pid, SIGKILL);
    reap(fork_server_);
  }
  guard_pipe_.reset();
  if (guard_.pid > 0) reap(guard_);
}

// ---- Starting ----

// On the reactor, since PDEATHSIG belongs to the thread that starts a process. Without the guard everything works but the
// end of what users' actors started themselves when the script is killed.
void Host::start_guard() {
  if (std::exchange(guard_started_, true)) return;
  const std::string program = guard_program();
  int ends[2];
  if (program.empty() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    log_line("monarch-guard is missing: processes that actors start may outlive a killed script");
    return;
  }
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ProcessSpec spec;
  spec.argv = {program, std::to_string(read_end.get())};
  if (address_.script == node_.id()) spec.argv.push_back(address_.token_path());
  spec.keep_fds = {read_end.get()};
  spec.cwd = "/";
  spec.death_signal = false;
  auto started = start_process(spec);
  if (!started) return log_line(started.error().message);
  guard_ = std::move(*started);
  guard_pipe_ = std::move(write_end);
}

void Host::start_fork_server(std::vector<std::string> argv, std::vector<std::string> env, std::string cwd) {
  if (fork_server_wanted_.exchange(true)) return;
  reactor_.post([this, argv = std::move(argv), env = std::move(env), cwd = std::move(cwd)]() mutable {
    if (ending_) return;
    start_guard();
    int pair[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    fork_socket_.reset(pair[0]);
    UniqueFd theirs(pair[1]);
    ProcessSpec spec;
    spec.argv = std::move(argv);
    spec.argv.push_back(std::to_string(theirs.get()));
    spec.env = std::move(env);
    spec.keep_fds = {theirs.get()};
    spec.cwd = std::move(cwd);
    auto started = start_process(spec);
    if (!started) {
      log_line(started.error().message);
      return fork_server_lost();
    }
    fork_server_ = std::move(*started);
    if (guard_pipe_) guard_register(guard_pipe_.get(), fork_server_.pid);
    reactor_.add(fork_socket_.get(), EPOLLIN, [this](uint32_t) { on_fork_server(); });
  });
}

Result<std::vector<NodeId>> Host::spawn(const std::vector<Launch>& launches, SpawnOrder order) {
  std::vector<NodeId> nodes;
  SystemRandom random;
  const uint64_t mesh = order.mesh != 0 ? order.mesh : random.next_u64();
  const NodeId owner = order.owner != 0 ? order.owner : node_.id();
  for (const Launch& launch : launches) {
    BootstrapFds fds;
    const NodeId id = new_node_id(random);
    auto link = connector_.make_child(id, fds);
    if (!link) {
      stop(nodes, "their mesh could not be spawned", 0, [] {});
      return link.error();
    }
    Bootstrap bootstrap;
    bootstrap.node = id;
    bootstrap.parent = node_.id();
    bootstrap.owner = owner;
    bootstrap.job = connector_.identity().job;
    bootstrap.token = connector_.identity().token;
    bootstrap.address = address_.to_text();
    bootstrap.transport = connector_.transport() == Transport::kUnix ? "unix" : "shm";
    bootstrap.payload = launch.payload;
    OutputRoute::Ends output = output_.open(id, owner, mesh, launch.output);
    fds[kFdStdout] = std::move(output.out);
    fds[kFdStderr] = std::move(output.err);
    fds[kFdOutput] = std::move(output.route);
    node_.add_link(*link);
    {
      std::lock_guard lock(mutex_);
      Child& child = children_[id];
      child.label = launch.label;
      child.owner = owner;
      child.link = *link;
      child.forked = launch.use_fork_server;
      child.tail_lines = launch.tail_lines;
    }
    nodes.push_back(id);
    // shared: std::function must be copyable
    auto moved = std::make_shared<BootstrapFds>(std::move(fds));
    reactor_.post([this, id, launch, bootstrap = std::move(bootstrap), moved]() mutable {
      if (ending_) return on_not_started(id, "its owner is ending");
      start_guard();
      const int guard = guard_pipe_ ? guard_pipe_.get() : -1;
      (*moved)[kFdGuard].reset(guard >= 0 ? fcntl(guard, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_WRONLY | O_CLOEXEC));
      if (launch.use_fork_server) {
        bootstrap.parent_pid = fork_server_.pid;
        auto record = write_bootstrap(bootstrap, {});
        if (!record) return on_not_started(id, record.error().message);
        (*moved)[kFdRecord] = std::move(*record);
        launch_fork(id, std::move(*moved));
      } else {
        launch_exec(id, launch, std::move(bootstrap), std::move(*moved));
      }
    });
  }
  if (owner != node_.id() && node_.is_down(owner, nullptr)) on_down(owner);
  return nodes;
}

void Host::launch_fork(NodeId node, BootstrapFds fds) {
  if (!fork_server_wanted_) return on_not_started(node, "the fork server is not running");
  fork_queue_.push_back({node, std::move(fds)});
  send_waiting_forks();
}

void Host::send_waiting_forks() {
  while (fork_ready_ && !fork_queue_.empty() && forks_under_way_ < kForksUnderWayMax) {
    ForkRequest request = std::move(fork_queue_.front());
    fork_queue_.pop_front();
    send_fork(request.node, request.fds);
  }
}

void Host::send_fork(NodeId node, const BootstrapFds& fds) {
  std::array<int, kFdCount> numbers;
  for (int i = 0; i < kFdCount; ++i) numbers[i] = fds[i].get();
  if (send_fork_request(fork_socket_.get(), node, numbers)) {
    ++forks_under_way_;
    return;
  }
  on_not_started(node, std::string("the fork server cannot be reached: ") + std::strerror(errno));
}

void Host::launch_exec(NodeId node, const Launch& launch, Bootstrap bootstrap, BootstrapFds fds) {
  bootstrap.parent_pid = getpid();
  std::vector<int> numbers(kFdCount, -1);
  ProcessSpec spec;
  for (int i = kFdRecord + 1; i < kFdCount; ++i) {
    if (i == kFdStdout || i == kFdStderr) continue;
    numbers[i] = fds[i].get();
    spec.keep_fds.push_back(fds[i].get());
  }
  spec.stdout_fd = fds[kFdStdout].get();
  spec.stderr_fd = fds[kFdStderr].get();
  auto record = write_bootstrap(bootstrap, numbers);
  if (!record) return on_not_started(node, record.error().message);
  spec.keep_fds.push_back(record->get());
  spec.program = launch.program;
  spec.argv = launch.argv;
  spec.argv.push_back(std::to_string(record->get()));
  spec.env = launch.env;
  spec.cwd = launch.cwd;
  auto started = start_process(spec);
  if (!started) return on_not_started(node, started.error().message);
  const int pidfd = started->pidfd.get();
  const pid_t pid = started->pid;
  {
    std::lock_guard lock(mutex_);
    children_[node].process = std::move(*started);
  }
  reactor_.add(pidfd, EPOLLIN, [this, node, pidfd](uint32_t) {
    reactor_.remove(pidfd);
    Process process;
    {
      std::lock_guard lock(mutex_);
      process = std::move(children_[node].process);
    }
    on_exited(node, reap(process));
  });
  on_spawned(node, pid);
}

// ---- The fork server's reports ----

void Host::on_fork_server() {
  ForkReport report;
  for (;;) {
    const ssize_t count = recv(fork_socket_.get(), &report, sizeof report, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count != sizeof report) return fork_server_lost();
    on_fork_report(report);
  }
}

void Host::on_fork_report(const ForkReport& report) {
  switch (report.kind) {
    case ForkReport::kReady: {
      fork_ready_ = true;
      return send_waiting_forks();
    }
    case ForkReport::kSpawned:
      --forks_under_way_;
      on_spawned(report.node, report.pid);
      return send_waiting_forks();
    case ForkReport::kExited:
      return on_exited(report.node, ExitStatus{true, report.code, report.signal});
    case ForkReport::kFailed:
      --forks_under_way_;
      on_not_started(report.node, std::string("cannot fork: ") + std::strerror(report.signal));
      return send_waiting_forks();
    default:
      return;
  }
}

// It died, or never came up: what it was to start fails; what it had started dies with it (PDEATHSIG), unseen by
// anybody but their sockets.
void Host::fork_server_lost() {
  if (fork_socket_) {
    reactor_.remove(fork_socket_.get());
    fork_socket_.reset();
  }
  fork_ready_ = false;
  forks_under_way_ = 0;
  ExitStatus status;
  if (fork_server_.pid > 0) {
    kill(fork_server_.pid, SIGKILL);
    status = reap(fork_server_);
    if (guard_pipe_) guard_forget(guard_pipe_.get(), fork_server_.pid);
    fork_server_ = {};
  }
  if (!ending_) log_line("the fork server " + describe(status));
  fork_server_wanted_ = false;
  for (ForkRequest& request : std::exchange(fork_queue_, {})) {
    on_not_started(request.node, "the fork server " + describe(status));
  }
  std::vector<NodeId> orphans;
  {
    std::lock_guard lock(mutex_);
    for (auto& [node, child] : children_) {
      if (!child.exited && child.forked) orphans.push_back(node);
    }
  }
  for (NodeId node : orphans) {
    kill_child(node);
    on_exited(node, {});
  }
}

void Host::on_spawned(NodeId node, pid_t pid) {
  bool kill_now;
  {
    std::lock_guard lock(mutex_);
    auto found = children_.find(node);
    if (found == children_.end()) return;
    found->second.pid = pid;
    kill_now = found->second.kill_when_known;
  }
  if (kill_now) kill_child(node);
}

// ---- Ending ----

void Host::on_exited(NodeId node, ExitStatus status) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(mutex_);
    auto found = children_.find(node);
    if (found == children_.end()) return;
    Child& child = found->second;
    if (std::exchange(child.exited, true)) return;
    child.status = status;
    link = child.link;
    if (guard_pipe_ && child.pid > 0) guard_forget(guard_pipe_.get(), child.pid);
  }
  link->peer_died(Error{ErrorCode::kClosed, "the process has ended"});
  settle(node);
  check_waiting();
}

void Host::on_not_started(NodeId node, const std::string& why) {
  std::shared_ptr<Link> link;
  std::string label;
  std::string epitaph;
  {
    std::lock_guard lock(mutex_);
    auto found = children_.find(node);
    if (found == children_.end()) return;
    Child& child = found->second;
    if (std::exchange(child.exited, true)) return;
    child.declared = true;
    link = child.link;
    label = child.label;
    epitaph = child.stopping.empty()
                  ? "the process this actor was to run on could not be started (" + label + "): " + why
                  : "stopped: " + child.stopping;
    if (child.stopping.empty()) child.epitaph = epitaph;
    child.declared_ns = monotonic_ns();
  }
  node_.node_down(node, epitaph);
  tell_others(node, epitaph);
  reactor_.after(kUnobservedNs, [this, node] { report_unobserved(node); });
  link->close();
  check_waiting();
}

void Host::on_down(NodeId node) {
  std::vector<NodeId> orphans;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, child] : children_) {
      if (child.owner == node && !child.exited) orphans.push_back(id);
    }
  }
  if (!orphans.empty()) stop(orphans, "the process that owned this one has ended", kOrphanGraceNs, [] {});
}

bool Host::on_link_lost(NodeId node) {
  {
    std::lock_guard lock(mutex_);
    auto found = children_.find(node);
    if (found == children_.end()) return false;
    found->second.link_lost = true;
  }
  // Off this stack: we may be inside poll() of the very link.
  reactor_.post([this, node] { settle(node); });
  // On one host a closed link is a death. Whoever was asked to stop has the time that stop() gave it.
  reactor_.after(kUnlinkedLimitNs, [this, node] {
    {
      std::lock_guard lock(mutex_);
      Child& child = children_[node];
      if (child.exited || !child.stopping.empty()) return;
      child.cut_off = true;
    }
    kill_child(node);
  });
  return true;
}

// A process is declared down once, when its exit status is known and all that it had sent has been delivered.
void Host::settle(NodeId node) {
  if (!has_tail(node)) return;
  std::string why;
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(mutex_);
    Child& child = children_[node];
    if (!child.exited || !child.link_lost || std::exchange(child.declared, true)) return;
    why = child.stopping.empty() ? cause_of(child.label, child.pid, child.status) : "stopped: " + child.stopping;
    if (child.cut_off) why += "; it had closed its connection and did not end";
    why += child.tail.value_or("");
    // Who was asked to end ends with 0, or is killed. Anything else is news.
    const bool as_asked = child.status.code == 0 && (child.status.signal == 0 || child.status.signal == SIGKILL);
    child.declared_ns = monotonic_ns();
    if (child.stopping.empty() || !as_asked) child.epitaph = cause_of(child.label, child.pid, child.status);
    link = child.link;
  }
  node_.node_down(node, why);
  link->close();
  tell_others(node, why);
  reactor_.after(kUnobservedNs, [this, node] { report_unobserved(node); });
  check_waiting();
}

// True: its last lines are known, or not wanted, or it is too early for them. False: they come, and it will be settled.
bool Host::has_tail(NodeId node) {
  uint32_t lines;
  {
    std::lock_guard lock(mutex_);
    Child& child = children_[node];
    if (child.tail_lines == 0 || child.tail || !child.exited || !child.link_lost || child.declared) return true;
    if (!child.stopping.empty()) return true;
    if (std::exchange(child.tail_asked, true)) return false;
    lines = child.tail_lines;
  }
  auto answer = output_.tail(node, OutputStream::kStderr, lines);
  if (!answer) return true;
  auto fd = std::make_shared<UniqueFd>(std::move(*answer));  // shared: by the callback and the time limit
  reactor_.add(fd->get(), EPOLLIN, [this, node, fd](uint32_t) {
    std::string text(64 << 10, '\0');
    const ssize_t count = read(fd->get(), text.data(), text.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    reactor_.remove(fd->get());
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    note_tail(node, text);
  });
  reactor_.after(kTailLimitNs, [this, node, fd] {
    reactor_.remove(fd->get());
    note_tail(node, "");
  });
  return false;
}

void Host::note_tail(NodeId node, const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    Child& child = children_[node];
    if (child.tail) return;
    child.tail.emplace();
    if (!text.empty()) *child.tail = "\nThe last that it printed to stderr:\n  ";
    for (char c : text) {
      *child.tail += c;
      if (c == '\n') *child.tail += "  ";
    }
  }
  settle(node);
}

Status Host::set_output(const std::vector<NodeId>& nodes, const OutputOptions& options, std::function<void()> done) {
  auto fd = std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));  // shared: std::function is copyable
  auto sent = output_.set_options(nodes, options, fd->get());
  if (!sent) return sent.error();
  if (*sent == 0) {
    reactor_.post(std::move(done));
    return Ok{};
  }
  auto left = std::make_shared<int64_t>(*sent);  // as fd
  reactor_.add(fd->get(), EPOLLIN, [this, fd, left, done = std::move(done)](uint32_t) {
    eventfd_t count = 0;
    eventfd_read(fd->get(), &count);
    *left -= static_cast<int64_t>(count);
    if (*left > 0) return;
    reactor_.remove(fd->get());
    done();
  });
  return Ok{};
}

// Others may have links to it, or want one, and cannot know how it ended.
void Host::tell_others(NodeId node, const std::string& why) {
  Outgoing notice{FrameHeader{}, as_byte_span(why.data(), why.size()), {}};
  notice.header.kind = FrameKind::kNodeDown;
  notice.header.dest = node;
  for (auto& other : node_.links()) other->send_control(notice);
}

void Host::note_observed(NodeId node) {
  std::lock_guard lock(mutex_);
  if (auto found = children_.find(node); found != children_.end()) {
    found->second.observed_ns = monotonic_ns();
  }
}

void Host::note_observed(const std::string& why) {
  std::lock_guard lock(mutex_);
  for (auto& [node, child] : children_) {
    if (child.epitaph == why) child.observed_ns = monotonic_ns();
  }
}

void Host::report_unobserved(NodeId node) {
  std::string epitaph;
  {
    std::lock_guard lock(mutex_);
    Child& child = children_[node];
    if (child.epitaph.empty() || std::exchange(child.reported, true)) return;
    if (child.observed_ns != 0 && child.observed_ns + kUnobservedNs > child.declared_ns) return;
    epitaph = child.epitaph;
  }
  log_line(epitaph);
}

void Host::report_unobserved() {
  std::vector<NodeId> nodes;
  {
    std::lock_guard lock(mutex_);
    for (auto& [node, child] : children_) nodes.push_back(node);
  }
  for (NodeId node : nodes) report_unobserved(node);
}

void Host::kill_child(NodeId node) {
  std::lock_guard lock(mutex_);
  auto found = children_.find(node);
  if (found == children_.end() || found->second.exited) return;
  Child& child = found->second;
  if (child.pid > 0) {
    kill(-child.pid, SIGKILL);
    kill(child.pid, SIGKILL);  // in case it has not made its session yet
  } else {
    child.kill_when_known = true;
  }
}

void Host::stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
                std::function<void()> done) {
  reactor_.post([this, nodes, reason, grace_ns, done = std::move(done)]() mutable {
    Outgoing request{FrameHeader{}, as_byte_span(reason.data(), reason.size()), {}};
    request.header.kind = FrameKind::kStopNode;
    bool any = false;
    for (NodeId node : nodes) {
      std::shared_ptr<Link> link;
      NodeId owner;
      {
        std::lock_guard lock(mutex_);
        auto found = children_.find(node);
        if (found == children_.end() || found->second.exited) continue;
        if (found->second.stopping.empty()) found->second.stopping = reason.empty() ? "stopped" : reason;
        link = found->second.link;
        owner = found->second.owner;
      }
      any = true;
      link->send_control(request);
      // Behind all that was sent before: the process ends when it has seen that, or soon in any case.
      const bool owner_sends = owner != node_.id() && !ending_ && !node_.is_down(owner, nullptr);
      if (!owner_sends) link->send(request);
    }
    waiting_.push_back({nodes, std::move(done)});
    if (ending_) {  // who has not been forked need not be
      for (ForkRequest& unborn : std::exchange(fork_queue_, {})) on_not_started(unborn.node, "stopped");
    }
    if (any) {
      reactor_.after(grace_ns, [this, nodes] {
        for (NodeId node : nodes) kill_child(node);
      });
    }
    check_waiting();
  });
}

void Host::stop_all(const std::string& reason, int64_t grace_ns, std::function<void()> done) {
  reactor_.post([this, reason, grace_ns, done = std::move(done)]() mutable {
    ending_ = true;
    std::vector<NodeId> nodes;
    {
      std::lock_guard lock(mutex_);
      for (auto& [node, child] : children_) nodes.push_back(node);
    }
    stop(nodes, reason, grace_ns, std::move(done));
    reactor_.after(grace_ns + kReapLimitNs, [this] { fork_server_lost(); });
  });
}

void Host::check_waiting() {
  std::vector<std::function<void()>> done;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](Waiting& waiting) {
      for (NodeId node : waiting.nodes) {
        auto found = children_.find(node);
        if (found != children_.end() && !(found->second.exited && found->second.declared)) return false;
      }
      done.push_back(std::move(waiting.done));
      return true;
    });
  }
  for (auto& run : done) run();
}

bool Host::is_child(NodeId node) const {
  std::lock_guard lock(mutex_);
  return children_.contains(node);
}

pid_t Host::pid_of(NodeId node) const {
  std::lock_guard lock(mutex_);
  auto found = children_.find(node);
  return found == children_.end() ? -1 : found->second.pid;
}

}  // namespace monarch
