// How long a small cast takes until the last of many hosts has given it to its 8 actors: the code of sender and gateways
// is run and timed, one gateway for each size of a part of the tree; the network is a model, 20 us and 10 GB/s for each
// host, and what the kernel takes for each frame that is sent. Fan-out 0 is a star. Time: the critical path.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/trees.h"
#include "monarch/base/clock.h"
#include "monarch/loop/reactor.h"
#include "monarch/mesh/reduced.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/replies.h"
#include "monarch/wire/value.h"

namespace monarch::testing {
namespace {

constexpr int64_t kHopNs = 20'000;
constexpr int64_t kBytesPerUs = 10'000;
constexpr NodeId kScript = 1;
constexpr uint32_t kActors = 8;
constexpr int kRepeats = 5;

constexpr NodeId gateway(uint64_t host) { return host << kHostShift | 1; }

struct Sent {
  int64_t at_ns;
  uint64_t bytes;
  MessagePtr frame;
};

// Keeps a copy, as a session does.
struct TimedLink final : Link {
  TimedLink(NodeId peer, std::vector<Sent>& to) : Link(peer), sent(to) {}
  bool send(const Outgoing& outgoing) override { return send_kept(outgoing, nullptr); }
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override {
    MessagePtr copy = Message::copy_of(outgoing, kScript, std::move(keeper));
    const uint64_t bytes = copy->total_bytes();
    sent.push_back({monotonic_ns(), bytes, std::move(copy)});
    return true;
  }
  bool send_control(const Outgoing&) override { return true; }
  void peer_died(const Error&) override {}
  void close() override { closed_.store(true); }
  uint64_t backlog() const override { return 0; }
  uint64_t session() const override { return 1; }
  bool opened() const override { return true; }
  std::string_view transport() const override { return "timed"; }
  std::vector<Sent>& sent;
};

struct Timed {
  int64_t done_ns = 0;     // all that it has to do
  std::vector<Sent> sent;  // to other hosts
};

class Model {
 public:
  Model(uint32_t hosts, uint32_t fan_out, int64_t kernel_ns) : hosts_(hosts), fan_out_(fan_out), kernel_ns_(kernel_ns) {}

  // From the begin of the cast.
  int64_t critical_path_ns() {
    Timed best;
    for (int i = 0; i < kRepeats; ++i) {
      Timed timed = cast();
      if (i == 0 || timed.done_ns < best.done_ns) best = std::move(timed);
    }
    root_ns = best.done_ns;
    return arrive(best, 0);
  }
  int64_t root_ns = 0;

 private:
  std::unique_ptr<Node> make(NodeId id, std::vector<Sent>& sent, std::vector<Sent>& local) {
    Node::Hooks hooks;
    hooks.dial = [this, id, &sent, &local](NodeId to) {
      return std::make_shared<TimedLink>(to, host_number(to) == host_number(id) ? local : sent);
    };
    hooks.gateway_there = [](NodeId node) { return host_number(node) == 0 ? kScript : gateway(host_number(node)); };
    hooks.gateway_of = [id](NodeId node) -> NodeId {
      if (host_number(node) == host_number(id)) return 0;
      const NodeId there = host_number(node) == 0 ? kScript : gateway(host_number(node));
      return there == node ? 0 : there;
    };
    auto node = std::make_unique<Node>(id, sim_.driver(), sim_, std::move(hooks));
    const uint32_t from = fan_out_ == 0 ? UINT32_MAX : 2, width = std::max(fan_out_, kFanOutMin);
    node->set_cast_trees({.large_hosts = from, .large_fan_out = width, .small_hosts = from, .small_fan_out = width});
    return node;
  }

  Timed cast() {
    Timed timed;
    std::vector<Sent> local;
    const auto script = make(kScript, timed.sent, local);
    Members members;
    for (uint64_t host = 1; host <= hosts_; ++host) {
      for (uint64_t i = 0; i < kActors; ++i) members.ids.push_back({gateway(host) + 1 + i, 100});
    }
    for (int warm = 1; warm >= 0; --warm) {  // its routes are known the second time
      timed.sent.clear();
      Outgoing message{FrameHeader{}, as_byte_span("a small message", 15), {}};
      message.header.kind = FrameKind::kOneway;
      const int64_t begun_ns = monotonic_ns();
      script->cast(members, message, nullptr);
      timed.done_ns = monotonic_ns() - begun_ns;
      for (Sent& sent : timed.sent) sent.at_ns -= begun_ns;
    }
    return timed;
  }

  // When the last of those that it is sent to is done.
  int64_t arrive(const Timed& timed, int64_t begun_ns) {
    int64_t last_ns = begun_ns + timed.done_ns + static_cast<int64_t>(timed.sent.size()) * kernel_ns_;
    int64_t wire_ns = begun_ns, in_kernel_ns = 0;
    for (const Sent& sent : timed.sent) {
      in_kernel_ns += kernel_ns_;
      wire_ns = std::max(wire_ns, begun_ns + sent.at_ns + in_kernel_ns) +
                static_cast<int64_t>(sent.bytes) * 1000 / kBytesPerUs;
      last_ns = std::max(last_ns, wire_ns + kHopNs + passed_on_ns(*sent.frame));
    }
    return last_ns;
  }

  // From the arrival of this until the last behind it is done; by its size, which says how many those are.
  int64_t passed_on_ns(const Message& frame) {
    if (auto known = by_bytes_.find(frame.total_bytes()); known != by_bytes_.end()) return known->second;
    Timed best;
    for (int i = 0; i < kRepeats; ++i) {
      Timed timed = receive(frame);
      if (i == 0 || timed.done_ns < best.done_ns) best = std::move(timed);
    }
    const int64_t took_ns = arrive(best, 0);
    return by_bytes_[frame.total_bytes()] = took_ns;
  }

  Timed receive(const Message& frame) {
    Timed timed;
    std::vector<Sent> local;
    NodeId here = 0;
    if (frame.header.kind == FrameKind::kTreeCast) {
      here = decode_tree_cast(frame.body)->host(0).gateway;
    } else {
      here = gateway(host_number(decode_cast(frame.body)->targets[0].node));
    }
    const auto node = make(here, timed.sent, local);
    auto link = std::make_shared<TimedLink>(kScript, timed.sent);
    node->add_link(link);
    for (int warm = 1; warm >= 0; --warm) {
      timed.sent.clear(), local.clear();
      FrameHeader header = frame.header;
      header.flags = 0;
      std::string body(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
      if (header.kind == FrameKind::kTreeCast && warm == 0) {  // the second one to this host
        TreeHost first = decode_tree_cast(frame.body)->host(0);
        first.number += 1;
        std::memcpy(body.data() + 80, &first, sizeof first);
      }
      MessagePtr copy = Message::make(header, body, kScript);
      const int64_t begun_ns = monotonic_ns();
      node->on_frame(*link, std::move(copy));
      timed.done_ns = monotonic_ns() - begun_ns;
      for (Sent& sent : timed.sent) sent.at_ns -= begun_ns;
    }
    return timed;
  }

  const uint32_t hosts_, fan_out_;
  const int64_t kernel_ns_;
  SimWorld sim_{1};
  std::map<uint64_t, int64_t> by_bytes_;
};

void BM_CastToHosts(benchmark::State& state) {
  int64_t root_ns = 0;
  for (auto _ : state) {
    Model model(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)), state.range(2) * 1000);
    state.SetIterationTime(static_cast<double>(model.critical_path_ns()) / 1e9);
    root_ns = model.root_ns;
  }
  state.counters["root_us"] = static_cast<double>(root_ns) / 1000;
}
BENCHMARK(BM_CastToHosts)
    ->ArgNames({"hosts", "fan_out", "kernel_us"})
    ->ArgsProduct({{64, 1024, 12500}, {0, 4, 8, 16, 32, 64}, {0, 5}})
    ->Iterations(3)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// What a caller has to do with the answers of so many hosts of 8 actors each, of which each has combined its own, or
// (kGather) has put them side by side: from the first frame until the call is complete and reduced. `frames`: in so many
// they come, through a tree; 0: each host sends its own.
void BM_AnswersOfHosts(benchmark::State& state) {
  const auto hosts = static_cast<uint32_t>(state.range(0));
  const auto reducer = static_cast<Reducer>(state.range(1));
  const auto frame_count = state.range(2) == 0 ? hosts : static_cast<uint32_t>(state.range(2));
  SimWorld sim{1};
  std::vector<Sent> sent;
  Node::Hooks hooks;
  hooks.dial = [&sent](NodeId to) { return std::make_shared<TimedLink>(to, sent); };
  hooks.gateway_there = [](NodeId node) { return host_number(node) == 0 ? kScript : gateway(host_number(node)); };
  hooks.gateway_of = [](NodeId node) {
    const NodeId there = gateway(host_number(node));
    return node == there ? NodeId{0} : there;
  };
  Node script(kScript, sim.driver(), sim, std::move(hooks));
  auto members = std::make_shared<Members>();
  for (uint64_t host = 1; host <= hosts; ++host) {
    for (uint64_t i = 0; i < kActors; ++i) members->ids.push_back({gateway(host) + 1 + i, 100});
  }
  std::vector<std::shared_ptr<TimedLink>> links;
  for (uint64_t host = 1; host <= hosts; ++host) {
    links.push_back(std::make_shared<TimedLink>(gateway(host), sent));
    script.add_link(links.back());
  }
  ValueWriter value;
  value.integer(7);
  int64_t reduce_ns = 0;
  for (auto _ : state) {
    auto call = std::make_shared<PendingCall>(members);
    call->set_reducer(reducer);
    Outgoing message{FrameHeader{}, as_byte_span("a small message", 15), {}};
    message.header.kind = FrameKind::kRequest;
    script.cast(*members, message, call);
    std::vector<MessagePtr> frames;
    for (uint32_t i = 0; i < frame_count; ++i) {
      std::vector<ReplyEntry> entries;
      std::vector<ByteSpan> parts;
      const uint32_t first = kActors * (hosts * i / frame_count), end = kActors * (hosts * (i + 1) / frame_count);
      for (uint32_t rank = first; rank < end; ++rank) {
        const bool is_in_another = reducer != Reducer::kGather && rank > first;
        entries.push_back({rank, is_in_another ? uint32_t{kFlagReduce} : 0, is_in_another ? 0u : 1u, 0});
        if (!is_in_another) parts.push_back(value.written());
      }
      const std::string body = encode_replies(entries);
      Outgoing frame{FrameHeader{}, as_byte_span(body.data(), body.size()), parts};
      frame.header.kind = FrameKind::kReply;
      frame.header.dest = call->token();
      frame.header.rank = kEveryRank;
      frames.push_back(Message::copy_of(frame, gateway(1 + first / kActors)));
    }
    sent.clear();
    const int64_t begun_ns = monotonic_ns();
    for (MessagePtr& frame : frames) {
      Link& link = *links[host_number(frame->from) - 1];
      script.on_frame(link, std::move(frame));
    }
    if (!call->complete()) return state.SkipWithError("answers are missing");
    const int64_t reduced_ns = monotonic_ns();
    if (reducer != Reducer::kGather) benchmark::DoNotOptimize(reduce(*call).value);
    const int64_t done_ns = monotonic_ns();
    reduce_ns += done_ns - reduced_ns;
    state.SetIterationTime(static_cast<double>(done_ns - begun_ns) / 1e9);
  }
  const double reduce_us = static_cast<double>(reduce_ns) / 1e3;
  state.counters["reduce_us"] = benchmark::Counter(reduce_us, benchmark::Counter::kAvgIterations);
}
BENCHMARK(BM_AnswersOfHosts)
    ->ArgNames({"hosts", "reducer", "frames"})
    ->ArgsProduct({{64, 1024, 12500}, {static_cast<int>(Reducer::kSum), static_cast<int>(Reducer::kGather)}, {0, 8}})
    ->Iterations(10)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace monarch::testing
