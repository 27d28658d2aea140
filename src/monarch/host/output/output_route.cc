#include "monarch/host/output/output_route.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "monarch/base/bytes.h"
#include "monarch/base/system.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

namespace {

// Of descriptor 1 or 2 of this process, or of /dev/null where it has none.
UniqueFd own_stream(int fd) {
  UniqueFd copy = sys::duplicate(fd);
  return copy ? std::move(copy) : sys::open_file("/dev/null", O_WRONLY);
}

// How long a change of options waits for the pump to take earlier requests.
constexpr int kRoomWaitMs = 10;
constexpr int kRoomTries = 10;

bool send_with_patience(int socket, const OutputRequest& request, int fd) {
  for (int tries = 0; tries < kRoomTries; ++tries) {
    if (send_output_request(socket, request, {fd})) return true;
    if (errno != EAGAIN && errno != ETOOMANYREFS && errno != ENOBUFS) return false;
    pollfd room{socket, static_cast<short>(errno == EAGAIN ? POLLOUT : 0), 0};
    poll(&room, 1, kRoomWaitMs);
  }
  return false;
}

auto fields(auto& request, auto& kind, auto& nodes, auto& parent, auto& mesh, auto& stream) {
  return std::tie(kind, nodes, parent, mesh, request.name.mesh, request.name.rank, request.name.prefix,
                  request.name.log_file, request.options.long_prefix, request.options.window_ns, request.options.drop,
                  stream, request.lines);
}

}  // namespace

std::string encode_output_request(const OutputRequest& request) {
  MONARCH_CHECK(request.nodes.size() <= OutputRequest::kNodesMax);
  const auto kind = static_cast<uint8_t>(request.kind);
  const auto stream = static_cast<uint8_t>(request.stream);
  const std::vector<int64_t> nodes(request.nodes.begin(), request.nodes.end());
  const auto parent = static_cast<int64_t>(request.parent);
  const auto mesh = static_cast<int64_t>(request.mesh);
  ValueWriter writer;
  encode(writer, fields(request, kind, nodes, parent, mesh, stream));
  if (writer.failure() != nullptr || writer.size() > OutputRequest::kBytesMax) return "";
  return std::string(reinterpret_cast<const char*>(writer.data()), writer.size());
}

bool send_output_request(int socket, const OutputRequest& request, const std::vector<int>& fds) {
  MONARCH_CHECK(fds.size() <= OutputRequest::kFdsMax);
  const std::string bytes = encode_output_request(request);
  if (bytes.empty()) return errno = EINVAL, false;
  return sys::send_message(socket, as_byte_span(bytes.data(), bytes.size()), fds, MSG_DONTWAIT) >= 0;
}

Result<OutputRequest> decode_output_request(std::span<const std::byte> bytes, size_t fd_count) {
  OutputRequest request;
  uint8_t kind = 0, stream = 0;
  std::vector<int64_t> nodes;
  int64_t parent = 0, mesh = 0;
  ValueReader reader(bytes);
  auto into = fields(request, kind, nodes, parent, mesh, stream);
  if (!decode_into(reader, into) || !reader.done()) return reader.error();
  const size_t fds_wanted = kind == OutputRequest::kOpen ? 2 : 1;
  if (kind > OutputRequest::kTail || stream > 1 || fd_count != fds_wanted ||
      (kind != OutputRequest::kOptions && nodes.size() != 1)) {
    return Error{ErrorCode::kMalformed, "not a request about output"};
  }
  request.kind = static_cast<OutputRequest::Kind>(kind);
  request.stream = static_cast<OutputStream>(stream);
  request.nodes.assign(nodes.begin(), nodes.end());
  request.parent = static_cast<NodeId>(parent);
  request.mesh = static_cast<uint64_t>(mesh);
  return request;
}

Result<OutputRoute::Ends> OutputRoute::without_announcement() const {
  Ends ends{own_stream(STDOUT_FILENO), own_stream(STDERR_FILENO), {}};
  if (socket_) ends.route = sys::duplicate(socket_.get());
  if (!ends.out || !ends.err || (socket_ && !ends.route)) return sys::shortage_error("give a new process its output");
  return ends;
}

Result<OutputRoute::Ends> OutputRoute::open(NodeId node, NodeId parent, uint64_t mesh, const OutputName& name) {
  if (!socket_) return without_announcement();
  Ends ends;
  UniqueFd out[2], err[2];
  ends.route = sys::duplicate(socket_.get());
  if (!ends.route || !sys::make_pipe(out) || !sys::make_pipe(err)) {
    return sys::shortage_error("make pipes for what a new process prints");
  }
  if (auto ready = before_open_(); !ready) return ready.error();
  OutputRequest request;
  request.kind = OutputRequest::kOpen;
  request.nodes = {node};
  request.parent = parent;
  request.mesh = mesh;
  request.name = name;
  // The kernel counts descriptors under way, of all sockets of this user: ETOOMANYREFS.
  if (!send_output_request(socket_.get(), request, {out[0].get(), err[0].get()})) {
    return sys::shortage_error("announce what a new process prints");
  }
  ends.out = std::move(out[1]);
  ends.err = std::move(err[1]);
  return ends;
}

Result<int64_t> OutputRoute::set_options(const std::vector<NodeId>& nodes, const OutputOptions& options,
                                         int event_fd) {
  int64_t messages = 0;
  for (size_t begin = 0; begin < nodes.size(); begin += OutputRequest::kNodesMax) {
    OutputRequest request;
    request.kind = OutputRequest::kOptions;
    const size_t end = std::min(nodes.size(), begin + OutputRequest::kNodesMax);
    request.nodes.assign(nodes.begin() + static_cast<ptrdiff_t>(begin), nodes.begin() + static_cast<ptrdiff_t>(end));
    request.options = options;
    if (!socket_ || !send_with_patience(socket_.get(), request, event_fd)) {
      return Error{ErrorCode::kUnavailable, std::string("cannot reach what shows the output of workers: ") +
                                                (socket_ ? std::strerror(errno) : "this process was forked")};
    }
    ++messages;
  }
  return messages;
}

Result<UniqueFd> OutputRoute::tail(NodeId node, OutputStream stream, uint32_t lines) {
  UniqueFd ends[2];
  if (!sys::make_pipe(ends, O_NONBLOCK)) return sys::shortage_error("ask for what a process has printed last");
  OutputRequest request;
  request.kind = OutputRequest::kTail;
  request.nodes = {node};
  request.stream = stream;
  request.lines = lines;
  if (!send_output_request(socket_.get(), request, {ends[1].get()})) {
    return Error{ErrorCode::kUnavailable, std::string("no answer: ") + std::strerror(errno)};
  }
  return std::move(ends[0]);
}

}  // namespace monarch
