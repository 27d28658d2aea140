// Hosts that have an agent (src/monarch/host/agent.h), as python/monarch/_meshes/agents.py asks them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "future.h"
#include "gil.h"
#include "host_use.h"
#include "monarch/host/agent.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/net/tls/tls_channel.h"
#include "monarch/wire/value_codec.h"
#include "simulation.h"
#include "starting.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

namespace {

constexpr double kSecondsMax = 1e9;

int64_t ns_of(double seconds) { return static_cast<int64_t>(std::clamp(seconds, 0.0, kSecondsMax) * 1e9); }

AnyRuntime& runtime() {
  AnyRuntime* existing = require_runtime();
  if (existing == nullptr || !require_descriptors()) throw nb::python_error();
  return *existing;
}

ByteSpan span_of(const nb::bytes& bytes) { return as_byte_span(bytes.c_str(), bytes.size()); }

nb::object future_of(std::shared_ptr<PendingCall> call, FutureMode mode, nb::handle what) {
  PyObject* future = new_future(std::move(call), mode, 0, what.ptr());
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

// This process is a host: from now on it starts what others order. `defaults`: LaunchDefaults, as encode_native() makes
// them.
void offer_agent(nb::bytes defaults) {
  auto offered = decode_launch_defaults(span_of(defaults));
  if (!offered) throw std::runtime_error(offered.error().message);
  ProcessRuntime* here = require_machine("hosts");
  if (here == nullptr) throw nb::python_error();
  if (here->agent() != nullptr) here->agent()->offer(std::move(*offered));
}

nb::object ask(const std::vector<NodeId>& hosts, Agent::Method method, ByteSpan body, FutureMode mode, nb::handle what) {
  Members members;
  for (const NodeId host : hosts) members.ids.push_back(Agent::id_of(host));
  AnyRuntime& here = runtime();
  if (!check_reach(members)) throw nb::python_error();
  const std::string label = nb::cast<std::string>(nb::str(what));
  auto call = [&] {
    GilRelease release;
    return Agent::ask(here.node(), hosts, method, body, label);
  }();
  return future_of(std::move(call), mode, what);
}

// The user's own certificates, as PEM, `key` with the certificate in it; empty: none. Raises what is wrong with them.
std::shared_ptr<const Credentials> credentials_of(const nb::bytes& authorities, const nb::bytes& key) {
  if (key.size() == 0) return nullptr;
  auto credentials = std::make_shared<Credentials>();  // shared: by the addresses of hosts
  credentials->authorities.assign(authorities.c_str(), authorities.size());
  credentials->certificate.assign(key.c_str(), key.size());  // each reads what is its own out of it
  credentials->key = credentials->certificate;
  const auto trust = credentials->authorities.empty() ? TlsContext::Trust::kAnybody : TlsContext::Trust::kAuthority;
  if (auto tried = TlsContext::make(*credentials, trust); !tried) throw nb::value_error(tried.error().message.c_str());
  return credentials;
}

// For monarch-hostd --credentials; secret.
nb::bytes credentials_text(const nb::bytes& authorities, const nb::bytes& key) {
  std::string text = credentials_of(authorities, key)->to_text();
  nb::bytes bytes(text.data(), text.size());
  OPENSSL_cleanse(text.data(), text.size());
  return bytes;
}

// Where hosts are, and how they are reached.
std::vector<HostdAddress> hostd_addresses(const std::vector<std::string>& texts, const std::string& token_file,
                                          bool trusts_all, const nb::bytes& authorities, const nb::bytes& key) {
  const auto credentials = credentials_of(authorities, key);
  std::vector<HostdAddress> addresses;
  for (const std::string& text : texts) {
    auto address = HostdAddress::parse(text, token_file);
    if (!address) throw nb::value_error(address.error().message.c_str());
    if (auto dialled = address->tcp ? address->tcp->check_dialled() : Status(Ok{}); !dialled) {
      throw nb::value_error(dialled.error().message.c_str());
    }
    address->trusts_all = trusts_all;
    address->credentials = credentials;
    addresses.push_back(std::move(*address));
  }
  return addresses;
}

// By which host others over TCP are reached; null: from here. GIL. shared: by their addresses.
std::shared_ptr<const HostdAddress> way_in;

// Before hosts are attached to. Raises what hostd_addresses() does.
void go_through(const std::string& text, const std::string& token_file, bool trusts_all, const nb::bytes& authorities,
                const nb::bytes& key) {
  way_in = std::make_shared<const HostdAddress>(hostd_addresses({text}, token_file, trusts_all, authorities, key)[0]);
}

// Hosts that monarch-hostd starts for this process, one at each address; `labels` name them, `name` their mesh. Returns
// before they exist: where there is none within `ready_limit` seconds, the node goes down.
std::vector<NodeId> attach_hosts(const std::vector<std::string>& texts, const std::string& token_file, bool trusts_all,
                                 const std::vector<std::string>& labels, const std::string& name, double host_lease,
                                 double ready_limit, const nb::bytes& authorities, const nb::bytes& key) {
  const int64_t host_lease_ns = ns_of(host_lease);
  if (host_lease_ns < ProcessRuntime::kHostLeaseMinNs) throw nb::value_error("host_lease must be at least 0.5s");
  auto addresses = hostd_addresses(texts, token_file, trusts_all, authorities, key);
  std::vector<Launch> launches;
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    Launch& launch = launches.emplace_back();
    launch.is_host = true;
    launch.hostd = std::move(addresses[rank]);
    launch.hostd->wait_ns = ns_of(ready_limit);
    launch.hostd->through = way_in;
    launch.label = labels.at(rank);
    launch.output.mesh = name;
    launch.output.rank = static_cast<int64_t>(rank);
    launch.coordinates = {static_cast<int64_t>(rank)};
  }
  if (require_machine("attach_to_workers") == nullptr || !require_descriptors()) throw nb::python_error();
  auto attached = [&] {
    GilRelease release;
    return with_host([&](AnyRuntime& process) { return process.of_machine()->attach(launches, host_lease_ns); });
  }();
  if (!attached) throw std::runtime_error(attached.error().message);
  return *attached;
}

// -> Future of what._gather(answers), when all of them are ready for orders; with `to_end`: when those that outlive their
// clients know that they need not do so any more.
nb::object ask_hosts(const std::vector<NodeId>& hosts, nb::object what, bool to_end) {
  return ask(hosts, to_end ? Agent::kEnd : Agent::kIsThere, {}, FutureMode::kAll, what);
}

// -> Future of (pid, state, waits_in) for each of these, which `host` has started; pid -1: it does not know it.
nb::object look_on_host(NodeId host, std::vector<NodeId> nodes, nb::object what) {
  ValueWriter body;
  for (NodeId& node : nodes) node = runtime().node().successions().latest(node);
  encode(body, nodes);
  return ask({host}, Agent::kLook, body.written(), FutureMode::kOne, what);
}

// `order`: LaunchOrder, as encode_native() makes it. -> the nodes of what `host` is to start, and, if somebody `waits`, a
// Future that is done when it has begun to. In a simulation: None, and a Future of the nodes.
nb::tuple start_on_host(NodeId host, nb::bytes order, nb::object what, bool waits) {
  AnyRuntime& any = runtime();
  ProcessRuntime* const here = any.of_machine();
  if (here == nullptr) {
    return nb::make_tuple(nb::none(), ask({host}, Agent::kStart, span_of(order), FutureMode::kOne, what));
  }
  auto decoded = decode_launch_order(span_of(order));
  if (!decoded) throw std::runtime_error(decoded.error().message);
  Members members;
  members.ids.push_back(Agent::id_of(host));
  if (!check_reach(members)) throw nb::python_error();
  const std::string label = nb::cast<std::string>(nb::str(what));
  auto made = [&] {
    GilRelease release;
    return begin_starting(*here, host, std::move(*decoded), label);
  }();
  return nb::make_tuple(made.nodes, waits ? future_of(std::move(made.call), FutureMode::kOne, what) : nb::none());
}

// What each host is to stop of these, which it has started for this process.
std::map<NodeId, Agent::StopOrder> stop_orders(AnyRuntime& here, const std::vector<NodeId>& nodes) {
  std::map<NodeId, Agent::StopOrder> orders;
  for (const NodeId node : nodes) {
    if (const NodeId host = here.host_of(node); host != 0) orders[host].nodes.push_back(node);
  }
  return orders;
}

// -> Future of None: those that hosts have started for this process have ended, or who was to say so has not done so within
// `answer_limit` seconds more than they had; or has not said within `answer_limit` that it is there at all.
nb::object stop_on_hosts(std::vector<NodeId> nodes, const std::string& reason, double limit, double answer_limit) {
  AnyRuntime& here = runtime();
  auto ended = new_own_call(here);
  {
    GilRelease release;
    for (NodeId& node : nodes) node = here.node().successions().latest(node);
    auto orders = stop_orders(here, nodes);
    // One more than there are, for the case that there are none. shared: with the observers.
    auto left = std::make_shared<std::atomic<size_t>>(orders.size() + 1);
    const auto one_less = [left, ended, &driver = here.driver()] {
      if (left->fetch_sub(1) == 1) complete(*ended, driver);
    };
    const int64_t silent_ns = clock_ns() + ns_of(answer_limit);
    const int64_t deadline_ns = silent_ns + ns_of(limit);
    for (auto& [host, order] : orders) {
      order.reason = reason;
      order.grace_ns = ns_of(limit);
      const std::string body = Agent::encode(order);
      const ByteSpan bytes = as_byte_span(body.data(), body.size());
      auto call = Agent::ask(here.node(), {host}, Agent::kStop, bytes, "the stop of processes on a host", deadline_ns);
      // Once, of the two. shared: with the observers.
      const auto over = [one_less, done = std::make_shared<std::atomic<bool>>()] {
        if (!done->exchange(true)) one_less();
      };
      call->observe(1, over);
      ValueWriter none;
      encode(none, std::vector<NodeId>());
      auto there = Agent::ask(here.node(), {host}, Agent::kLook, none.written(), "a word of a host", silent_ns);
      const std::weak_ptr<PendingCall> answered = there;
      there->observe(1, [answered, over] {
        const auto word = answered.lock();
        if (word && word->reply(0)->header.kind != FrameKind::kReply) over();
      });
    }
    one_less();
    when_started(nodes, [&here, nodes, reason] { here.release(nodes, reason); });
  }
  return future_of(std::move(ended), FutureMode::kNothing, nb::none());
}

// What a process that is awaited on that host (0: here) is told, as its last argument.
std::string launch_address(NodeId host, NodeId node) {
  ProcessRuntime* here = require_machine("a launcher of one's own");
  if (here == nullptr) throw nb::python_error();
  if (host_number(host == 0 ? node : host) != host_number(here->node().id())) {
    PyErr_SetString(PyExc_NotImplementedError,
                    "proc_launcher: not for hosts over a network, which start their processes themselves");
    throw nb::python_error();
  }
  const std::string own = here->host().door_path();
  if (host == 0 || host == here->node().id()) return launch_door_address(own, node);
  return launch_door_address(launch_door_path(own.substr(0, own.rfind('/')), host), node);
}

// What is said of a process that is awaited on that host (0: here): LaunchNews.
void launch_news(NodeId host, NodeId node, uint32_t kind, std::optional<int> code, std::optional<int> signal,
                 bool core_dumped, const std::string& text, const std::string& tail) {
  LaunchNews news;
  news.kind = kind;
  news.status.known = code.has_value() || signal.has_value();
  news.status.code = code.value_or(0);
  news.status.signal = signal.value_or(0);
  news.core_dumped = core_dumped;
  news.text = shortened(text);
  news.tail = shortened(tail);
  AnyRuntime& here = runtime();
  GilRelease release;
  if (host == 0 || host == here.node().id()) {
    return with_host([&](AnyRuntime& process) { process.hear_news(node, std::move(news)); });
  }
  const std::string body = Agent::encode(node, news);
  Agent::ask(here.node(), {host}, Agent::kNews, as_byte_span(body.data(), body.size()), "news of a process");
}

}  // namespace

void bind_hosts(nb::module_& m) {
  m.attr("LAUNCHES_MAX") = LaunchOrder::kLaunchesMax;  // of one order, which is one host's
  m.def("offer_agent", &offer_agent);
  m.def("attach_hosts", &attach_hosts);
  m.def("go_through", &go_through);
  // Raises what attach_hosts would say of them.
  m.def("check_hosts", [](const std::vector<std::string>& texts, bool trusts_all, const nb::bytes& authorities,
                          const nb::bytes& key) { hostd_addresses(texts, "", trusts_all, authorities, key); });
  m.def("credentials_text", &credentials_text);
  // Where the token of this user's hosts lies unless somebody says otherwise.
  m.def("host_token_file", [] { return runtime_folder() + "/hosts.token"; });
  m.def("ask_hosts", &ask_hosts, nb::arg("hosts"), nb::arg("what"), nb::arg("to_end") = false);
  m.def("look_on_host", &look_on_host);
  m.def("start_on_host", &start_on_host);
  m.def("are_started", &are_started);
  // Whether they have come to be or not.
  m.def("await_started", [](const std::vector<NodeId>& nodes) {
    if (!await_started(nodes)) throw nb::python_error();
  });
  m.def("launch_address", &launch_address);
  m.def("launch_news", &launch_news, nb::arg("host"), nb::arg("node"), nb::arg("kind"), nb::arg("code").none(),
        nb::arg("signal").none(), nb::arg("core_dumped"), nb::arg("text"), nb::arg("tail"));
  m.def("stop_on_hosts", &stop_on_hosts);
  // `nodes` were started for this process by `host`.
  m.def("note_hosted", [](NodeId host, const std::vector<NodeId>& nodes) { runtime().note_hosted(host, nodes); });
}

}  // namespace monarch
