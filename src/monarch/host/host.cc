#include "monarch/host/host.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <unordered_set>

#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/gateways.h"
#include "monarch/host/start/attach.h"

namespace monarch {

namespace {

// How long after everybody was killed the fork server may take to say so.
constexpr int64_t kReapLimitNs = 500'000'000;
// How long processes may take to end whose owner is gone.
constexpr int64_t kOrphanGraceNs = 3'000'000'000;

}  // namespace

Host::Host(Reactor& reactor, Node& node, Connector& connector, DeathWatch& deaths, int budget_fd, JobAddress address,
           OutputRoute output)
    : reactor_(reactor),
      node_(node),
      connector_(connector),
      address_(std::move(address)),
      output_(std::move(output)),
      deaths_(deaths),
      remotes_(reactor, remote_events()),
      starter_(reactor, connector, output_, budget_fd, address_, node.id(),
               {.on_spawned = [this](NodeId child, pid_t pid) { deaths_.started(child, pid); },
                .on_dying =
                    [this](NodeId child, const ExitStatus& status) { deaths_.dying(child, explained(child, status)); },
                .on_exited =
                    [this](NodeId child, const ExitStatus& status) {
                      deaths_.exited(child, explained(child, status));
                      on_ended(child);
                    },
                .on_not_started =
                    [this](NodeId child, const std::string& why) {
                      deaths_.not_started(child, why);
                      on_ended(child);
                    }}) {}

Host::~Host() = default;

// ---- Starting ----

Result<std::vector<NodeId>> Host::spawn(const std::vector<Launch>& launches, SpawnOrder order) {
  if (auto can = starter_.expect(launches.size()); !can) return can.error();
  std::vector<NodeId> nodes;
  SystemRandom random;
  const uint64_t mesh = order.mesh != 0 ? order.mesh : random.next_u64();
  const NodeId owner = order.owner != 0 ? order.owner : node_.id();
  std::vector<NodeKey> keys;
  std::unordered_set<NodeId> ids;
  std::vector<Connector::NewChild> made;  // all before the first is launched: whom it dials must be there
  const HostNumber here = host_number(node_.id());
  for (size_t i = 0; i < launches.size(); ++i) {
    const auto& given = launches[i].key;
    keys.push_back(given ? NodeKey(*given, here) : NodeKey::make(random, here));
    if (!is_new(keys.back().id()) || !ids.insert(keys.back().id()).second) {
      return Error{ErrorCode::kBug, "a process with that key has been started already"};
    }
    auto child = connector_.new_child(keys.back().id());
    if (!child) return child.error();
    made.push_back(std::move(*child));
  }
  for (size_t i = 0; i < launches.size(); ++i) {
    const Launch& launch = launches[i];
    const std::shared_ptr<Link>& link = made[i].link;
    Starter::Order wanted{bootstrap_of(launch, keys[i], owner), launch, mesh, link, std::move(made[i].listener)};
    add_child(launch, keys[i].id(), owner, link);
    nodes.push_back(keys[i].id());
    starter_.launch(std::move(wanted));
  }
  if (owner != node_.id() && node_.is_down(owner)) {
    reactor_.post([this, nodes] { stop_orphans(nodes); });
  }
  return nodes;
}

bool Host::is_new(NodeId node) const {
  std::lock_guard lock(mutex_);
  return node != node_.id() && !children_.contains(node) && !node_.is_down(node);
}

Bootstrap Host::bootstrap_of(const Launch& launch, const NodeKey& key, NodeId owner) const {
  Bootstrap bootstrap;
  bootstrap.key = key;
  bootstrap.parent = node_.id();
  bootstrap.owner = owner;
  bootstrap.job = connector_.identity().job;
  bootstrap.token = connector_.identity().token;
  bootstrap.address = address_.to_text();
  bootstrap.transport = connector_.transport();
  bootstrap.place = place_;
  bootstrap.payload = launch.payload;
  bootstrap.is_host = launch.is_host;
  return bootstrap;
}

// Before anything can be heard of it.
void Host::add_child(const Launch& launch, NodeId node, NodeId owner, std::shared_ptr<Link> link) {
  {
    std::lock_guard lock(mutex_);
    children_[node] = {owner, link, launch.hostd.has_value()};
  }
  Failure who;
  who.label = launch.label;
  who.mesh = launch.output.mesh;
  who.rank = launch.output.rank;
  who.coordinates = launch.coordinates;
  who.host = launch.hostd && launch.hostd->tcp ? launch.hostd->tcp->dial.host : host_name();
  deaths_.add_child(node, owner, std::move(who), launch.tail_lines);
  node_.add_link(std::move(link));
}

Result<NodeId> Host::attach(const Launch& launch, Places& places, int64_t host_lease_ns) {
  const HostNumber number = ++hosts_;
  if (number > kHostMax) {
    return Error{ErrorCode::kUnsupported, "a job has at most " + std::to_string(kHostMax) + " hosts, ever"};
  }
  places_ = &places;
  host_lease_ns_ = host_lease_ns;
  Bootstrap bootstrap = bootstrap_of(launch, Gateways::key_of(connector_.identity().token, number), node_.id());
  bootstrap.host_lease_ns = host_lease_ns;
  bootstrap.place.dialled_at = launch.hostd->tcp->dial.host;
  const NodeId node = bootstrap.key.id();
  add_child(launch, node, node_.id(), places.expect(node));
  remotes_.attach(*launch.hostd, std::move(bootstrap));
  return node;
}

ExitStatus Host::explained(NodeId child, const ExitStatus& status) const {
  std::lock_guard lock(mutex_);
  const auto found = children_.find(child);
  const bool of_hostd = found != children_.end() && found->second.of_hostd;
  return of_hostd ? monarch::explained(status, host_lease_ns_) : status;
}

RemoteHosts::Events Host::remote_events() {
  RemoteHosts::Events events;
  events.on_started = [this](NodeId node, const TcpAddress& address, const HostReport& report) {
    deaths_.started(node, report.pid);
    if (auto placed = places_.load()->placed(node, address); !placed) log_line(placed.error().message);
  };
  const auto ended = [this](NodeId node) {
    places_.load()->gone(node);
    on_ended(node);
  };
  events.on_exited = [this, ended](NodeId node, const ExitStatus& status) {
    deaths_.exited(node, explained(node, status));
    ended(node);
  };
  events.on_not_started = [this, ended](NodeId node, const std::string& why) {
    deaths_.not_started(node, why);
    ended(node);
  };
  events.on_lost = [this, ended](NodeId node, const std::string& why) {
    Failure failure = deaths_.who_is(node).value_or(Failure());
    failure.kind = Failure::Kind::kLost;
    failure.node = node;
    failure.detail = why;
    deaths_.way_lost(node, std::make_shared<Failure>(std::move(failure)));
    ended(node);
  };
  return events;
}

Result<std::vector<NodeId>> Host::spawn(const LaunchOrder& order, const LaunchDefaults& defaults, NodeId owner) {
  const auto wants_interpreter = [](const LaunchRequest& each) { return !each.command; };
  if (defaults.interpreter.empty() && std::any_of(order.launches.begin(), order.launches.end(), wants_interpreter)) {
    return Error{ErrorCode::kUnsupported, "this host runs no Python: its monarch-hostd was started with --no-python"};
  }
  if (!has_fork_server() && wants_fork_server(order, defaults)) start_fork_server(defaults.fork_server, defaults.env);
  return spawn(complete(order, defaults, starter_.fork_environment()), {owner, order.mesh});
}

void Host::last_lines(NodeId node, uint32_t lines, std::function<void(std::string)> done) {
  auto answer = output_.tail(node, OutputStream::kStderr, lines);
  if (!answer) return done("");
  auto fd = std::make_shared<UniqueFd>(std::move(*answer));  // shared: std::function must be copyable
  reactor_.add(fd->get(), EPOLLIN, [this, fd, done = std::move(done)](uint32_t) {
    std::string text(64 << 10, '\0');
    const ssize_t count = read(fd->get(), text.data(), text.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    reactor_.remove(fd->get());
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    done(std::move(text));
  });
  reactor_.after(Deaths::Limits{}.last_lines_ns, [this, fd] { reactor_.remove(fd->get()); });
}

void Host::hear_news(NodeId node, LaunchNews news) {
  reactor_.post([this, node, news = std::move(news)] { starter_.hear_news(node, news); });
}

// ---- Ending ----

void Host::stop_orphans(const std::vector<NodeId>& nodes) {
  stop(nodes, "the process that owned this one has ended", kOrphanGraceNs, [] {});
}

void Host::on_buried(NodeId node) { note(node, &Child::buried); }

void Host::on_ended(NodeId node) { note(node, &Child::ended); }

void Host::note(NodeId node, bool Child::*what) {
  {
    std::lock_guard lock(mutex_);
    auto found = children_.find(node);
    if (found == children_.end()) return;
    found->second.*what = true;
    if (!found->second.buried || !found->second.ended) return;
    children_.erase(found);
  }
  check_waiting();
}

Status Host::set_output(const std::vector<NodeId>& nodes, const OutputOptions& options, std::function<void()> done) {
  auto fd = std::make_shared<UniqueFd>(sys::make_eventfd());  // shared: std::function is copyable
  if (!*fd) return sys::shortage_error("change how output is shown");
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

void Host::stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
                std::function<void()> done) {
  reactor_.post([this, nodes, reason = shortened(reason), grace_ns, done = std::move(done)]() mutable {
    Outgoing request{FrameHeader{}, as_byte_span(reason.data(), reason.size()), {}};
    request.header.kind = FrameKind::kStopNode;
    bool any = false;
    for (NodeId node : nodes) {
      std::shared_ptr<Link> link;
      NodeId owner;
      {
        std::lock_guard lock(mutex_);
        auto found = children_.find(node);
        if (found == children_.end()) continue;
        link = found->second.link;
        owner = found->second.owner;
      }
      if (!deaths_.stop_asked(node, reason)) continue;
      any = true;
      link->send_control(request);
      // Behind all that was sent before: the process ends when it has seen that, or soon in any case.
      const bool owner_sends = owner != node_.id() && !ending_ && !node_.is_down(owner);
      if (!owner_sends) static_cast<void>(node_.send_to_peer(*link, request));
      starter_.withdraw(node);
    }
    waiting_.push_back({nodes, std::move(done)});
    if (ending_) starter_.end();  // who has not been started need not be
    if (any) {
      reactor_.after(grace_ns, [this, nodes] {
        for (NodeId node : nodes) kill(node);
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
    reactor_.after(grace_ns + kReapLimitNs, [this] { starter_.give_up_fork_server(); });
  });
}

void Host::check_waiting() {
  std::vector<std::function<void()>> done;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](Waiting& waiting) {
      for (NodeId node : waiting.nodes) {
        if (children_.contains(node)) return false;
      }
      done.push_back(std::move(waiting.done));
      return true;
    });
  }
  for (auto& run : done) run();
}

}  // namespace monarch
