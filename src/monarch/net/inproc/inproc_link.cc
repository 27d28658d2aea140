#include "monarch/net/inproc/inproc_link.h"

#include "monarch/loop/reactor.h"

namespace monarch {

InprocLink::Pair InprocLink::connect(const End& a, const End& b) {
  Pair pair{std::make_shared<InprocLink>(a, b.node), std::make_shared<InprocLink>(b, a.node)};
  pair.first->other_ = pair.second;
  pair.second->other_ = pair.first;
  pair.first->bell_index_ = a.driver.add(*pair.first);
  pair.second->bell_index_ = b.driver.add(*pair.second);
  MONARCH_CHECK(pair.first->bell_index_ < kBellRings && pair.second->bell_index_ < kBellRings);
  return pair;
}

bool InprocLink::send(const Outgoing& outgoing) {
  if (in_forked_child()) return false;
  std::shared_ptr<InprocLink> other = other_.lock();
  if (closed() || !other) return false;
  other->receive(Message::copy_of(outgoing, here_.node));
  return true;
}

void InprocLink::receive(MessagePtr message) {
  {
    std::lock_guard lock(mutex_);
    inbound_.push(std::move(message));
  }
  here_.driver.mark_ready(bell_index_);
}

bool InprocLink::send_control(const Outgoing& outgoing) {
  if (in_forked_child()) return false;
  std::shared_ptr<InprocLink> other = other_.lock();
  if (closed() || !other) return false;
  // shared: std::function must be copyable
  auto message = std::make_shared<MessagePtr>(Message::copy_of(outgoing, here_.node));
  other->here_.reactor.post([other, message] {
    if (!other->closed()) other->here_.sink.on_control(*other, std::move(*message));
  });
  return true;
}

void InprocLink::close() {
  if (in_forked_child()) return;
  if (torn_down_.exchange(true)) return;
  closed_.store(true, std::memory_order_release);
  here_.driver.remove(bell_index_);
  if (auto other = other_.lock()) other->peer_closed();
}

void InprocLink::peer_closed() {
  {
    std::lock_guard lock(mutex_);
    peer_gone_ = true;
  }
  here_.driver.mark_ready(bell_index_);
}

bool InprocLink::poll() {
  MessageQueue taken;
  bool gone;
  {
    std::lock_guard lock(mutex_);
    taken.take(inbound_);
    gone = peer_gone_;
  }
  while (!closed() && !taken.empty()) here_.sink.on_frame(*this, taken.pop());
  if (gone && !told_ && !closed()) {
    told_ = true;
    closed_.store(true, std::memory_order_release);
    here_.sink.on_closed(*this, Error{ErrorCode::kClosed, "the peer closed the connection"});
  }
  return false;
}

}  // namespace monarch
