#include "monarch/net/unix/unix_link.h"

#include "monarch/base/forked.h"
#include "monarch/base/log.h"

namespace monarch {

UnixLink::UnixLink(Reactor& reactor, LinkSink& sink, NodeId peer)
    : Link(peer), reactor_(reactor), sink_(sink),
      data_(reactor, peer, kRecordSizeMax, data_events()),
      control_(reactor, peer, kControlSizeMax, control_events()) {}

UnixLink::~UnixLink() {
  if (!over()) close();
}

SocketLane::Events UnixLink::data_events() {
  SocketLane::Events events;
  events.on_message = [this](SocketLane::Received received) {
    if (!closed()) sink_.on_frame(*this, std::move(received.message));
  };
  events.on_closed = [this](const Error& why) {
    if (why.code == ErrorCode::kMalformed) {
      log_malformed(why.message);
    }
    finish(why);
  };
  return events;
}

SocketLane::Events UnixLink::control_events() {
  SocketLane::Events events;
  events.on_message = [this](SocketLane::Received received) {
    if (!closed()) sink_.on_control(*this, std::move(received.message));
  };
  // The end is told by the data lane, behind the last frame. A peer that closes only its control socket has broken it;
  // one that says there what makes no sense is dropped.
  events.on_closed = [this](const Error& why) {
    if (why.code != ErrorCode::kMalformed) return;
    log_malformed(why.message);
    finish(why);
  };
  return events;
}

void UnixLink::start(UniqueFd data, UniqueFd control) {
  data_.start(std::move(data), weak_from_this());
  control_.start(std::move(control), weak_from_this());
}

bool UnixLink::send(const Outgoing& outgoing) {
  if (in_forked_child() || closed()) return false;
  data_.send(outgoing);
  return true;
}

bool UnixLink::send_control(const Outgoing& outgoing) {
  if (in_forked_child() || closed()) return false;
  control_.send(outgoing);
  return true;
}

void UnixLink::peer_died(const Error& why) {
  if (in_forked_child()) return;
  reactor_.post([self = shared_from_this(), why] {
    self->control_.drain();
    self->data_.drain();
    self->finish(why);
  });
}

void UnixLink::finish(const Error& why) {
  {
    std::lock_guard lock(finish_mutex_);
    closed_.store(true, std::memory_order_release);
    if (std::exchange(finished_, true)) return;
  }
  sink_.on_closed(*this, why);
  // Later: we may be inside one of our lanes.
  if (auto self = weak_from_this().lock()) reactor_.post([self = std::move(self)] { self->close(); });
}

void UnixLink::close() {
  if (in_forked_child()) return;
  {
    std::lock_guard lock(finish_mutex_);
    finished_ = true;
    closed_.store(true, std::memory_order_release);
  }
  data_.stop();
  control_.stop();
  over_.store(true, std::memory_order_release);
}

}  // namespace monarch
