#include "monarch/net/shm/shm_transport.h"

#include <sys/socket.h>

#include "monarch/base/system.h"

namespace monarch {

namespace {

struct Rings {
  UniqueFd fd;
  Mapping mapping;
};

Result<Rings> make_rings() {
  auto fd = make_shared_memory("monarch-ring", sizeof(RingPair));
  if (!fd) return fd.error();
  auto mapping = map_shared_memory(fd->get(), sizeof(RingPair));
  if (!mapping) return mapping.error();
  return Rings{std::move(*fd), std::move(*mapping)};
}

}  // namespace

class ShmTransport::Setup final : public LinkSetup {
 public:
  Setup(Driver& driver, OwnBell& bell) : driver_(driver), bell_(bell) {}

  Result<std::vector<int>> offer() override {
    side_ = 0;
    if (auto place = take_place(); !place) return place.error();
    auto rings = make_rings();
    if (!rings) return rings.error();
    rings_ = std::move(*rings);
    return std::vector<int>{rings_.fd.get(), bell_.page_fd.get(), bell_.event_fd.get()};
  }

  Result<std::vector<int>> accept(std::vector<UniqueFd> fds) override {
    side_ = 1;
    if (fds.size() != 3) return Error{ErrorCode::kMalformed, "an offer of shared memory without its descriptors"};
    auto rings = map_shared_memory(fds[0].get(), sizeof(RingPair));
    if (!rings) return rings.error();
    rings_.mapping = std::move(*rings);
    if (auto place = take_place(); !place) return place.error();
    if (auto taken = take_bell(std::move(fds[1]), std::move(fds[2])); !taken) return taken.error();
    return std::vector<int>{bell_.page_fd.get(), bell_.event_fd.get()};
  }

  Status agree(std::vector<UniqueFd> fds) override {
    if (fds.size() != 2) return Error{ErrorCode::kMalformed, "bad answer"};
    return take_bell(std::move(fds[0]), std::move(fds[1]));
  }

  void start(Link& link, std::unique_ptr<Channel> channel) override {
    static_cast<ShmLink&>(link).start({link.peer(), side_, std::move(rings_.mapping), std::move(peer_bell_),
                                       channel->take_socket(), std::move(place_)});
  }

 private:
  Status take_place() {
    auto place = RingPlace::take(driver_);
    if (!place) return place.error();
    place_ = std::move(*place);
    return Ok{};
  }
  Status take_bell(UniqueFd page_fd, UniqueFd event_fd) {
    auto bell = OwnBell::of_peer(std::move(page_fd), std::move(event_fd));
    if (!bell) return bell.error();
    peer_bell_ = std::move(*bell);
    return Ok{};
  }

  Driver& driver_;
  OwnBell& bell_;
  int side_ = 0;
  RingPlace place_;  // before anything is promised to the peer
  Rings rings_;
  PeerBell peer_bell_;
};

std::shared_ptr<Link> ShmTransport::new_link(LinkSink& sink, NodeId peer) {
  return std::make_shared<ShmLink>(context_, sink, peer);
}

std::unique_ptr<LinkSetup> ShmTransport::new_setup() { return std::make_unique<Setup>(context_.driver, bell_); }

Result<ChildEnds> ShmTransport::start_to_child(Link& link) {
  ChildEnds ends;
  auto place = RingPlace::take(context_.driver);
  if (!place) return place.error();
  UniqueFd pair[2];
  if (!sys::make_socket_pair(AF_UNIX, SOCK_STREAM, pair)) return sys::shortage_error("make sockets for a new process");
  ends.socket = std::move(pair[1]);
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  auto rings = make_rings();
  if (!rings) return rings.error();
  ends.data = std::move(rings->fd);
  ends.parent_bell = sys::duplicate(bell_.page_fd.get());
  ends.parent_event = sys::duplicate(bell_.event_fd.get());
  UniqueFd event = sys::duplicate(bell->event_fd.get());
  if (!ends.parent_bell || !ends.parent_event || !event) return sys::shortage_error("share the door bell");
  ends.bell = std::move(bell->page_fd);
  ends.event = std::move(bell->event_fd);
  static_cast<ShmLink&>(link).start({link.peer(), 0, std::move(rings->mapping),
                                     PeerBell{std::move(bell->page), std::move(event)}, std::move(pair[0]),
                                     std::move(*place)});
  return ends;
}

Status ShmTransport::start_to_parent(Link& link, ChildEnds ends) {
  auto rings = map_shared_memory(ends.data.get(), sizeof(RingPair));
  if (!rings) return rings.error();
  auto bell = OwnBell::of_peer(std::move(ends.parent_bell), std::move(ends.parent_event));
  if (!bell) return bell.error();
  static_cast<ShmLink&>(link).start({link.peer(), 1, std::move(*rings), std::move(*bell), std::move(ends.socket)});
  return Ok{};
}

}  // namespace monarch
