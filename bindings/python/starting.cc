#include "starting.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "gil.h"
#include "monarch/actor/calls.h"
#include "monarch/base/forked.h"
#include "monarch/base/random.h"
#include "monarch/host/agent.h"
#include "state.h"

namespace monarch {

namespace {

constexpr auto kSignalsEvery = std::chrono::milliseconds(50);

struct Later {
  std::vector<NodeId> nodes;
  std::function<void()> work;
  size_t begin;  // as has_any() takes it
};

// Nodes leave it, and never come back.
struct {
  std::atomic<size_t> count{0};  // of `nodes`
  std::mutex mutex;              // a leaf
  std::condition_variable fewer;
  std::unordered_set<NodeId> nodes;
  std::vector<Later> later;
} starting;

// Whether it has any of these. `begin`: those before it are known to have left.
bool has_any(const std::vector<NodeId>& nodes, size_t* begin) {
  while (*begin < nodes.size() && !starting.nodes.contains(nodes[*begin])) ++*begin;
  return *begin < nodes.size();
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
      if (has_any(later.nodes, &later.begin)) return false;
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
  OPENSSL_cleanse(bytes.data(), bytes.size());
  for (LaunchRequest& request : order.launches) OPENSSL_cleanse(request.key->data(), request.key->size());
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

// A forked child asks nobody to start anything, and what its parent waits for it is refused as everything else.
bool are_started(const std::vector<NodeId>& nodes) {
  if (starting.count == 0 || in_forked_child()) return true;
  size_t begin = 0;
  std::lock_guard lock(starting.mutex);
  return !has_any(nodes, &begin);
}

void when_started(const std::vector<NodeId>& nodes, std::function<void()> work) {
  {
    std::lock_guard lock(starting.mutex);
    size_t begin = 0;
    if (has_any(nodes, &begin)) return starting.later.push_back({nodes, std::move(work), begin});
  }
  work();
}

bool await_started(const std::vector<NodeId>& nodes) {
  size_t begin = 0;
  for (bool there = are_started(nodes); !there && !state().finalizing;) {
    if (PyErr_CheckSignals() != 0) return false;
    GilRelease release;
    std::unique_lock lock(starting.mutex);
    there = starting.fewer.wait_for(lock, kSignalsEvery, [&] { return !has_any(nodes, &begin); });
  }
  return true;
}

}  // namespace monarch
