#include "monarch/host/runtime.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>

#include "monarch/base/log.h"
#include "monarch/host/token_file.h"

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

void ProcessRuntime::build(const Identity& identity, JobAddress address, OwnBell bell, OutputRoute output,
                           Options options) {
  jobs_ = std::make_unique<Jobs>(identity);
  job_address_ = std::move(address);
  job_address_text_ = job_address_.to_text();
  bell_ = std::move(bell);
  arena_ = std::make_shared<Arena>(options.arena_bytes_max != 0 ? options.arena_bytes_max : default_arena_bytes());
  driver_ = std::make_unique<Driver>(reactor_, bell_.bell(), bell_.event_fd.get());
  connector_ =
      std::make_unique<Connector>(ShmContext{reactor_, *driver_, arena_}, bell_, identity, options.transport);
  Node::Hooks hooks;
  hooks.dial = [this](NodeId node) { return connector_->dial(node); };
  hooks.on_control = [this](Link& link, MessagePtr message) { on_control(link, std::move(message)); };
  hooks.on_down = [this](NodeId node, const std::string& why) { on_down(node, why); };
  hooks.on_link_lost = [this](NodeId node, const Error& why) { return on_link_lost(node, why); };
  hooks.after = [this](int64_t delay_ns, std::function<void()> task) { reactor_.after(delay_ns, std::move(task)); };
  hooks.on_undeliverable = std::move(options.on_undeliverable);
  if (output_) {
    hooks.on_answered = [this](int64_t waited_ns) {
      if (output_->is_behind_after(waited_ns)) output_->catch_up();
    };
  }
  node_ = std::make_unique<Node>(identity.node, *driver_, std::move(hooks));
  Connector::Events events;
  events.on_accepted = [this](std::shared_ptr<Link> link, bool guest) {
    if (guest) jobs_->add_guest(link->peer());
    node_->add_link(std::move(link));
  };
  events.identity_for = [this](NodeId node) { return jobs_->identity_for(node); };
  connector_->set_sink(*node_, std::move(events));
  host_ = std::make_unique<Host>(reactor_, *node_, *connector_, job_address_, std::move(output));
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_root(Options options) {
  fill_standard_descriptors();
  Identity identity;
  SystemRandom random;
  identity.node = new_node_id(random);
  fill_random(identity.job.data(), identity.job.size());
  fill_random(identity.token.data(), identity.token.size());
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  auto pump = OutputPump::make(options.stdout_fd, options.stderr_fd);
  if (!pump) return pump.error();
  std::unique_ptr<ProcessRuntime> runtime(new ProcessRuntime);
  runtime->output_ = std::move(*pump);
  OutputRoute output(runtime->output_->route_socket(), [starting = runtime->output_.get()] { starting->start(); });
  runtime->build(identity, JobAddress::of_this_script(identity.job, identity.node), std::move(*bell),
                 std::move(output), std::move(options));
  runtime->reception_ = std::make_shared<Reception>(runtime->reactor_, *runtime->node_, *runtime->host_,
                                                    runtime->job_address_, identity.token);
  runtime->node_->add_cell(Reception::id_of(identity.node).index, runtime->reception_);
  if (auto listening = runtime->connector_->listen(); !listening) return listening.error();
  runtime->reactor_.start();
  return runtime;
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_worker(
    const Bootstrap& bootstrap, BootstrapFds fds, Options options,
    const std::function<void(ProcessRuntime&)>& wire) {
  const Identity identity{bootstrap.node, bootstrap.job, bootstrap.token};
  auto address = JobAddress::parse(bootstrap.address);
  if (!address) return address.error();
  auto bell = OwnBell::adopt(std::move(fds[kFdBell]), std::move(fds[kFdEvent]));
  if (!bell) return bell.error();
  options.transport = bootstrap.transport == "unix" ? Transport::kUnix : Transport::kShm;
  std::unique_ptr<ProcessRuntime> runtime(new ProcessRuntime);
  runtime->parent_ = bootstrap.parent;
  runtime->owner_ = bootstrap.owner;
  runtime->build(identity, std::move(*address), std::move(*bell), OutputRoute(std::move(fds[kFdOutput])),
                 std::move(options));
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
  dismiss_guests();
  stop_children(job_address_.name() + " has ended", grace_ns);
  if (output_) output_->finish();  // what the dead have left
  reactor_.post_and_wait([this] { connector_->close(); });
  node_->close_links();
  reactor_.stop();
  host_->report_unobserved();
  if (reception_) node_->remove_cell(Reception::id_of(node_->id()).index, "");
  reception_.reset();
  host_.reset();
  connector_.reset();
}

// Before the processes of the job end one by one: to a guest, the job has ended.
void ProcessRuntime::dismiss_guests() {
  reactor_.post_and_wait([this] {
    if (reception_) reception_->close();
  });
  for (const auto& link : node_->links()) {
    if (jobs_->is_guest(link->peer())) link->close();
  }
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

// ---- Handles that leave their job ----

std::shared_ptr<PendingCall> ProcessRuntime::ask(NodeId script, Reception::Method method,
                                                 const std::vector<NodeId>& nodes) {
  auto members = std::make_shared<Members>();
  members->ids = {Reception::id_of(script)};
  auto call = std::make_shared<PendingCall>(members);
  Outgoing request = Reception::request(method, nodes);
  node_->cast(*members, request, call);
  return call;
}

std::shared_ptr<PendingCall> ProcessRuntime::publish() { return ask(job_address_.script, Reception::kPublish, {}); }

std::string ProcessRuntime::why_not_published(const PendingCall& call) const {
  const Message& answer = *call.reply(0);
  if (answer.header.kind == FrameKind::kReply || node_->is_down(job_address_.script, nullptr)) return "";
  return std::string(answer.text());
}

bool ProcessRuntime::is_published() const { return access(job_address_.token_path().c_str(), F_OK) == 0; }

Result<std::shared_ptr<PendingCall>> ProcessRuntime::introduce(const std::string& text,
                                                               const std::vector<NodeId>& nodes) {
  auto parsed = JobAddress::parse(text);
  if (!parsed) return parsed.error();
  const JobAddress& address = *parsed;
  const std::shared_ptr<PendingCall> nothing_to_ask;
  if (address.job == job_address_.job) return nothing_to_ask;
  if (!jobs_->knows(address.job)) {
    if (auto here = address.check_here(); !here) return here.error();
    auto token = read_token_file(address.token_path());
    if (token) {
      jobs_->join(address, *token);
    } else if (token.error().code == ErrorCode::kClosed) {
      jobs_->end(address, address.name() + " has ended: there is no " + address.token_path() + " any more");
    } else {
      return Error{token.error().code, address.name() + " cannot be joined: " + token.error().message};
    }
  }
  const std::string ended = jobs_->add_nodes(address.job, nodes);
  if (ended.empty()) return ask(address.script, Reception::kHowAre, nodes);
  for (NodeId node : nodes) declare_down(node, ended);
  return nothing_to_ask;
}

void ProcessRuntime::note_answer(const PendingCall& call, const std::vector<NodeId>& nodes) {
  const Message& answer = *call.reply(0);
  if (answer.header.kind != FrameKind::kReply) return;  // that job has ended: its nodes are down by that
  for (const auto& [node, why] : Reception::read_down(answer, nodes)) {
    if (note_notice(node, why)) declare_down(node, why);
  }
}

// ---- The end ----

std::optional<std::string> ProcessRuntime::wait_for_stop(int64_t limit_ns) {
  std::unique_lock lock(stop_mutex_);
  stop_condition_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return stop_reason_.has_value(); });
  return stop_reason_;
}

bool ProcessRuntime::is_stopping() {
  std::lock_guard lock(stop_mutex_);
  return asked_to_stop_ || stop_reason_;
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
      if (link.peer() == parent_ || link.peer() == owner_) request_stop(std::string(message->text()), kStopDrainNs);
      return;
    case FrameKind::kNodeDown:
      if (message->body.empty()) {
        if (!jobs_->is_foreign(link.peer())) on_observed(link.peer(), message->header.dest);
        return;
      }
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
// handle to that node, and from the script to its guests. What the script of another job says is for this process alone;
// others there may know too, but when the job ends, only its script knows that.
void ProcessRuntime::on_notice(Link& from, NodeId node, const std::string& why) {
  const bool foreign = jobs_->is_foreign(from.peer());
  if (foreign && !jobs_->speaks_for(from.peer(), node)) return;
  if (!note_notice(node, why)) return;
  if (!foreign) spread_notice(from.peer(), node, why);
  declare_down(node, why);
}

// False: that was known.
bool ProcessRuntime::note_notice(NodeId node, const std::string& why) {
  std::lock_guard lock(notice_mutex_);
  return notices_.emplace(node, why).second;
}

// What the node had published on a link to us is delivered first.
void ProcessRuntime::declare_down(NodeId node, const std::string& why) {
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
    if (peer == from || peer == node) continue;
    const bool is_our_guest = reception_ && jobs_->is_guest(peer);
    if (peer == parent_ || host_->is_child(peer) || is_our_guest) link->send_control(notice);
  }
}

void ProcessRuntime::note_observed(const Members& members) {
  for (const ActorId& id : members.ids) {
    if (jobs_->is_foreign(id.node)) continue;  // its own job is to hear of it
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
  NodeId host = 0;
  {
    std::lock_guard lock(notice_mutex_);
    if (auto found = host_of_.find(node); found != host_of_.end()) host = found->second;
  }
  if (host != 0 && node_->is_down(host, nullptr)) on_observed(node_->id(), host);
}

// ---- Processes that another host has started for this one ----

void ProcessRuntime::note_hosted(NodeId host, const std::vector<NodeId>& nodes) {
  {
    std::lock_guard lock(notice_mutex_);
    for (NodeId node : nodes) host_of_[node] = host;
  }
  std::string why;
  if (node_->is_down(host, &why)) declare_hosted_down(nodes, why);
}

void ProcessRuntime::release(const std::vector<NodeId>& nodes, const std::string& reason) {
  Outgoing request{FrameHeader{}, as_byte_span(reason.data(), reason.size()), {}};
  request.header.kind = FrameKind::kStopNode;
  for (NodeId node : nodes) {
    if (auto link = node_->route(node)) link->send(request);
  }
}

void ProcessRuntime::on_down(NodeId node, const std::string& why) {
  if (host_) host_->on_down(node);
  std::vector<NodeId> hosted;
  {
    std::lock_guard lock(notice_mutex_);
    for (const auto& [other, host] : host_of_) {
      if (host == node) hosted.push_back(other);
    }
  }
  if (!hosted.empty()) declare_hosted_down(hosted, why);
}

// Nobody is left who could say how they ended.
void ProcessRuntime::declare_hosted_down(const std::vector<NodeId>& nodes, const std::string& why) {
  const std::string of_host = "the process this actor was running on ";
  std::string text = why;
  if (why.starts_with(of_host)) text = "the host of the process this actor was running on " + why.substr(of_host.size());
  // Off this stack: we may be inside poll() of a link.
  reactor_.post([this, nodes, text] {
    for (NodeId node : nodes) {
      if (!note_notice(node, text)) continue;
      if (!jobs_->is_foreign(node)) spread_notice(node_->id(), node, text);
      declare_down(node, text);
    }
  });
}


bool ProcessRuntime::on_link_lost(NodeId node, const Error& why) {
  if (node == parent_) {
    // The owner is gone, and with it the reason for this process. PDEATHSIG kills a forked worker first.
    const bool by_script = parent_ == job_address_.script;
    const std::string reason = (by_script ? job_address_.name() : "the process that owned this one") + " has ended";
    node_->node_down(node, reason);
    request_stop(reason, 0);
    reactor_.after(1'000'000'000, [] { _exit(1); });
    return true;
  }
  if (host_ && host_->on_link_lost(node)) return true;
  if (const auto loss = jobs_->on_link_lost(node, why)) {
    node_->node_down(node, loss->why);
    // Off this stack: others have links that still hold something.
    reactor_.post([this, loss = *loss] {
      for (NodeId lost : loss.nodes) declare_down(lost, loss.why);
    });
    return true;
  }
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
