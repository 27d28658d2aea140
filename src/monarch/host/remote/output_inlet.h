// The script's end of what is printed on hosts over a network (output_relay.h): it passes on to the pump, through pipes as
// processes of this machine have, what the gateways of those hosts send. An actor of the script's node, without a thread:
// it works on the reactor.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "monarch/actor/node.h"
#include "monarch/base/well_known.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/output/speakers.h"
#include "monarch/loop/reactor.h"

namespace monarch {

class OutputInlet final : public Cell {
 public:
  // All answer nothing, once it is done: so who sends has not more than so much under way.
  enum Method : uint32_t {
    kOpen = 1,     // an OutputRequest about a process of that host
    kBytes = 2,    // Piece, and what was printed
    kEnded = 3,    // Piece: nothing more comes of that stream
    kOptions = 4,  // an OutputRequest
  };
  struct Piece {
    NodeId node = 0;
    uint64_t stream = 0;  // OutputStream
  };
  static ActorId id_of(NodeId script) { return well_known(script, WellKnown::kOutput); }

  // `route` leads to the pump.
  OutputInlet(Reactor& reactor, Node& node, OutputRoute route, UniqueFd pump)
      : reactor_(reactor), node_(node), route_(std::move(route)), pump_(std::move(pump)) {}

  void deliver(MessagePtr message) override;

  // Reactor. This gateway has ended: nothing more comes of its host.
  void gone(NodeId gateway);
  // Not on the reactor, while the pump runs. Returns when the pump can have all that has come.
  void finish();

  // Around fork(): the child closes all that is open here.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  using Request = std::shared_ptr<Message>;
  struct Stream {
    UniqueFd pipe;
    std::deque<Request> waiting;
    size_t written = 0;  // of the first
    bool ended = false;
    bool watched = false;  // for room
  };
  struct Process {
    Stream streams[kStreams];
    bool opened = false;
  };

  void handle(const Request& request);
  void open(const Request& request);
  void try_open(NodeId node, const OutputRequest& request, const Request& message);
  void take_piece(const Request& request);
  void set_options(const Request& request, int tries);
  void flush(NodeId node, Process& process, Stream& stream);
  void check_ended(NodeId node);
  void answer(const Message& request);

  Reactor& reactor_;
  Node& node_;
  OutputRoute route_;
  UniqueFd pump_;

  std::mutex mutex_;  // over all below; held by the reactor while it works here
  std::condition_variable progress_;
  std::unordered_map<NodeId, std::unique_ptr<Process>> processes_;
  size_t waiting_ = 0;  // pieces that are not in a pipe yet
};

}  // namespace monarch
