// How a host object tells the script's process what its workers print to: the pipes' read ends and who writes into them
// go over one socket, which every process of the job has inherited, to the pump (output_pump.h). So the lines of a
// worker's workers take no detour, and outlive the worker that started them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

// Who prints, for people.
struct OutputName {
  std::string mesh;       // the name of its mesh of processes
  int64_t rank = -1;      // in that; -1: the mesh is one process without dimensions
  bool prefix = true;     // whether its lines say who printed them
  // A file for all of its host, that gets its lines too: its path without the end, which says which script it is of. With a
  // "+" in front: the file of the process that starts it, since that is on the same host, if it has one. Empty: none.
  std::string log_file;
};

// How the lines of a process are shown.
struct OutputOptions {
  bool long_prefix = false;  // "[host node] [rank] line"
  int64_t window_ns = 0;     // lines of the same mesh within this time are folded; 0: none
  bool drop = false;         // when the script's reader is slow: lines are dropped, rather than that writers wait
};

enum class OutputStream : uint8_t { kStdout = 0, kStderr = 1 };

// One message on the socket.
struct OutputRequest {
  enum Kind : uint8_t {
    kOpen,     // a process is about to start: two descriptors, the pipes of its stdout and stderr
    kOptions,  // one descriptor, an eventfd that is written when all that was printed before is out
    kTail,     // one descriptor, a pipe that gets the last lines of a stream
  };
  Kind kind = kOpen;
  std::vector<NodeId> nodes;  // whom it is about
  NodeId parent = 0;          // kOpen: who starts it
  uint64_t mesh = 0;          // kOpen: an id that its mesh has for itself
  OutputName name;            // kOpen
  OutputOptions options;      // kOptions
  OutputStream stream = OutputStream::kStderr;  // kTail
  uint32_t lines = 0;         // kTail

  static constexpr size_t kFdsMax = 2;
  static constexpr size_t kBytesMax = 64 << 10;
  static constexpr size_t kNodesMax = 4096;  // of one message
};

// Without descriptors. Nothing: it is too large.
std::string encode_output_request(const OutputRequest& request);
// Non-blocking sockets. False: the peer is gone or has no room (errno).
bool send_output_request(int socket, const OutputRequest& request, const std::vector<int>& fds);
// nullopt: nothing there. An error: what came is no request.
Result<OutputRequest> decode_output_request(std::span<const std::byte> bytes, size_t fd_count);

// Any thread. Made of the socket's end that this process has.
class OutputRoute {
 public:
  // `before_open` runs each time before a process is announced; where it fails, none is.
  explicit OutputRoute(UniqueFd socket = {}, std::function<Status()> before_open = [] { return Status(Ok{}); })
      : socket_(std::move(socket)), before_open_(std::move(before_open)) {}

  struct Ends {
    UniqueFd out, err;  // what the process writes into
    UniqueFd route;     // for its own workers
  };
  // Announces a process that is about to start. Never waits; kUnavailable: not now (no descriptors, or the pump has others
  // to see to first).
  Result<Ends> open(NodeId node, NodeId parent, uint64_t mesh, const OutputName& name);
  // For a process that cannot be announced: it prints to what this process prints to.
  Result<Ends> without_announcement() const;

  // The eventfd counts up to the returned number when the change is made and all that was printed before is out. Waits a
  // little for room; not on the reactor.
  Result<int64_t> set_options(const std::vector<NodeId>& nodes, const OutputOptions& options, int event_fd);
  // The last lines that `node`, which has ended, has printed: to be read from the descriptor until its end.
  Result<UniqueFd> tail(NodeId node, OutputStream stream, uint32_t lines);

  // In a child that fork() made.
  void after_fork_in_child() { socket_.reset(); }

 private:
  UniqueFd socket_;
  std::function<Status()> before_open_;
};

}  // namespace monarch
