// What takes the place of the pump (host/output/output_pump.h) on a host that is reached over a network: it reads the pipes
// of the processes there, and sends what they print, as it comes, to the script (output_inlet.h), whose pump makes lines
// of it.
//
// Bounded: of each stream so much is under way at once; when the script is slow, or out of reach for a while, its writer
// waits as on any pipe. Works on the reactor.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/host/output/line_tail.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/output/speakers.h"
#include "monarch/loop/reactor.h"

namespace monarch {

class OutputRelay {
 public:
  static Result<std::unique_ptr<OutputRelay>> make(Reactor& reactor);
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // A new descriptor for an OutputRoute; none: there is none to be had (errno).
  UniqueFd route_socket() const;
  // Once, before the reactor starts. Both outlive it.
  void begin(Node& node, NodeId script);

  // Not on the reactor. Returns when the script has all that was printed by processes that have ended, or after `limit_ns`.
  void finish(int64_t limit_ns);

  static constexpr size_t kChunkBytes = 64 << 10;
  static constexpr size_t kWindowBytes = 256 << 10;  // of one stream

 private:
  struct Stream {
    NodeId node = 0;
    OutputStream which = OutputStream::kStdout;
    UniqueFd pipe;  // none: its end was seen
    LineTail tail;
    size_t under_way = 0;
    bool watched = false;
  };
  struct Process {
    Stream streams[kStreams];
  };
  struct Ended {
    NodeId node;
    LineTail tails[kStreams];
  };

  explicit OutputRelay(Reactor& reactor) : reactor_(reactor) {}
  void take_requests();
  void handle(OutputRequest request, std::vector<UniqueFd> fds);
  void open(const OutputRequest& request, std::vector<UniqueFd> fds);
  void send_tail(const OutputRequest& request, int fd);
  size_t read_stream(Stream& stream);
  void drain(NodeId node, OutputStream which);
  void end_stream(Stream& stream);
  void watch(Stream& stream);
  void unwatch(Stream& stream);
  Stream* find(NodeId node, OutputStream which);
  void ask(uint32_t method, ByteSpan body, std::function<void()> answered);
  void note_progress();

  static constexpr size_t kEndedMax = 64;

  Reactor& reactor_;
  Node* node_ = nullptr;
  NodeId script_ = 0;
  UniqueFd sockets_[2];  // requests arrive at the first
  std::unordered_map<NodeId, std::unique_ptr<Process>> processes_;
  std::deque<Ended> ended_;
  std::vector<std::byte> scratch_;
  size_t under_way_ = 0;  // requests to the script

  std::mutex mutex_;  // a leaf
  std::condition_variable progress_;
  bool idle_ = true;  // all that was printed by those who have ended is there
};

}  // namespace monarch
