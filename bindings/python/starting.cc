#include "starting.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "gil.h"
#include "monarch/actor/calls.h"
#include "monarch/base/random.h"
#include "monarch/host/agent.h"
#include "state.h"

namespace monarch {

namespace {

constexpr auto kSignalsEvery = std::chrono::milliseconds(50);

struct {
  std::atomic<size_t> count{0};  // of `nodes`
  std::mutex mutex;              // a leaf
  std::condition_variable fewer;
  std::unordered_set<NodeId> nodes;
  struct Later {
    std::vector<NodeId> nodes;
    std::function<void()> work;
  };
  std::vector<Later> later;
} starting;

bool has_any(const std::vector<NodeId>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](NodeId node) { return starting.nodes.contains(node); });
}

void add(const std::vector<NodeId>& nodes) {
  std::lock_guard lock(starting.mutex);
  starting.nodes.insert(nodes.begin(), nodes.end());
  starting.count = starting.nodes.size();
}

void remove(const std::vector<NodeId>& nodes) {
  std::vector<std::function<void()>> now;
  {
    std::lock_guard lock(starting.mutex);
    for (const NodeId node : nodes) starting.nodes.erase(node);
    starting.count = starting.nodes.size();
    starting.fewer.notify_all();
    std::erase_if(starting.later, [&now](auto& later) {
      if (has_any(later.nodes)) return false;
      now.push_back(std::move(later.work));
      return true;
    });
  }
  for (const auto& work : now) work();
}

// Of one that will never be: who it is.
Failure failure_of(const LaunchRequest& request, const std::string& why) {
  Failure failure(Failure::Kind::kNotStarted, why);
  failure.label = request.label;
  failure.mesh = request.output.mesh;
  failure.rank = request.output.rank;
  failure.coordinates = request.coordinates;
  return failure;
}

// A host that has ended has taken all of them along, which is known already.
void tell_of_refusal(ProcessRuntime& here, const LaunchOrder& order, const Starting& made) {
  const Message& reply = *made.call->reply(0);
  if (reply.header.kind == FrameKind::kReply) return;
  if (reply.header.kind == FrameKind::kReplyFailed && monarch::failure_of(reply).is_death()) return;
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    here.not_started(made.nodes[i], failure_of(order.launches[i], reply_text(reply)));
  }
}

}  // namespace

Starting begin_starting(ProcessRuntime& here, NodeId host, LaunchOrder order, const std::string& what) {
  Starting made;
  SystemRandom random;
  for (LaunchRequest& request : order.launches) {
    const NodeKey key = NodeKey::make(random, host_number(host));
    request.key = key.seed();
    made.nodes.push_back(key.id());
  }
  add(made.nodes);
  here.note_hosted(host, made.nodes);
  std::string bytes = encode(order);
  made.call = Agent::ask(here.node(), {host}, Agent::kStart, as_byte_span(bytes.data(), bytes.size()), what);
  std::fill(bytes.begin(), bytes.end(), '\0');
  for (LaunchRequest& request : order.launches) request.key.reset();
  // The runtime outlives its reactor, on which this runs. shared: a posted task must be copyable.
  auto kept = std::make_shared<std::pair<LaunchOrder, Starting>>(std::move(order), made);
  made.call->observe(1, [&here, kept] {
    here.timers().post([&here, kept] {
      tell_of_refusal(here, kept->first, kept->second);
      remove(kept->second.nodes);
    });
  });
  return made;
}

bool are_started(const std::vector<NodeId>& nodes) {
  if (starting.count == 0) return true;
  std::lock_guard lock(starting.mutex);
  return !has_any(nodes);
}

void when_started(const std::vector<NodeId>& nodes, std::function<void()> work) {
  {
    std::lock_guard lock(starting.mutex);
    if (has_any(nodes)) return starting.later.push_back({nodes, std::move(work)});
  }
  work();
}

bool await_started(const std::vector<NodeId>& nodes) {
  while (!are_started(nodes)) {
    if (PyErr_CheckSignals() != 0) return false;
    GilRelease release;
    std::unique_lock lock(starting.mutex);
    starting.fewer.wait_for(lock, kSignalsEvery, [&] { return !has_any(nodes); });
    if (state().finalizing) return true;
  }
  return true;
}

}  // namespace monarch
