#include "monarch/net/unix/unix_transport.h"

#include <sys/socket.h>

#include "monarch/base/system.h"
#include "monarch/net/unix/unix_link.h"

namespace monarch {

namespace {
bool is_stream_socket(int fd) {
  int domain = 0, type = 0;
  socklen_t size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
         getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}
}  // namespace

// The dialer makes the pair for the data lane; the socket of the hello becomes the control lane.
class UnixTransport::Setup final : public LinkSetup {
 public:
  Result<std::vector<int>> offer() override {
    UniqueFd pair[2];
    if (!sys::make_socket_pair(AF_UNIX, SOCK_STREAM, pair)) return sys::shortage_error("make sockets for a link");
    data_ = std::move(pair[0]);
    theirs_ = std::move(pair[1]);
    return std::vector<int>{theirs_.get()};
  }
  Result<std::vector<int>> accept(std::vector<UniqueFd> fds) override {
    if (fds.size() != 1) return Error{ErrorCode::kMalformed, "an offer of sockets without its descriptor"};
    if (!is_stream_socket(fds[0].get())) return Error{ErrorCode::kMalformed, "an offer of what is no socket"};
    data_ = std::move(fds[0]);
    return std::vector<int>{};
  }
  Status agree(std::vector<UniqueFd> fds) override {
    theirs_.reset();
    if (!fds.empty()) return Error{ErrorCode::kMalformed, "bad answer"};
    return Ok{};
  }
  void start(Link& link, std::unique_ptr<Channel> channel) override {
    static_cast<UnixLink&>(link).start(std::move(data_), channel->take_socket());
  }

 private:
  UniqueFd data_, theirs_;
};

std::shared_ptr<Link> UnixTransport::new_link(LinkSink& sink, NodeId peer) {
  return std::make_shared<UnixLink>(reactor_, sink, peer);
}

std::unique_ptr<LinkSetup> UnixTransport::new_setup() { return std::make_unique<Setup>(); }

Result<ChildEnds> UnixTransport::start_to_child(Link& link) {
  ChildEnds ends;
  UniqueFd control[2], data[2];
  if (!sys::make_socket_pair(AF_UNIX, SOCK_STREAM, control) || !sys::make_socket_pair(AF_UNIX, SOCK_STREAM, data)) {
    return sys::shortage_error("make sockets for a new process");
  }
  auto bell = OwnBell::make();  // its threads wait at one whatever its links are
  if (!bell) return bell.error();
  ends.parent_bell = sys::duplicate(bell_.page_fd.get());
  ends.parent_event = sys::duplicate(bell_.event_fd.get());
  if (!ends.parent_bell || !ends.parent_event) return sys::shortage_error("share the door bell");
  ends.socket = std::move(control[1]);
  ends.data = std::move(data[1]);
  ends.bell = std::move(bell->page_fd);
  ends.event = std::move(bell->event_fd);
  static_cast<UnixLink&>(link).start(std::move(data[0]), std::move(control[0]));
  return ends;
}

Status UnixTransport::start_to_parent(Link& link, ChildEnds ends) {
  static_cast<UnixLink&>(link).start(std::move(ends.data), std::move(ends.socket));
  return Ok{};
}

}  // namespace monarch
