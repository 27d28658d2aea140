#include "monarch/host/output/output_route.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "monarch/wire/value_codec.h"

namespace monarch {

namespace {

// How long a spawn waits for the pump to take earlier announcements.
constexpr int kRoomWaitMs = 100;
constexpr int kRoomTries = 10;

// Of descriptor 1 or 2 of this process, or of /dev/null where it has none.
UniqueFd own_stream(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  return UniqueFd(copy >= 0 ? copy : ::open("/dev/null", O_WRONLY | O_CLOEXEC));
}

auto fields(auto& request, auto& kind, auto& nodes, auto& parent, auto& mesh, auto& stream) {
  return std::tie(kind, nodes, parent, mesh, request.name.mesh, request.name.rank, request.name.prefix,
                  request.name.log_file, request.options.long_prefix, request.options.window_ns, request.options.drop,
                  stream, request.lines);
}

}  // namespace

bool send_output_request(int socket, const OutputRequest& request, const std::vector<int>& fds) {
  MONARCH_CHECK(fds.size() <= OutputRequest::kFdsMax && request.nodes.size() <= OutputRequest::kNodesMax);
  const auto kind = static_cast<uint8_t>(request.kind);
  const auto stream = static_cast<uint8_t>(request.stream);
  const std::vector<int64_t> nodes(request.nodes.begin(), request.nodes.end());
  const auto parent = static_cast<int64_t>(request.parent);
  const auto mesh = static_cast<int64_t>(request.mesh);
  ValueWriter writer;
  encode(writer, fields(request, kind, nodes, parent, mesh, stream));
  if (writer.failure() != nullptr || writer.size() > OutputRequest::kBytesMax) return errno = EINVAL, false;
  iovec iov{const_cast<std::byte*>(writer.data()), writer.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * OutputRequest::kFdsMax)] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
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

// Waits a little for room: a spawn of hundreds of processes is faster than the pump. ETOOMANYREFS: the kernel counts
// descriptors under way, of all sockets of this user.
bool OutputRoute::send(const OutputRequest& request, const std::vector<int>& fds) {
  if (!socket_) return false;
  for (int tries = 0; tries < kRoomTries; ++tries) {
    if (send_output_request(socket_.get(), request, fds)) return true;
    if (errno != EAGAIN && errno != ETOOMANYREFS && errno != ENOBUFS) return false;
    pollfd room{socket_.get(), static_cast<short>(errno == EAGAIN ? POLLOUT : 0), 0};
    poll(&room, 1, kRoomWaitMs / kRoomTries);
  }
  return false;
}

OutputRoute::Ends OutputRoute::open(NodeId node, NodeId parent, uint64_t mesh, const OutputName& name) {
  Ends ends;
  if (socket_) ends.route.reset(fcntl(socket_.get(), F_DUPFD_CLOEXEC, 3));
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  bool announced = false;
  if (socket_ && pipe2(out, O_CLOEXEC) == 0) {
    UniqueFd out_read(out[0]);
    ends.out.reset(out[1]);
    if (pipe2(err, O_CLOEXEC) == 0) {
      UniqueFd err_read(err[0]);
      ends.err.reset(err[1]);
      before_open_();
      OutputRequest request;
      request.kind = OutputRequest::kOpen;
      request.nodes = {node};
      request.parent = parent;
      request.mesh = mesh;
      request.name = name;
      announced = send(request, {out_read.get(), err_read.get()});
    }
  }
  if (!announced) {
    ends.out = own_stream(STDOUT_FILENO);
    ends.err = own_stream(STDERR_FILENO);
  }
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
    if (!send(request, {event_fd})) {
      return Error{ErrorCode::kUnavailable, std::string("cannot reach what shows the output of workers: ") +
                                                (socket_ ? std::strerror(errno) : "this process was forked")};
    }
    ++messages;
  }
  return messages;
}

Result<UniqueFd> OutputRoute::tail(NodeId node, OutputStream stream, uint32_t lines) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("no pipe: ") + std::strerror(errno)};
  }
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  OutputRequest request;
  request.kind = OutputRequest::kTail;
  request.nodes = {node};
  request.stream = stream;
  request.lines = lines;
  if (!send_output_request(socket_.get(), request, {write_end.get()})) {
    return Error{ErrorCode::kUnavailable, std::string("no answer: ") + std::strerror(errno)};
  }
  return read_end;
}

}  // namespace monarch
