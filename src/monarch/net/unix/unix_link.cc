#include "monarch/net/unix/unix_link.h"

#include "monarch/base/log.h"

namespace monarch {

namespace {
Outgoing outgoing_of(const Message& message, std::vector<ByteSpan>& parts) {
  for (const Part& part : message.parts) parts.emplace_back(part.data, part.size);
  return Outgoing{message.header, message.body, parts};
}
}  // namespace

void UnixLink::start(UniqueFd data, UniqueFd control) {
  SocketLane::Events data_events;
  data_events.on_message = [this](MessagePtr message, UniqueFd) { sink_.on_frame(*this, std::move(message)); };
  data_events.on_closed = [this](const Error& why) {
    if (why.code == ErrorCode::kMalformed) {
      log_line("dropped the link to a peer that sent a malformed frame: " + why.message);
    }
    finish(why);
  };
  SocketLane::Events control_events;
  control_events.on_message = [this](MessagePtr message, UniqueFd) { sink_.on_control(*this, std::move(message)); };
  // The end is told by the data lane, behind the last frame; a peer that closes only its control socket has broken it.
  control_events.on_closed = [](const Error&) {};
  std::lock_guard lock(mutex_);
  if (closed()) return;
  data_ = std::make_unique<SocketLane>(reactor_, std::move(data), peer(), kRecordSizeMax, std::move(data_events));
  control_ = std::make_unique<SocketLane>(reactor_, std::move(control), peer(), kControlSizeMax,
                                          std::move(control_events));
  for (MessagePtr& message : early_) {
    std::vector<ByteSpan> parts;
    data_->send(outgoing_of(*message, parts));
  }
  early_.clear();
  data_->start(weak_from_this());
  control_->start(weak_from_this());
}

bool UnixLink::send(const Outgoing& outgoing) {
  std::lock_guard lock(mutex_);
  if (closed()) return false;
  if (data_) {
    data_->send(outgoing);
  } else {
    early_.push_back(Message::copy_of(outgoing, 0));
  }
  return true;
}

bool UnixLink::send_control(const Outgoing& outgoing) {
  std::lock_guard lock(mutex_);
  if (closed() || !control_) return false;
  control_->send(outgoing);
  return true;
}

void UnixLink::peer_died(const Error& why) {
  reactor_.post([self = shared_from_this(), why] {
    SocketLane* data;
    {
      std::lock_guard lock(self->mutex_);
      data = self->data_.get();
    }
    while (data != nullptr && data->readable() && data->pump()) {
    }
    self->finish(why);
  });
}

void UnixLink::finish(const Error& why) {
  {
    std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    if (std::exchange(finished_, true)) return;
  }
  sink_.on_closed(*this, why);
  // Later: we may be inside one of our lanes.
  if (auto self = weak_from_this().lock()) reactor_.post([self = std::move(self)] { self->close(); });
}

void UnixLink::close() {
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
    closed_.store(true, std::memory_order_release);
    early_.clear();
  }
  if (data_) data_->stop();
  if (control_) control_->stop();
  over_.store(true, std::memory_order_release);
}

uint64_t UnixLink::backlog() const {
  std::lock_guard lock(mutex_);
  return data_ ? data_->backlog() : 0;
}

}  // namespace monarch
