// A host's agent: starts processes there, and stops them, for whoever asks. Who asks is their owner; the host object of the
// agent's process is their parent, which knows how they end. An actor of that process's node, without a thread: it works on
// the reactor, and no other language runs for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/well_known.h"
#include "monarch/host/any_runtime.h"
#include "monarch/host/start/launch.h"

namespace monarch {

class Agent final : public Cell {
 public:
  enum Method : uint32_t {
    kIsThere = 1,  // answers None, once the host is ready for orders
    kStart = 2,    // a LaunchOrder for processes of the asking one; answers the list of their nodes, or fails with why not
    kStop = 3,     // a StopOrder; answers None when they have ended. Others may ask meanwhile
    kEnd = 4,      // what outlives its clients here need not do so any more; answers None
    kNews = 5,     // what is said of a process that is awaited here, or was; answers None
    kLook = 6,     // nodes that the host has started; answers what the kernel says of each (host/stacks/process_stacks.h)
  };
  static ActorId id_of(NodeId host) { return well_known(host, WellKnown::kAgent); }

  struct StopOrder {
    std::vector<NodeId> nodes;  // others than those that the host has started are left out
    std::string reason;
    int64_t grace_ns = 0;  // then they are killed
  };
  static std::string encode(const StopOrder& order);
  static Result<StopOrder> decode_stop_order(ByteSpan bytes);

  static std::string encode(NodeId node, const LaunchNews& news);

  // Any thread. Asks the agents of these hosts the same; a rank for each. `what` is what that is called, for people. Those
  // that have not answered at `deadline_ns` are given up; 0: none is.
  static std::shared_ptr<PendingCall> ask(Node& node, const std::vector<NodeId>& hosts, Method method, ByteSpan body,
                                          const std::string& what, int64_t deadline_ns = 0);

  // The process of the host, which outlives it, or remove_cell() has come before.
  explicit Agent(AnyRuntime& process) : process_(process) {}

  // Any thread, once. What this host gives to all that is started there. Orders that came before wait until then. `on_end`
  // runs on the reactor at each kEnd.
  void offer(LaunchDefaults defaults, std::function<void()> on_end = [] {});

  void deliver(MessagePtr message) override;

 private:
  void handle(const std::shared_ptr<Message>& request);
  void start(const Message& request);
  void stop(const std::shared_ptr<Message>& request);
  void news(const Message& request);
  void look(const Message& request);
  void answer(const Message& request, ByteSpan value);

  Node& node() { return process_.node(); }

  AnyRuntime& process_;
  // Reactor only.
  std::optional<LaunchDefaults> defaults_;
  std::function<void()> on_end_;
  std::vector<std::shared_ptr<Message>> early_;  // shared: posted tasks must be copyable
};

}  // namespace monarch
