#include "monarch/host/runtime.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>

#include "monarch/base/log.h"

namespace monarch {

namespace {

// How long a node that is not ours waits for the host that started it to say how it ended.
constexpr int64_t kNoticeLimitNs = 300'000'000;
// How long a process that was asked to end waits for what was sent to it before.
constexpr int64_t kStopDrainNs = 1'000'000'000;

uint64_t default_arena_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 4;
}

// A script may have been started without stdin, stdout or stderr. Descriptors of ours must not take their numbers: what
// prints would write into them.
void fill_standard_descriptors() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);  // takes the lowest free number
  }
}

}  // namespace

void ProcessRuntime::build(const Identity& identity, OwnBell bell, OutputRoute output, Options options) {
  identity_ = identity;
  bell_ = std::move(bell);
  arena_ = std::make_shared<Arena>(options.arena_bytes_max != 0 ? options.arena_bytes_max : default_arena_bytes());
  driver_ = std::make_unique<Driver>(reactor_, bell_.bell(), bell_.event_fd.get());
  connector_ =
      std::make_unique<Connector>(ShmContext{reactor_, *driver_, arena_}, bell_, identity_, options.transport);
  Node::Hooks hooks;
  hooks.dial = [this](NodeId node) { return connector_->dial(node); };
  hooks.on_control = [this](Link& link, MessagePtr message) { on_control(link, std::move(message)); };
  hooks.on_link_lost = [this](NodeId node, const Error& why) { return on_link_lost(node, why); };
  hooks.after = [this](int64_t delay_ns, std::function<void()> task) { reactor_.after(delay_ns, std::move(task)); };
  hooks.on_undeliverable = std::move(options.on_undeliverable);
  if (output_) {
    hooks.on_answered = [this](int64_t waited_ns) {
      if (output_->is_behind_after(waited_ns)) output_->catch_up();
    };
  }
  node_ = std::make_unique<Node>(identity_.node, *driver_, std::move(hooks));
  connector_->set_sink(*node_, {[this](std::shared_ptr<Link> link) { node_->add_link(std::move(link)); }});
  host_ = std::make_unique<Host>(reactor_, *node_, *connector_, std::move(output));
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_root(Options options) {
  fill_standard_descriptors();
  Identity identity;
  SystemRandom random;
  identity.node = random.next_u64() | 1;
  fill_random(identity.job.data(), identity.job.size());
  fill_random(identity.token.data(), identity.token.size());
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  auto pump = OutputPump::make(options.stdout_fd, options.stderr_fd);
  if (!pump) return pump.error();
  std::unique_ptr<ProcessRuntime> runtime(new ProcessRuntime);
  runtime->output_ = std::move(*pump);
  OutputRoute output(runtime->output_->route_socket(), [starting = runtime->output_.get()] { starting->start(); });
  runtime->build(identity, std::move(*bell), std::move(output), std::move(options));
  if (auto listening = runtime->connector_->listen(); !listening) return listening.error();
  runtime->reactor_.start();
  return runtime;
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_worker(
    const Bootstrap& bootstrap, BootstrapFds fds, Options options,
    const std::function<void(ProcessRuntime&)>& wire) {
  Identity identity{bootstrap.node, bootstrap.job, bootstrap.token};
  auto bell = OwnBell::adopt(std::move(fds[kFdBell]), std::move(fds[kFdEvent]));
  if (!bell) return bell.error();
  options.transport = bootstrap.transport == "unix" ? Transport::kUnix : Transport::kShm;
  std::unique_ptr<ProcessRuntime> runtime(new ProcessRuntime);
  runtime->parent_ = bootstrap.parent;
  runtime->build(identity, std::move(*bell), OutputRoute(std::move(fds[kFdOutput])), std::move(options));
  if (auto listening = runtime->connector_->listen(std::move(fds[kFdListener])); !listening) return listening.error();
  wire(*runtime);
  auto link = runtime->connector_->adopt_parent(bootstrap, fds);
  if (!link) return link.error();
  runtime->node_->add_link(*link);
  runtime->reactor_.start();
  return runtime;
}

ProcessRuntime::~ProcessRuntime() { shutdown(0); }

void ProcessRuntime::shutdown(int64_t grace_ns) {
  if (std::exchange(shut_down_, true)) return;
  if (!reactor_.running()) {  // it never came up
    node_->close_links();
    return;
  }
  stop_children("the script ended", grace_ns);
  if (output_) output_->finish();  // what the dead have left
  reactor_.post_and_wait([this] { connector_->close(); });
  node_->close_links();
  reactor_.stop();
  host_->report_unobserved();
  host_.reset();
  connector_.reset();
}

void ProcessRuntime::stop_children(const std::string& reason, int64_t grace_ns) {
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
  host_->stop_all(reason, grace_ns, [&] {
    std::lock_guard lock(mutex);
    done = true;
    condition.notify_one();
  });
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return done; });
}

void ProcessRuntime::before_fork() {
  if (output_) output_->before_fork();
  reactor_.before_fork();
}

void ProcessRuntime::after_fork_in_parent() {
  reactor_.after_fork_in_parent();
  if (output_) output_->after_fork_in_parent();
}

void ProcessRuntime::after_fork_in_child() {
  if (host_) host_->after_fork_in_child();
  if (output_) output_->after_fork_in_child();
  reactor_.after_fork_in_child();
}

std::optional<std::string> ProcessRuntime::wait_for_stop(int64_t limit_ns) {
  std::unique_lock lock(stop_mutex_);
  stop_condition_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return stop_reason_.has_value(); });
  return stop_reason_;
}

// The first request, on the control lane, is granted when the second has come behind all that was sent before it, and
// after `limit_ns` in any case.
void ProcessRuntime::request_stop(const std::string& reason, int64_t limit_ns) {
  std::lock_guard lock(stop_mutex_);
  if (!asked_to_stop_ && limit_ns != 0) {
    asked_to_stop_ = true;
    reactor_.after(limit_ns, [this, reason] { request_stop(reason, 0); });
    return;
  }
  if (!stop_reason_) stop_reason_ = reason;
  stop_condition_.notify_all();
}

void ProcessRuntime::on_control(Link& link, MessagePtr message) {
  switch (message->header.kind) {
    case FrameKind::kStopNode:
      if (link.peer() == parent_) request_stop(std::string(message->text()), kStopDrainNs);
      return;
    case FrameKind::kNodeDown:
      if (message->body.empty()) return on_observed(link.peer(), message->header.dest);
      on_notice(link, message->header.dest, std::string(message->text()));
      return;
    case FrameKind::kPing: {
      Outgoing pong{FrameHeader{}, message->body, {}};
      pong.header.kind = FrameKind::kPong;
      pong.header.token = message->header.token;
      link.send_control(pong);
      return;
    }
    case FrameKind::kPong:
      return;
    default:
      log_line("ignored a data frame on the control lane");
  }
}

// A node's host says how it ended. The news travels along the tree of parents and children, since anybody may hold a
// handle to that node. What the node had published on a link to us is delivered first.
void ProcessRuntime::on_notice(Link& from, NodeId node, const std::string& why) {
  {
    std::lock_guard lock(notice_mutex_);
    if (!notices_.emplace(node, why).second) return;
  }
  spread_notice(from.peer(), node, why);
  bool linked = false;
  for (const auto& link : node_->links()) {
    if (link->peer() != node || link->closed()) continue;
    linked = true;
    link->peer_died(Error{ErrorCode::kClosed, why});
  }
  if (!linked) node_->node_down(node, why);
}

void ProcessRuntime::spread_notice(NodeId from, NodeId node, const std::string& why) {
  Outgoing notice{FrameHeader{}, as_byte_span(why.data(), why.size()), {}};
  notice.header.kind = FrameKind::kNodeDown;
  notice.header.dest = node;
  for (const auto& link : node_->links()) {
    const NodeId peer = link->peer();
    if (peer != from && peer != node && (peer == parent_ || host_->is_child(peer))) link->send_control(notice);
  }
}

void ProcessRuntime::note_observed(const Members& members) {
  for (const ActorId& id : members.ids) {
    host_->note_observed(id.node);
    if (!host_->is_child(id.node) && node_->is_down(id.node, nullptr)) on_observed(node_->id(), id.node);
  }
}

void ProcessRuntime::on_observed(NodeId from, NodeId node) {
  {
    std::lock_guard lock(notice_mutex_);
    if (!observed_.insert(node).second) return;
  }
  host_->note_observed(node);
  if (!host_->is_child(node)) spread_notice(from, node, "");
}

bool ProcessRuntime::on_link_lost(NodeId node, const Error& why) {
  if (node == parent_) {
    // The owner is gone, and with it the reason for this process. PDEATHSIG kills a forked worker first.
    node_->node_down(node, "the script that owned this process has ended");
    request_stop("the script that owned this process has ended", 0);
    reactor_.after(1'000'000'000, [] { _exit(1); });
    return true;
  }
  if (host_ && host_->on_link_lost(node)) return true;
  std::optional<std::string> notice;
  {
    std::lock_guard lock(notice_mutex_);
    if (auto found = notices_.find(node); found != notices_.end()) notice = found->second;
  }
  if (notice) {
    node_->node_down(node, *notice);
    return true;
  }
  reactor_.after(kNoticeLimitNs, [this, node, why] {
    node_->node_down(node, "the process this actor was running on was lost: " + why.message);
  });
  return true;
}

}  // namespace monarch
