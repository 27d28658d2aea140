#include "monarch/bulk/stream_door.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr int64_t kLookNs = 60'000'000'000;
constexpr int kShortageMs = 100;  // without descriptors the socket stays readable

void ring(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
}

}  // namespace

void StreamDoor::turn_away(Visitor& visitor) {
  visitor.stops = true;
  ring(visitor.stop.get());
}

Result<std::unique_ptr<StreamDoor>> StreamDoor::open(TcpTransport& network, StreamSockets& sockets,
                                                     const HelloIdentity& identity, Serve serve) {
  auto listener = network.listen(identity.job, identity.node);
  if (!listener) return listener.error();
  UniqueFd stop = sys::make_eventfd();
  if (!stop) return sys::shortage_error("listen for streams");
  std::unique_ptr<StreamDoor> door(
      new StreamDoor(network, sockets, identity, std::move(serve), std::move(*listener), std::move(stop)));
  const auto run = [](void* self) -> void* {
    static_cast<StreamDoor*>(self)->accept_all();
    return nullptr;
  };
  if (sys::start_thread(&door->thread_, run, door.get())) return door;
  door->stopped_ = true;
  return sys::shortage_error("listen for streams: no thread");
}

StreamDoor::StreamDoor(TcpTransport& network, StreamSockets& sockets, const HelloIdentity& identity, Serve serve,
                       UniqueFd listener, UniqueFd stop)
    : network_(network),
      sockets_(sockets),
      identity_(identity),
      serve_(std::move(serve)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      port_(network.place()->dial.port) {
  sockets_.add(listener_.get());
}

StreamDoor::~StreamDoor() {
  stop();
  sockets_.remove(listener_.get());
}

void StreamDoor::accept_all() {
  for (;;) {
    pollfd fds[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    poll(fds, 2, -1);
    if (fds[1].revents != 0) return;
    if (fds[0].revents == 0) continue;
    reap(false);
    UniqueFd socket = sys::accept(listener_.get());
    if (socket) {
      admit(std::move(socket));
    } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
      poll(fds + 1, 1, kShortageMs);
    }
  }
}

void StreamDoor::admit(UniqueFd socket) {
  auto channel = network_.admit(std::move(socket));
  UniqueFd stop = sys::make_eventfd();
  std::lock_guard lock(mutex_);
  if (!channel || !stop || visitors_.size() >= kStreamsMax + kUnprovedMax) return;
  const auto is_unproved = [](const Visitor& each) { return !each.proved && !each.over; };
  if (static_cast<size_t>(std::ranges::count_if(visitors_, is_unproved)) >= kUnprovedMax) {
    turn_away(*std::ranges::find_if(visitors_, is_unproved));
  }
  Visitor& visitor = visitors_.emplace_back();
  visitor.door = this;
  visitor.channel = std::move(*channel);
  visitor.stop = std::move(stop);
  const auto run = [](void* of) -> void* {
    auto& mine = *static_cast<Visitor*>(of);
    mine.door->run(mine);
    return nullptr;
  };
  if (!sys::start_thread(&visitor.thread, run, &visitor)) visitors_.pop_back();
}

void StreamDoor::run(Visitor& visitor) {
  serve(visitor);
  std::vector<std::function<void()>> on_over;
  {
    std::lock_guard lock(mutex_);
    on_over.swap(visitor.on_over);
    visitor.over = true;
  }
  for (const auto& each : on_over) each();
}

void StreamDoor::serve(Visitor& visitor) {
  const int64_t limit_ns = monotonic_ns() + kGreetNs;
  const auto look = [&visitor] { return visitor.stops ? 0 : monotonic_ns() + kLookNs; };
  StreamEnd end(std::move(visitor.channel), sockets_, visitor.stop.get(), look);
  auto peer = end.greet(HelloRole::kAcceptor, identity_, limit_ns);
  if (!peer) {
    if (peer.error().code == ErrorCode::kUnsupported || peer.error().code == ErrorCode::kMalformed) {
      log_line_limited("refused a stream", "refused a stream of bytes of buffers: " + peer.error().message);
    }
    return;
  }
  {
    std::lock_guard lock(mutex_);
    visitor.proved = true;
    const auto is_proved = [](const Visitor& each) { return each.proved && !each.over; };
    if (static_cast<size_t>(std::ranges::count_if(visitors_, is_proved)) > kStreamsMax) return;
  }
  uint64_t number = 0;
  if (!end.receive(std::as_writable_bytes(std::span(&number, 1)), limit_ns)) return;
  {
    std::lock_guard lock(mutex_);
    visitor.number = number;
  }
  serve_(end, *peer);
}

// Those whose thread has ended, or will at once.
void StreamDoor::reap(bool all) {
  std::list<Visitor> over;
  {
    std::lock_guard lock(mutex_);
    for (auto at = visitors_.begin(); at != visitors_.end();) {
      const auto next = std::next(at);
      if (all) turn_away(*at);
      if (all || at->over) over.splice(over.end(), visitors_, at);
      at = next;
    }
  }
  for (Visitor& each : over) pthread_join(each.thread, nullptr);
}

void StreamDoor::close_stream(uint64_t number, std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    const auto is_it = [number](const Visitor& each) { return each.number == number && !each.over; };
    const auto found = std::ranges::find_if(visitors_, is_it);
    if (found != visitors_.end()) {
      found->on_over.push_back(std::move(done));
      turn_away(*found);
      return;
    }
  }
  done();
}

void StreamDoor::stop() {
  if (std::exchange(stopped_, true)) return;
  ring(stop_.get());
  pthread_join(thread_, nullptr);
  reap(true);
}

}  // namespace monarch
