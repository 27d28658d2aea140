#include "monarch/host/runtime.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>

#include "monarch/actor/pending_call.h"
#include "monarch/actor/calls.h"
#include "monarch/actor/libraries.h"
#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/start/attach.h"
#include "monarch/host/start/memory_events.h"
#include "monarch/net/message_blocks.h"
#include "monarch/net/shm/arena_budget.h"
#include "monarch/net/shm/shm_transport.h"

namespace monarch {

namespace {

// How long a process that was asked to end waits for what was sent to it before.
constexpr int64_t kStopDrainNs = 1'000'000'000;
// When a process that has not sent its stacks is looked at first.
constexpr int64_t kFirstLookNs = 100'000'000;
// How long its host has to say what it sees.
constexpr int64_t kLookLimitNs = 1'000'000'000;
// How often calls that are about to be past their deadline have stacks taken, and within what time.
constexpr int64_t kOverdueEveryNs = 1'000'000'000;
constexpr int kOverdueCalls = 8;
constexpr int64_t kOverdueLimitNs = Calls::kOverdueNs * 3 / 4;
// How long a process whose owner is gone may take to end by itself.
constexpr int64_t kOrphanLimitNs = 1'000'000'000;

// What a process may have that has no share of the job's memory, since there are more processes than shares.
constexpr uint64_t kArenaWithoutShare = uint64_t{64} << 20;

uint64_t arena_bytes(const ProcessRuntime::Options& options) {
  return options.arena_bytes_max != 0 ? options.arena_bytes_max : memory_limit() / 2;
}

Status check_transport(const std::string& name) {
  if (is_transport_name(name)) return Ok{};
  return Error{ErrorCode::kUnsupported,
               "the script wants the transport '" + name + "', and there are only: " + transport_names()};
}

// A host is lost when so long nothing of it has been heard, and not before: half of it on a connection, then half of it on
// none. What its keeper has to say of it may come a moment later.
TcpTransport::Options tcp_options(int64_t host_lease_ns) {
  TcpTransport::Options options;
  options.silence_ns = std::max<int64_t>(host_lease_ns / 2, 100'000'000);
  options.lease_ns = options.silence_ns;
  options.dial_ns = std::max<int64_t>(options.lease_ns, 1'000'000'000);
  return options;
}

// A script may have been started without stdin, stdout or stderr. Descriptors of ours must not take their numbers: what
// prints would write into them.
Status fill_standard_descriptors() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    UniqueFd lowest = sys::open_file("/dev/null", O_RDWR);
    if (!lowest) return sys::shortage_error("give this process a stream that it has not");
    fcntl(lowest.release(), F_SETFD, 0);  // as any other standard stream: what it starts has it too
  }
  return Ok{};
}

}  // namespace

Status ProcessRuntime::build(const Identity& identity, JobAddress address, OwnBell bell, UniqueFd budget_fd,
                             OutputRoute output, Options options, std::optional<TcpTransport::Options> tcp) {
  jobs_ = std::make_unique<Jobs>(identity);
  job_address_ = std::move(address);
  job_address_text_ = job_address_.to_text();
  bell_ = std::move(bell);
  budget_fd_ = std::move(budget_fd);
  auto budget = JobBudget::join(budget_fd_.get());
  on_stop_ = std::move(options.on_stop);
  arena_ = budget ? std::make_shared<Arena>(arena_bytes(options), reactor_.get(), std::move(*budget))
                  : std::make_shared<Arena>(kArenaWithoutShare, reactor_.get());
  received_ = std::make_shared<Received>(*reactor_);
  auto driver = Driver::make(*reactor_, bell_.bell(), bell_.event_fd.get());
  if (!driver) return driver.error();
  driver_ = std::move(*driver);
  auto transports = make_transports(ShmContext{*reactor_, *driver_, arena_, received_}, bell_);
  if (tcp) {
    const char* const stripes = getenv("MONARCH_TCP_STRIPES");
    if (const auto count = TcpLink::stripes_from(stripes)) {
      tcp->stripes = *count;
    } else {
      log_line("MONARCH_TCP_STRIPES='" + std::string(stripes) + "' is no number of connections, and is ignored");
    }
    auto network = std::make_unique<TcpTransport>(*reactor_, std::move(*tcp));
    tcp_ = network.get();
    transports.push_back(std::move(network));
  }
  connector_ = std::make_unique<Connector>(*reactor_, std::move(transports), options.transport, identity);
  gateways_ = std::make_unique<Gateways>(identity.node, job_address_.script, identity.token);
  node_ = std::make_unique<Node>(identity.node, *driver_, *reactor_, node_hooks(options));
  const char* const tree_hosts = getenv("MONARCH_CAST_TREE_HOSTS");
  const auto trees = CastTreeLimits::from(tree_hosts);
  if (trees) node_->set_cast_trees(*trees);
  if (!trees && (tcp_ != nullptr || identity.node == job_address_.script)) {
    log_line("MONARCH_CAST_TREE_HOSTS='" + std::string(tree_hosts) + "' is no number of hosts, and is ignored");
  }
  if (tcp_ != nullptr) {
    places_ = std::make_unique<Places>(*reactor_, *node_, *connector_, *tcp_, job_address_.script);
  }
  node_->add_cell(LibraryCell::id_of(identity.node).index, std::make_shared<LibraryCell>(*node_));
  running_actors_ = std::move(options.running_actors);
  stacks_ = std::make_unique<ThreadStacks>(*reactor_);
  Connector::Events events;
  events.on_accepted = [this](std::shared_ptr<Link> link, bool guest) {
    if (guest) jobs_->add_guest(link->peer());
    if (!guest && is_third(link->peer())) deaths_->reached(link->peer());  // first: what it replaces is let go
    node_->add_link(std::move(link));
  };
  events.identity_for = [this](NodeId node) { return jobs_->identity_for(node); };
  events.is_down = [this](NodeId node) { return node_->is_down(node); };
  connector_->set_sink(*node_, std::move(events));
  deaths_ = std::make_unique<DeathWatch>(*reactor_, *node_, death_hooks());
  host_ = std::make_unique<Host>(*reactor_, *node_, *connector_, *deaths_, budget_fd_.get(), job_address_,
                                 std::move(output));
  call_watch_ = std::make_unique<CallWatch>(*reactor_, *node_, *deaths_, [this](NodeId child) { host_->kill(child); });
  return Ok{};
}

Node::Hooks ProcessRuntime::node_hooks(Options& options) {
  Node::Hooks hooks;
  hooks.dial = [this](NodeId node) { return places_ ? places_->dial(node) : connector_->dial(node); };
  hooks.gateway_of = [this](NodeId node) -> NodeId {
    // Other jobs are those of this machine.
    if (host_number(node) == host_number(node_->id()) || jobs_->is_foreign(node)) return 0;
    return gateways_->of(node);
  };
  hooks.gateway_there = [this](NodeId node) { return jobs_->is_foreign(node) ? 0 : gateways_->gateway(host_number(node)); };
  if (options.transport == ShmTransport::kName) {
    hooks.memory_to_pass_on = [this](uint64_t size) { return arena_->memory(size); };
  }
  hooks.on_control = [this](Link& link, MessagePtr message) { on_control(link, std::move(message)); };
  hooks.on_link_lost = [this](NodeId node, const Error& why) {
    on_link_lost(node, why);
    return true;
  };
  hooks.is_third = [this](NodeId node) { return is_third(node); };
  hooks.on_way_lost = [this](NodeId node, FailurePtr why) { deaths_->way_lost(node, std::move(why)); };
  hooks.on_observed = [this](const Members& members) { note_observed(members); };
  hooks.on_undeliverable = std::move(options.on_undeliverable);
  hooks.on_mesh_failure = std::move(options.on_mesh_failure);
  hooks.on_restart_wanted = std::move(options.on_restart_wanted);
  hooks.on_restarted = [this](NodeId from, const Successions::Notice& notice) { deaths_->restarted(from, notice); };
  if (output_) {
    hooks.on_answered = [this](int64_t waited_ns) {
      if (output_->is_behind_after(waited_ns)) output_->catch_up();
    };
  }
  hooks.on_stacks_wanted = [this](NodeId asker, uint64_t token, uint32_t rank) {
    reactor_->post([this, asker, token, rank] { on_stacks_wanted(asker, token, rank); });
  };
  hooks.on_look = [this](const auto& calls) { return call_watch_->on_look(calls); };
  hooks.on_inquiry = [this](MessagePtr message) {
    if (message->header.kind == FrameKind::kSilent && jobs_->is_foreign(message->from)) {
      message->header.rank = 0;  // another job's lease ends nobody here
    }
    call_watch_->on_inquiry(std::move(message));
  };
  hooks.on_overdue = [this](const std::shared_ptr<PendingCall>& call) { on_overdue(call); };
  return hooks;
}

Status ProcessRuntime::start() {
  if (!reactor_->start()) return sys::shortage_error("start the thread of the reactor");
  watch_forks(*this);
  internal::keep_large_blocks(reactor_.get());
  return Ok{};
}

DeathWatch::Hooks ProcessRuntime::death_hooks() {
  DeathWatch::Hooks hooks;
  hooks.kill = [this](NodeId child) { host_->kill(child); };
  hooks.on_buried = [this](NodeId node) {
    host_->on_buried(node);
    if (inlet_ && host_number(node) != 0 && node == gateways_->gateway(host_number(node))) inlet_->gone(node);
  };
  hooks.stop_orphans = [this](const std::vector<NodeId>& nodes) { host_->stop_orphans(nodes); };
  hooks.end_self = [this](const std::string& reason) {
    request_stop(reason, 0);
    reactor_->after(kOrphanLimitNs, [gateway = relay_ != nullptr] { _exit(gateway ? kHostUnheard : 1); });
  };
  hooks.last_lines = [this](NodeId node, uint32_t lines, std::function<void(std::string)> done) {
    // Two hand-overs between threads less, at each of which a death may wait for the core that frees the victim's memory.
    if (output_ && output_->knows_silent(node, OutputStream::kStderr)) return done("");
    host_->last_lines(node, lines, std::move(done));
  };
  hooks.is_guest = [this](NodeId node) { return reception_ && jobs_->is_guest(node); };
  hooks.is_foreign = [this](NodeId node) { return jobs_->is_foreign(node); };
  hooks.script_of = [this](NodeId node) { return jobs_->script_of(node); };
  return hooks;
}

// All that every other part is given.
Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::with_reactor() {
  sys::manage_descriptor_limit();
  auto reactor = Reactor::make();
  if (!reactor) return reactor.error();
  return std::unique_ptr<ProcessRuntime>(new ProcessRuntime(std::move(*reactor)));
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_root(Options options) {
  if (auto filled = fill_standard_descriptors(); !filled) return filled.error();
  auto made = with_reactor();
  if (!made) return made.error();
  std::unique_ptr<ProcessRuntime> runtime = std::move(*made);
  Identity identity;
  SystemRandom random;
  identity.key = NodeKey::make(random);
  identity.node = identity.key.id();
  fill_random(identity.job.data(), identity.job.size());
  fill_random(identity.token.data(), identity.token.size());
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  auto budget = JobBudget::make(arena_bytes(options));
  if (!budget) return budget.error();
  auto output = runtime->show_output(options.stdout_fd, options.stderr_fd);
  if (!output) return output.error();
  auto address = JobAddress::of_this_script(identity.job, identity.node);
  if (!address) return address.error();
  auto built = runtime->build(identity, std::move(*address), std::move(*bell), std::move(*budget), std::move(*output),
                              std::move(options), tcp_options(kHostLeaseMinNs));
  if (!built) return built.error();
  runtime->reception_ = std::make_shared<Reception>(
      *runtime->reactor_, *runtime->node_, [host = runtime->host_.get()] { host->start_guard(); },
      [deaths = runtime->deaths_.get()](NodeId node) { return deaths->why_down(node); }, runtime->job_address_,
      identity.token);
  runtime->node_->add_cell(Reception::id_of(identity.node).index, runtime->reception_);
  runtime->partings_ = std::make_unique<Partings>(
      *runtime->reactor_, [deaths = runtime->deaths_.get()](NodeId gateway) { return deaths->who_is(gateway); },
      [](const std::string& line) { log_line(line); });
  runtime->deaths_->add_observer([output = runtime->output_.get()](NodeId node, const Failure& why) {
    const bool as_asked = why.kind == Failure::Kind::kStopped || why.kind == Failure::Kind::kOwnerEnded;
    if (!as_asked) output->note(node, "monarch: " + why.headline());
  });
  if (auto listening = runtime->connector_->listen(); !listening) return listening.error();
  if (auto started = runtime->start(); !started) return started.error();
  return runtime;
}

Status ProcessRuntime::make_worker(const Bootstrap& bootstrap, BootstrapFds fds, Options options,
                                   const std::function<void(std::unique_ptr<ProcessRuntime>)>& keep) {
  const Identity identity{bootstrap.key.id(), bootstrap.key, bootstrap.job, bootstrap.token};
  auto address = JobAddress::parse(bootstrap.address);
  if (!address) return address.error();
  ChildEnds ends = take_ends(fds);
  auto bell = OwnBell::adopt(std::move(ends.bell), std::move(ends.event));
  if (!bell) return bell.error();
  if (auto known = check_transport(bootstrap.transport); !known) return known.error();
  options.transport = bootstrap.transport;
  auto made = with_reactor();
  if (!made) return made.error();
  ProcessRuntime* const runtime = made->get();
  auto built = runtime->build(identity, std::move(*address), std::move(*bell), std::move(fds[kFdBudget]),
                              OutputRoute(std::move(fds[kFdOutput])), std::move(options), std::nullopt);
  if (!built) return built.error();
  if (auto listening = runtime->connector_->listen(std::move(ends.listener)); !listening) return listening.error();
  runtime->host_->set_place(bootstrap.place);
  runtime->be_child_of(bootstrap);
  keep(std::move(*made));
  auto link = runtime->connector_->adopt_parent(bootstrap.parent, std::move(ends));
  if (!link) return link.error();
  runtime->node_->add_link(*link);
  return runtime->start();
}

Result<std::unique_ptr<ProcessRuntime>> ProcessRuntime::make_gateway(const Bootstrap& bootstrap, TcpEndpoint listen,
                                                                     Options options) {
  const Identity identity{bootstrap.key.id(), bootstrap.key, bootstrap.job, bootstrap.token};
  auto address = JobAddress::parse(bootstrap.address);
  if (!address) return address.error();
  if (auto known = check_transport(bootstrap.transport); !known) return known.error();
  options.transport = bootstrap.transport;
  auto made = with_reactor();
  if (!made) return made.error();
  std::unique_ptr<ProcessRuntime> runtime = std::move(*made);
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  auto budget = JobBudget::make(arena_bytes(options));
  if (!budget) return budget.error();
  auto relay = OutputRelay::make(*runtime->reactor_);
  if (!relay) return relay.error();
  runtime->relay_ = std::move(*relay);
  OutputRoute output(runtime->relay_->route_socket());
  TcpTransport::Options tcp = tcp_options(std::max(bootstrap.host_lease_ns, kHostLeaseMinNs));
  const HostPlace place{bootstrap.place.dialled_at, listen.host};
  tcp.listen = TcpAddress{std::move(listen), std::nullopt};
  auto tls = TlsContext::of_secret(identity.token, host_name());
  if (!tls) return tls.error();
  tcp.tls = std::move(*tls);
  auto built = runtime->build(identity, std::move(*address), std::move(*bell), std::move(*budget), std::move(output),
                              std::move(options), std::move(tcp));
  if (!built) return built.error();
  runtime->host_->set_place(place);
  runtime->relay_->begin(*runtime->node_, runtime->job_address_.script);
  runtime->call_watch_->tell_script(runtime->job_address_.script);
  if (auto listening = runtime->connector_->listen(); !listening) return listening.error();
  runtime->be_child_of(bootstrap);
  if (auto started = runtime->start(); !started) return started.error();
  return runtime;
}

uint16_t ProcessRuntime::tcp_port() const {
  const auto place = tcp_ == nullptr ? std::nullopt : tcp_->place();
  return place ? place->dial.port : 0;
}

Result<std::vector<NodeId>> ProcessRuntime::attach(const std::vector<Launch>& launches, int64_t host_lease_ns) {
  const bool remote = std::any_of(launches.begin(), launches.end(), [](const Launch& launch) { return launch.hostd->tcp; });
  if (remote && node_->id() != job_address_.script) {
    return Error{ErrorCode::kUnsupported, "only the script attaches to hosts over TCP, and gives them to its actors"};
  }
  if (remote) {
    if (auto ready = prepare_for_hosts(host_lease_ns, launches[0].hostd->through.get()); !ready) return ready.error();
  }
  SystemRandom random;
  const SpawnOrder one_mesh{0, random.next_u64()};
  std::vector<NodeId> nodes;
  for (const Launch& launch : launches) {
    if (launch.hostd->tcp) {
      auto node = host_->attach(launch, *places_, host_lease_ns_);
      if (!node) return node.error();
      nodes.push_back(*node);
    } else {
      auto spawned = host_->spawn({launch}, one_mesh);
      if (!spawned) return spawned.error();
      nodes.push_back(spawned->front());
    }
  }
  return nodes;
}

// What only scripts need that attach to hosts over a network.
Status ProcessRuntime::prepare_for_hosts(int64_t host_lease_ns, const HostdAddress* through) {
  std::lock_guard lock(attach_mutex_);
  if (inlet_) return Ok{};
  auto tls = TlsContext::of_secret(connector_->identity().token, host_name());
  if (!tls) return tls.error();
  UniqueFd route = output_->route_socket(), pump = output_->route_socket();
  if (!route || !pump) return sys::shortage_error("show what workers print");
  auto inlet = std::make_shared<OutputInlet>(
      *reactor_, *node_, OutputRoute(std::move(route), [shows = output_.get()] { return shows->start(); }),
      std::move(pump));
  host_lease_ns_ = host_lease_ns;
  partings_->set_lease(host_lease_ns);
  const TcpTransport::Options limits = tcp_options(host_lease_ns);
  tcp_->use(std::move(*tls), limits.lease_ns, limits.silence_ns, limits.dial_ns);
  if (through != nullptr) tcp_->go_by(by_way_of(*reactor_, *through));
  node_->add_cell(OutputInlet::id_of(node_->id()).index, inlet);
  reactor_->post_and_wait([&] { inlet_ = std::move(inlet); });
  return Ok{};
}

// What shows the lines of workers, and the way there.
Result<OutputRoute> ProcessRuntime::show_output(int stdout_fd, int stderr_fd) {
  auto pump = OutputPump::make(*reactor_, stdout_fd, stderr_fd);
  if (!pump) return pump.error();
  output_ = std::move(*pump);
  UniqueFd route = output_->route_socket();
  if (!route) return sys::shortage_error("show what workers print");
  return OutputRoute(std::move(route), [shows = output_.get()] { return shows->start(); });
}

void ProcessRuntime::be_child_of(const Bootstrap& bootstrap) {
  parent_ = bootstrap.parent;
  owner_ = bootstrap.owner;
  const bool by_script = parent_ == job_address_.script;
  deaths_->set_parent(parent_, Failure(Failure::Kind::kOwnerEnded,
                                       by_script ? job_address_.name() : "the process that owned this one"));
  if (!bootstrap.is_host) return;
  agent_ = std::make_shared<Agent>(*this);
  node_->add_cell(Agent::id_of(node_->id()).index, agent_);
}

ProcessRuntime::~ProcessRuntime() {
  if (in_forked_child()) {
    leak();
    return;
  }
  shutdown(0);
  unwatch_forks(*this);
}

// What is the parent's still: the destructors would end its processes.
void ProcessRuntime::leak() {
  static_cast<void>(host_.release());
  static_cast<void>(deaths_.release());
  static_cast<void>(output_.release());
  static_cast<void>(relay_.release());
  static_cast<void>(stacks_.release());
  static_cast<void>(call_watch_.release());
  static_cast<void>(connector_.release());
  static_cast<void>(node_.release());
  static_cast<void>(driver_.release());
  static_cast<void>(partings_.release());
  static_cast<void>(places_.release());
  static_cast<void>(gateways_.release());
  static_cast<void>(jobs_.release());
  static_cast<void>(reactor_.release());
  new std::shared_ptr<Arena>(std::move(arena_));
  new std::shared_ptr<Reception>(std::move(reception_));
  new std::shared_ptr<Agent>(std::move(agent_));
  new std::shared_ptr<OutputInlet>(std::move(inlet_));
}

void ProcessRuntime::shutdown(int64_t grace_ns, const std::function<void()>& only_output_left) {
  if (in_forked_child() || std::exchange(shut_down_, true)) return;
  if (!reactor_ || !reactor_->running()) {  // it never came up
    if (node_) node_->close_links();
    return;
  }
  node_->note_ending();
  dismiss_guests();
  stop_children(job_address_.name() + " has ended", grace_ns);
  if (only_output_left) only_output_left();
  if (inlet_) inlet_->finish();
  if (output_) output_->finish();  // what the dead have left
  reactor_->post_and_wait([this] { connector_->close(); });
  node_->close_links();
  internal::keep_large_blocks(nullptr);
  reactor_->stop();
  arena_->stop_timers();  // what timers hold ends with the reactor, and may have memory of it
  deaths_->report_rest();
  node_->report_failures();
  if (reception_) node_->remove_cell(Reception::id_of(node_->id()).index, "");
  reception_.reset();
  if (inlet_) node_->remove_cell(OutputInlet::id_of(node_->id()).index, "");
  if (agent_) node_->remove_cell(Agent::id_of(node_->id()).index, "");
  agent_.reset();
  host_.reset();  // nobody uses it any more; the connector, of which that cannot be said, is closed and stays
}

// Before the processes of the job end one by one: to a guest, the job has ended.
void ProcessRuntime::dismiss_guests() {
  reactor_->post_and_wait([this] {
    if (reception_) reception_->close();
  });
  if (reception_) reception_->remove_token();
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
  received_->before_fork();
  attach_mutex_.lock();
  if (inlet_) inlet_->before_fork();
  if (output_) output_->before_fork();
  reactor_->before_fork();
}

void ProcessRuntime::after_fork_in_parent() {
  reactor_->after_fork_in_parent();
  if (output_) output_->after_fork_in_parent();
  if (inlet_) inlet_->after_fork_in_parent();
  attach_mutex_.unlock();
  received_->after_fork_in_parent();
}

void ProcessRuntime::after_fork_in_child() {
  if (!reactor_->has_its_descriptors()) return;  // they are somebody else's by now
  if (host_) host_->after_fork_in_child();
  if (output_) output_->after_fork_in_child();
  if (inlet_) inlet_->after_fork_in_child();
  attach_mutex_.unlock();
  reactor_->after_fork_in_child();
  received_->after_fork_in_child();
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
  if (answer.header.kind == FrameKind::kReply || node_->is_down(job_address_.script)) return "";
  return failure_of(answer).text();
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
  for (NodeId node : nodes) deaths_->known(node, {Failure::Kind::kForeign, ended});
  return nothing_to_ask;
}

void ProcessRuntime::note_answer(const PendingCall& call, const std::vector<NodeId>& nodes) {
  const Message& answer = *call.reply(0);
  if (answer.header.kind != FrameKind::kReply) return;  // that job has ended: its nodes are down by that
  for (auto& [node, failure] : Reception::read_down(answer, nodes)) deaths_->known(node, std::move(failure));
}

// ---- Stacks ----

void ProcessRuntime::on_stacks_wanted(NodeId asker, uint64_t token, uint32_t rank) {
  auto actors = running_actors_ ? running_actors_() : std::vector<RunningActor>();
  stacks_->take([this, asker, token, rank, actors = std::move(actors)](const std::vector<ThreadStack>& threads) {
    ValueWriter value;
    write_process_stacks(value, threads, actors, code_map_, kControlSizeMax - kControlSizeMax / 4);
    node_->tell_stacks(asker, token, rank, value.written());
  });
}

// Who has not sent stacks yet.
struct ProcessRuntime::Silent {
  std::shared_ptr<PendingCall> call;
  uint64_t token;
  std::map<uint32_t, SilentProcess> elsewhere;  // by rank: what their hosts have said
};

std::shared_ptr<PendingCall> ProcessRuntime::ask_stacks(const std::vector<NodeId>& nodes, int64_t limit_ns) {
  auto members = std::make_shared<Members>();
  for (const NodeId node : nodes) members->ids.push_back({node, 0});
  auto call = std::make_shared<PendingCall>(std::move(members));
  const uint64_t token = node_->ask_stacks(call);
  const int64_t first_ns = std::min(limit_ns, kFirstLookNs);
  auto silent = std::make_shared<Silent>(Silent{call, token, {}});  // shared: with timers, and answers of hosts
  reactor_->after(first_ns, [=, this] { look_at_silent(silent, limit_ns - first_ns); });
  return call;
}

// Where a flood of calls hangs, a few of them in a while say why: the first may be answered at the last moment.
void ProcessRuntime::on_overdue(const std::shared_ptr<PendingCall>& call) {
  const int64_t now_ns = reactor_->now_ns();
  const bool again = overdue_.time_ns == 0 || now_ns - overdue_.time_ns >= kOverdueEveryNs;
  if (call->decided() || (!again && overdue_.calls >= kOverdueCalls)) return;
  PendingCall::Stacks stacks;
  std::vector<NodeId> nodes;
  for (uint32_t rank = 0; rank < call->size(); ++rank) {
    const NodeId node = call->owing().ids[rank].node;
    if (call->reply(rank) != nullptr || std::find(nodes.begin(), nodes.end(), node) != nodes.end()) continue;
    nodes.push_back(node);
    stacks.ranks.push_back(rank);
  }
  if (!again && nodes != overdue_.nodes) return;
  if (again) overdue_ = {now_ns, nodes, ask_stacks(nodes, kOverdueLimitNs), 0};
  ++overdue_.calls;
  stacks.call = overdue_.asked;
  call->set_stacks(std::move(stacks));
}

// Of a process that is stopped there is nothing to wait for.
void ProcessRuntime::look_at_silent(const std::shared_ptr<Silent>& silent, int64_t left_ns) {
  std::map<NodeId, std::vector<uint32_t>> elsewhere;  // ranks by the host that knows them
  for (uint32_t rank = 0; rank < silent->call->size(); ++rank) {
    if (silent->call->reply(rank) != nullptr) continue;
    const NodeId node = silent->call->owing().ids[rank].node;
    SilentProcess seen;
    if (const int64_t pid = node == node_->id() ? getpid() : deaths_->pid_here(node); pid > 0) {
      seen = look_at_silent_process(pid);
    } else if (const auto told = silent->elsewhere.find(rank); told != silent->elsewhere.end()) {
      seen = told->second;
    } else if (const NodeId host = deaths_->host_of(node); host != 0) {
      elsewhere[host].push_back(rank);
    }
    if (left_ns > 0 && !seen.is_stopped()) continue;
    ValueWriter value;
    write_silent_process(value, seen);
    node_->answer_stacks(silent->token, rank, value.written());
  }
  if (left_ns <= 0 || silent->call->complete()) return;
  have_looked_at(silent, elsewhere);
  reactor_->after(left_ns, [=, this] { look_at_silent(silent, 0); });
}

void ProcessRuntime::have_looked_at(const std::shared_ptr<Silent>& silent,
                                    const std::map<NodeId, std::vector<uint32_t>>& elsewhere) {
  for (const auto& [host, ranks] : elsewhere) {
    std::vector<NodeId> nodes;
    for (const uint32_t rank : ranks) nodes.push_back(silent->call->owing().ids[rank].node);
    ValueWriter body;
    encode(body, nodes);
    const auto asked = Agent::ask(*node_, {host}, Agent::kLook, body.written(), "a look at processes on a host",
                                  reactor_->now_ns() + kLookLimitNs);
    asked->observe(1, [=, this, ranks = ranks] {
      reactor_->post([=, this] {
        if (asked->reply(0)->header.kind != FrameKind::kReply) return;
        auto seen = decode<std::vector<SilentProcess>>(asked->reply(0)->body);
        if (!seen || seen->size() != ranks.size()) return;
        for (size_t i = 0; i < ranks.size(); ++i) {
          silent->elsewhere[ranks[i]] = (*seen)[i];
          if (!(*seen)[i].is_stopped() || silent->call->reply(ranks[i]) != nullptr) continue;
          ValueWriter value;
          write_silent_process(value, (*seen)[i]);
          node_->answer_stacks(silent->token, ranks[i], value.written());
        }
      });
    });
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
  node_->note_ending();
  std::lock_guard lock(stop_mutex_);
  if (!asked_to_stop_ && limit_ns != 0) {
    asked_to_stop_ = true;
    reactor_->after(limit_ns, [this, reason] { request_stop(reason, 0); });
    return;
  }
  if (!stop_reason_) stop_reason_ = reason;
  stop_condition_.notify_all();
  if (on_stop_) on_stop_();
}

void ProcessRuntime::on_control(Link& link, MessagePtr message) {
  switch (message->header.kind) {
    case FrameKind::kStopNode:
      if (message->from == parent_ || message->from == owner_) request_stop(std::string(message->text()), kStopDrainNs);
      return;
    case FrameKind::kNodeDown:
      return on_node_down(link.peer(), *message);
    case FrameKind::kOutOfReach:
      return on_out_of_reach(link.peer(), *message);
    case FrameKind::kHosts:
      return deaths_->on_hosts(link.peer(), message->header.dest);
    case FrameKind::kWhyDown:
      return deaths_->answer_inquiry(link, message->header.dest);
    case FrameKind::kPing: {
      Outgoing pong{FrameHeader{}, message->body, {}};
      pong.header.kind = FrameKind::kPong;
      pong.header.token = message->header.token;
      link.send_control(pong);
      return;
    }
    case FrameKind::kPong:
      return call_watch_->on_pong(link.peer());
    case FrameKind::kWhereIs:
      return places_ && reception_ ? places_->asked(link, message->header.dest) : void();
    case FrameKind::kPlace:
      return places_ && link.peer() == job_address_.script
                 ? places_->answered(message->header.dest, std::string(message->text()))
                 : void();
    default:
      log_line("ignored a data frame on the control lane");
  }
}

// Somebody says how a node has ended, or, without a word, that somebody was told of it. Of another job's nodes only the
// script of that job may say so.
void ProcessRuntime::on_node_down(NodeId from, const Message& notice) {
  const NodeId node = notice.header.dest;
  const bool foreign = jobs_->is_foreign(from);
  if (notice.body.empty()) {
    if (!foreign) deaths_->observed(from, node);
    return;
  }
  auto failure = Failure::decode(notice.body);
  if (!failure) return log_line("ignored a notice of a death: " + failure.error().message);
  failure->node = node;
  if (!foreign) return deaths_->noticed(from, node, std::make_shared<Failure>(std::move(*failure)));
  if (jobs_->speaks_for(from, node)) deaths_->known(node, std::move(*failure));
}

void ProcessRuntime::note_observed(NodeId node) {
  // Another job's own processes are to hear of theirs.
  if (node != 0 && !jobs_->is_foreign(node)) deaths_->observed(node_->id(), node);
}

// ---- Processes that another host has started for this one ----

void ProcessRuntime::note_hosted(NodeId host, const std::vector<NodeId>& nodes) { deaths_->add_hosted(nodes, host); }

void ProcessRuntime::release(const std::vector<NodeId>& nodes, const std::string& reason) {
  Outgoing request{FrameHeader{}, as_byte_span(reason.data(), reason.size()), {}};
  request.header.kind = FrameKind::kStopNode;
  for (NodeId node : nodes) static_cast<void>(node_->send(node, request));  // who has ended needs no word
}

// ---- Hosts that do not reach each other (docs/design/034) ----

bool ProcessRuntime::is_third(NodeId node) const {
  const HostNumber here = host_number(node_->id()), there = host_number(node);
  return here != 0 && there != 0 && here != there && !jobs_->is_foreign(node) && gateways_->gateway(there) == node;
}

// The gateway of this host says so to those who send through it, and gateways say it to the script.
void ProcessRuntime::on_out_of_reach(NodeId from, const Message& notice) {
  const NodeId gateway = notice.header.dest;
  auto why = Failure::decode(notice.body);
  if (!why) return log_line("ignored a notice of a host that is not reached: " + why.error().message);
  if (partings_) return partings_->told(from, gateway, why->detail);
  if (host_number(gateway) != host_number(node_->id()) && gateways_->of(gateway) == from) node_->let_go(gateway, *why);
}

void ProcessRuntime::on_link_lost(NodeId node, const Error& why) {
  // kRefused: the script knows of no such host (Places).
  if (is_third(node) && why.code != ErrorCode::kRefused) {
    const auto place = tcp_->known_place(node);
    const std::string both = tcp_->place()->dial.host + " and " + (place ? place->dial.host : "another host");
    const std::string what = " do not reach each other, though their script may reach both: " + why.message;
    return deaths_->out_of_reach(node, {Failure::Kind::kUnreachable, both + what});
  }
  if (const auto loss = jobs_->on_link_lost(node, why)) {
    // To a guest, the end of the script's link is the end of the job and all its nodes.
    for (NodeId lost : loss->nodes) deaths_->known(lost, {Failure::Kind::kForeign, loss->why});
  }
  deaths_->link_lost(node, why);
  host_->link_lost(node, why.message);
}

}  // namespace monarch
