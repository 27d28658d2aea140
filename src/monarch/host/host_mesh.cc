#include "monarch/host/host_mesh.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/turn.h"
#include "monarch/base/random.h"
#include "monarch/host/agent.h"
#include "monarch/host/controller.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/runtime.h"
#include "monarch/net/tls/credentials.h"

extern char** environ;

namespace monarch {

namespace internal {

struct AttachedHosts {
  std::shared_ptr<const MeshInfo> info;  // shared: with calls to them
  std::vector<NodeId> nodes;
  std::mutex mutex;  // a leaf
  std::vector<NodeId> spawned;  // through them
};

}  // namespace internal

namespace {

using internal::AttachedHosts;
using internal::MeshCall;
using internal::MeshInfo;

constexpr int64_t kEndLimitNs = 5'000'000'000;  // for a host to say that it ends, and to end

Extent extent_of(const Extent& hosts, const Dims& per_host) {
  std::vector<std::string> labels = hosts.labels();
  std::vector<int64_t> sizes = hosts.sizes();
  for (const auto& [label, size] : per_host) {
    if (size < 1) {
      throw std::invalid_argument("spawn_procs: the dimension '" + label + "' has size " + std::to_string(size) +
                                  "; give each dimension 1 or more, or leave it out");
    }
    labels.push_back(label);
    sizes.push_back(size);
  }
  auto extent = Extent::create(std::move(labels), std::move(sizes));
  if (!extent) throw std::invalid_argument("spawn_procs: " + extent.error().message);
  return *extent;
}

std::vector<LaunchRequest> requests_for(const Extent& extent, const LaunchCommand& command, const std::string& name) {
  std::vector<LaunchRequest> requests(static_cast<size_t>(extent.element_count()));
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    const Point point(static_cast<int64_t>(rank), extent);
    LaunchRequest& request = requests[rank];
    request.command = command;
    request.label = "rank " + point.to_string() + " of procs '" + name + "'";
    request.output.mesh = name;
    request.output.rank = extent.dim_count() == 0 ? -1 : static_cast<int64_t>(rank);
    request.coordinates = point.coordinates();
  }
  return requests;
}

MeshCall ask(Node& node, const std::shared_ptr<const MeshInfo>& info, const std::vector<NodeId>& hosts,
             const Extent& extent, Agent::Method method, const std::string& body, const std::string& what,
             int64_t deadline_ns = 0) {
  auto call = Agent::ask(node, hosts, method, as_byte_span(body.data(), body.size()), what, deadline_ns);
  return MeshCall(info, std::move(call), extent, 0);
}

// How the processes of one mesh are started, now and when they are made anew.
struct Start {
  Runtime* runtime;
  std::shared_ptr<AttachedHosts> attached;  // shared: with the handles of them. Null: this machine
  std::vector<NodeId> hosts;                // by rank
  std::vector<LaunchRequest> requests;      // by rank of the processes, as many for each host
  uint64_t mesh;

  LaunchOrder order_of(const std::vector<uint32_t>& ranks) const {
    LaunchOrder order;
    order.mesh = mesh;
    for (const uint32_t rank : ranks) order.launches.push_back(requests[rank]);
    return order;
  }

  std::vector<NodeId> here(const std::string& what, const std::vector<uint32_t>& ranks) const {
    LaunchDefaults defaults;
    for (char** entry = environ; *entry != nullptr; ++entry) defaults.env.emplace_back(*entry);
    auto nodes = runtime->process().host().spawn(order_of(ranks), defaults);
    if (!nodes) throw std::runtime_error(what + ": " + nodes.error().message);
    return std::move(*nodes);
  }

  // All or none.
  std::vector<NodeId> on_hosts(const std::string& what, const std::vector<uint32_t>& ranks) const {
    const size_t per_host = requests.size() / hosts.size();
    struct Part {
      NodeId host;
      std::vector<size_t> at;  // places in `ranks`
      MeshCall call;
    };
    std::vector<Part> parts;
    for (size_t host = 0; host < hosts.size(); ++host) {
      std::vector<size_t> at;
      std::vector<uint32_t> there;
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i] / per_host != host) continue;
        at.push_back(i);
        there.push_back(ranks[i]);
      }
      if (there.empty()) continue;
      parts.push_back({hosts[host], std::move(at),
                       ask(runtime->process().node(), attached->info, {hosts[host]}, Extent(), Agent::kStart,
                           encode(order_of(there)), what)});
    }
    std::vector<NodeId> nodes(ranks.size()), started;
    std::optional<CallError> failed;
    for (const Part& part : parts) {
      auto failure = part.call.wait(kNoDeadline);
      auto there = failure ? Result<std::vector<NodeId>>(std::vector<NodeId>())
                           : decode<std::vector<NodeId>>(part.call.reply(0).body);
      if (!failure && (!there || there->size() != part.at.size())) {
        const Error why = there ? Error{ErrorCode::kMalformed, "other processes"} : there.error();
        failure = part.call.not_decodable(0, part.call.reply(0), why);
      }
      if (failure) {
        if (!failed) failed = std::move(failure);
        continue;
      }
      runtime->process().note_hosted(part.host, *there);
      for (size_t i = 0; i < part.at.size(); ++i) nodes[part.at[i]] = (*there)[i];
      started.insert(started.end(), there->begin(), there->end());
    }
    {
      std::lock_guard lock(attached->mutex);
      attached->spawned.insert(attached->spawned.end(), started.begin(), started.end());
    }
    if (failed) {
      runtime->stop(started, "others that were wanted with them could not be started");
      failed->rank = -1;
      failed->text = what + ": " + failed->message;
      failed->raise();
    }
    return nodes;
  }

  std::vector<NodeId> operator()(const std::string& what, const std::vector<uint32_t>& ranks) const {
    return attached ? on_hosts(what, ranks) : here(what, ranks);
  }
};

}  // namespace

// ---- HostMesh ----

HostMesh::HostMesh(Runtime& runtime) : runtime_(&runtime), region_(Region::row_major(Extent())) {}

HostMesh::HostMesh(Runtime& runtime, std::shared_ptr<AttachedHosts> hosts)
    : runtime_(&runtime),
      hosts_(std::move(hosts)),
      region_(Region::row_major(*Extent::create({"hosts"}, {static_cast<int64_t>(hosts_->nodes.size())}))) {}

const std::string& HostMesh::name() const {
  static const std::string& this_host = *new std::string("this_host");
  return hosts_ ? hosts_->info->name : this_host;
}

HostMesh HostMesh::slice(const std::vector<DimSelection>& selections) const {
  HostMesh part = *this;
  part.region_ = internal::select(region_, selections);
  return part;
}

std::vector<NodeId> HostMesh::nodes() const {
  std::vector<NodeId> nodes;
  if (!hosts_) return nodes;
  for (const int64_t rank : region_.slice()) nodes.push_back(hosts_->nodes[static_cast<size_t>(rank)]);
  return nodes;
}

Future<void> HostMesh::initialized() const {
  Node& node = runtime_->process().node();
  if (hosts_) return Future<void>(ask(node, hosts_->info, nodes(), extent(), Agent::kIsThere, "", "initialized()"));
  auto info = std::make_shared<MeshInfo>();
  info->node = &node;
  auto nobody = std::make_shared<PendingCall>(std::make_shared<Members>());
  return Future<void>(MeshCall(std::move(info), std::move(nobody), extent(), 0));
}

ProcMesh HostMesh::spawn_procs(const Dims& per_host, const ProcOptions& options) const {
  const Extent extent = extent_of(region_.extent(), per_host);
  Node& node = runtime_->process().node();
  SystemRandom random;
  Start start{runtime_, hosts_, nodes(), requests_for(extent, runtime_->worker_command(options), options.name),
              random.next_u64() >> 1 | 1};
  std::vector<uint32_t> ranks(start.requests.size());
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
  std::vector<NodeId> nodes = start("spawn_procs", ranks);
  auto members = std::make_shared<Members>();
  for (const NodeId id : nodes) members->ids.push_back({id, 0});
  OwnedMesh owned;
  const internal::Turn* turn = internal::Turn::current();
  if (turn != nullptr && turn->self().node == &node) owned.owner = turn->self().id.index;
  owned.is_procs = true;
  owned.name = options.name;
  owned.labels = extent.labels();
  owned.sizes = extent.sizes();
  owned.members = std::move(members);
  auto origin = std::make_shared<internal::ProcOrigin>();
  origin->supervised = node.own(std::move(owned));
  origin->start = [start = std::move(start)](const std::vector<uint32_t>& wanted) { return start("respawn", wanted); };
  return ProcMesh(node, runtime_, options.name, std::move(nodes), extent, std::move(origin));
}

void HostMesh::stop(const std::string& reason) const { end("stop", reason, false); }

void HostMesh::shutdown(const std::string& reason) const { end("shut down", reason, true); }

void HostMesh::end(const std::string& what, const std::string& reason, bool shut_down) const {
  if (!hosts_) throw std::logic_error("this machine was not attached to: there is nothing to " + what);
  ProcessRuntime& process = runtime_->process();
  const std::vector<NodeId> ending = nodes();
  std::vector<NodeId> started, others;
  {
    std::lock_guard lock(hosts_->mutex);
    for (const NodeId each : hosts_->spawned) {
      const bool is_there = std::find(ending.begin(), ending.end(), process.host_of(each)) != ending.end();
      (is_there ? started : others).push_back(each);
    }
    hosts_->spawned = std::move(others);
  }
  runtime_->stop(started, reason);
  if (shut_down) {
    const int64_t deadline_ns = process.node().clock().now_ns() + kEndLimitNs;
    // One that has ended before need not.
    static_cast<void>(ask(process.node(), hosts_->info, ending, extent(), Agent::kEnd, "", "shutdown()", deadline_ns)
                          .wait(kNoDeadline));
  }
  runtime_->stop_own(ending, reason, kEndLimitNs);
}

// ---- What Runtime has to do with it ----

HostMesh Runtime::attach_to_workers(const std::vector<std::string>& addresses, const AttachOptions& options) {
  const auto refuse = [](const std::string& why) { throw std::invalid_argument("attach_to_workers: " + why); };
  if (addresses.empty()) refuse("there must be an address, such as tcp://host:4444");
  if (options.host_lease.count() < ProcessRuntime::kHostLeaseMinNs) refuse("host_lease must be at least 0.5 s");
  if (options.ready_timeout.count() < 0) refuse("ready_timeout must not be below 0");
  if (options.key_file.empty() != options.ca_file.empty()) refuse("key_file and ca_file go together");
  const std::string token_file = options.token_file.empty() ? hosts_token_file() : options.token_file;
  if (token_file[0] != '/') refuse("the path of the token file must be absolute, and is " + token_file);
  std::shared_ptr<const Credentials> credentials;  // shared: by the addresses
  if (!options.key_file.empty()) {
    auto loaded = load_credentials(options.ca_file, options.key_file);
    if (!loaded) refuse(loaded.error().message);
    credentials = std::make_shared<const Credentials>(std::move(*loaded));
  }
  std::vector<Launch> launches;
  const Extent extent = *Extent::create({"hosts"}, {static_cast<int64_t>(addresses.size())});
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    auto address = HostdAddress::parse(addresses[rank], token_file);
    if (!address) refuse(address.error().message);
    if (auto dialled = address->tcp ? address->tcp->check_dialled() : Status(Ok{}); !dialled) {
      refuse(dialled.error().message);
    }
    address->trusts_all = options.trust_all_connections;
    address->credentials = credentials;
    address->wait_ns = options.ready_timeout.count();
    const Point point(static_cast<int64_t>(rank), extent);
    Launch& launch = launches.emplace_back();
    launch.is_host = true;
    launch.hostd = std::move(*address);
    launch.label = "rank " + point.to_string() + " of hosts '" + options.name + "'";
    launch.output.mesh = options.name;
    launch.output.rank = static_cast<int64_t>(rank);
    launch.coordinates = point.coordinates();
  }
  auto nodes = process_->attach(launches, options.host_lease.count());
  if (!nodes) throw std::runtime_error("attach_to_workers: " + nodes.error().message);
  auto members = std::make_shared<Members>();
  for (const NodeId node : *nodes) members->ids.push_back(Agent::id_of(node));
  auto info = std::make_shared<MeshInfo>();
  info->node = &process_->node();
  info->class_name = "hosts";
  info->name = options.name;
  info->members = std::move(members);
  auto hosts = std::make_shared<AttachedHosts>();
  hosts->info = std::move(info);
  hosts->nodes = std::move(*nodes);
  return HostMesh(*this, std::move(hosts));
}

// What hosts have started for this program.
void Runtime::stop_on_hosts(const std::vector<NodeId>& nodes, const std::string& reason) {
  Node& node = process_->node();
  std::map<NodeId, Agent::StopOrder> orders;
  std::vector<NodeId> living;
  for (const NodeId each : nodes) {
    if (!node.is_down(each)) living.push_back(each);
    orders[process_->host_of(each)].nodes.push_back(each);
  }
  node.supervisor().note_stopping(living);
  const int64_t deadline_ns = node.clock().now_ns() + kGraceNs + kEndLimitNs;
  auto info = std::make_shared<MeshInfo>();
  info->node = &node;
  std::vector<MeshCall> asked;
  for (auto& [host, order] : orders) {
    order.reason = reason;
    order.grace_ns = kGraceNs;
    asked.push_back(ask(node, info, {host}, Extent(), Agent::kStop, Agent::encode(order), "stop()", deadline_ns));
  }
  process_->release(nodes, reason);
  for (const MeshCall& call : asked) static_cast<void>(call.wait(kNoDeadline));  // a host that is gone has ended them
}

}  // namespace monarch
