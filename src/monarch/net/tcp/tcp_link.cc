#include "monarch/net/tcp/tcp_link.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "monarch/base/forked.h"
#include "monarch/net/tcp/tcp_address.h"

namespace monarch {

namespace {

// A control frame waits for at most so much that has its place already.
constexpr uint64_t kCommitMax = 512 << 10;
// The less there is to be written, the less goes at a time, so that the other side, which deciphers while this one
// enciphers, does not wait long for the first bytes, nor is left with many: 1 MiB arrives a quarter sooner.
constexpr uint64_t kWriteMin = 48 << 10;  // whole records of TLS
constexpr uint64_t kWriteMax = 256 << 10;
constexpr uint64_t kWritesPerBacklog = 16;
constexpr int64_t kShortageRetryNs = 10'000'000;
// The silence is measured in ticks: a process that is stopped loses one of them, however long that takes.
constexpr int kTicks = 8;
constexpr int kTicksPerSign = 2;

// A choice: eight were faster still where each connection has little, but all are read by one thread, and each is a
// descriptor at both ends (docs/design/048).
constexpr int kStripes = 4;

// To a process of another machine, as far as its address says.
bool leads_elsewhere(const Channel& channel) {
  const SocketAddress peer = SocketAddress::of_peer(channel.fd());
  return (peer.family() == AF_INET || peer.family() == AF_INET6) && !peer.is_loopback();
}

}  // namespace

TcpLink::TcpLink(Reactor& reactor, LinkSink& sink, NodeId peer, int64_t silence_ns)
    : Link(peer), reactor_(reactor), sink_(sink), silence_ns_(silence_ns), reader_(peer, kControlSizeMax, this) {}

TcpLink::~TcpLink() {
  if (!over()) close();
}

void TcpLink::start(std::unique_ptr<Channel> channel) {
  {
    std::scoped_lock lock(delivery_mutex_, write_mutex_);
    if (stopped_) return;
    if (stripes_wanted_ == kAsNeeded) stripes_wanted_ = leads_elsewhere(*channel) ? kStripes : 0;
    main_ = std::make_unique<Stream>(std::move(channel));
    main_->watched = EPOLLIN;
    spill_.reset(new std::byte[kSpillBytes]);
    reactor_.add(main_->out.channel().fd(), EPOLLIN, [this, owner = weak_from_this()](uint32_t ready) {
      if (auto kept = owner.lock()) on_events(ready);
    });
    flush_main();
  }
  if (silence_ns_ != 0) {
    watch_silence();
    reactor_.add_pulsed(weak_from_this());
  }
  // What came with the last word of the greeting, and epoll does not tell of.
  reactor_.post([owner = weak_from_this()] {
    if (auto kept = owner.lock()) kept->on_events(EPOLLIN);
  });
}

// ---- Writing ----

bool TcpLink::send_on(bool control, const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) {
  if (in_forked_child() || closed()) return false;
  std::shared_ptr<OutRecord> record = OutRecord::make(outgoing, keeper != nullptr);
  record->leave_out(begun);
  const uint64_t size = record->left;
  record->keeper = std::move(keeper);
  std::lock_guard lock(write_mutex_);
  if (stopped_ || say_stripe_ || mute_) return false;
  if (broken_) return true;  // its end is being told
  (control ? control_ : data_).push_back(record);
  backlog_ += size;
  if (!control && !stripes_.empty()) {
    flush_stripes();
  } else if (main_ && !main_->wants_room) {
    flush_main();
  }
  if (record->borrows && record.use_count() > 1) keep_rest(*record, size);
  return true;
}

// What has not gone is somebody else's until here. It gets the place in `bytes` that it was left.
void TcpLink::keep_rest(OutRecord& record, uint64_t size) {
  const auto keep = [&](iovec& piece, uint64_t left) {
    std::byte* const at = record.bytes.get() + (size - left);
    if (piece.iov_base == at) return;
    std::memcpy(at, piece.iov_base, piece.iov_len);
    piece.iov_base = at;
  };
  uint64_t left = record.left;
  for (size_t i = record.next; i < record.pieces.size(); ++i) {
    keep(record.pieces[i], left);
    left -= record.pieces[i].iov_len;
  }
  if (main_) main_->out.each_piece(record, keep);
  for (const auto& stripe : stripes_) stripe->out.each_piece(record, keep);
}

bool TcpLink::send(const Outgoing& outgoing) { return send_on(false, outgoing, nullptr); }
bool TcpLink::send_control(const Outgoing& outgoing) { return send_on(true, outgoing, nullptr); }
bool TcpLink::send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) {
  return send_on(false, outgoing, std::move(keeper));
}
bool TcpLink::send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) {
  return send_on(false, outgoing, std::move(keeper), begun);
}

void TcpLink::commit_chunks() {
  ChunkOutput& out = main_->out;
  while (out.committed() < kCommitMax) {
    if (!control_.empty()) {
      out.add_chunk(ChunkLane::kControl, control_);
    } else if (!data_.empty() && stripes_.empty()) {
      out.add_chunk(ChunkLane::kData, data_);
    } else {
      if (std::exchange(say_stripe_, false)) {
        out.add_word(ChunkLane::kStripe);
        mute_ = true;
      }
      if (say_alive_ && !mute_ && out.empty()) out.add_word(ChunkLane::kAlive);
      break;
    }
  }
  say_alive_ = false;
}

// False: not now.
bool TcpLink::write(Stream& stream) {
  const uint64_t backlog = backlog_.load(std::memory_order_relaxed);
  uint64_t written = 0;
  switch (stream.out.write(std::clamp(backlog / kWritesPerBacklog, kWriteMin, kWriteMax), &written)) {
    case ChunkOutput::Written::kSome:
      stream.spoken = true;
      backlog_ -= written;
      return true;
    case ChunkOutput::Written::kNoRoom:
      want_room(stream, true);
      return false;
    case ChunkOutput::Written::kShortage:
      retry_later(stream);
      return false;
    case ChunkOutput::Written::kBroken:
      broken_ = true;
      if (!stripes_.empty()) {  // whoever reads it need not hear of it
        reactor_.post([owner = weak_from_this()] {
          if (auto kept = owner.lock()) kept->peer_died({ErrorCode::kClosed, "one of its connections broke"});
        });
      }
      main_->out.clear();
      for (const auto& stripe : stripes_) stripe->out.clear();
      data_.clear();
      control_.clear();
      backlog_ = 0;
      return false;
  }
  return false;
}

void TcpLink::flush_main() {
  if (broken_) return;
  Channel& channel = main_->out.channel();
  if (!channel.flush()) return want_room(*main_, true);
  for (uint64_t start = backlog_; start - backlog_ < kBytesPerEvent;) {
    commit_chunks();
    if (main_->out.empty()) return want_room(*main_, channel.wants_room());
    if (!write(*main_)) return;
  }
  want_room(*main_, true);
}

// A chunk after the other, each by the next stripe that has room; what is small stays with one.
void TcpLink::flush_stripes() {
  if (broken_) return;
  const uint64_t start = backlog_;
  for (size_t idle = 0; idle < stripes_.size();) {
    Stream& stripe = *stripes_[next_stripe_];
    const bool full = start - backlog_ >= kBytesPerEvent;
    const bool has = !stripe.out.empty() || !data_.empty();
    if (has && full && !stripe.shortage) want_room(stripe, true);  // the reactor goes on
    if (!has || full || stripe.wants_room || stripe.shortage) {
      ++idle;
    } else {
      idle = 0;
      uint32_t size = ChunkOutput::kChunkBytes;
      if (stripe.out.empty()) size = stripe.out.add_stripe_chunk(stripe_chunks_sent_++, data_);
      while (!stripe.out.empty() && write(stripe)) continue;
      if (stripe.out.empty() && stripe.out.channel().wants_room()) want_room(stripe, true);
      if (size < ChunkOutput::kChunkBytes && stripe.out.empty()) continue;
    }
    next_stripe_ = (next_stripe_ + 1) % stripes_.size();
  }
}

// A full channel is told by epoll when it has room; nothing tells of the end of a shortage.
void TcpLink::want_room(Stream& stream, bool room) {
  stream.wants_room = room;
  watch(stream);
}

void TcpLink::watch(Stream& stream) {
  const uint32_t wanted = (stream.wants_input ? EPOLLIN : 0u) | (stream.wants_room ? EPOLLOUT : 0u);
  if (std::exchange(stream.watched, wanted) != wanted) reactor_.modify(stream.out.channel().fd(), wanted);
}

void TcpLink::retry_later(Stream& stream) {
  stream.shortage = &stream != main_.get();
  want_room(stream, false);
  if (std::exchange(retry_armed_, true)) return;
  reactor_.after(kShortageRetryNs, [owner = weak_from_this()] {
    auto kept = owner.lock();
    if (!kept) return;
    std::lock_guard lock(kept->write_mutex_);
    kept->retry_armed_ = false;
    if (kept->stopped_) return;
    for (const auto& stripe : kept->stripes_) stripe->shortage = false;
    kept->flush_main();
    kept->flush_stripes();
  });
}

// ---- Reading ----

void TcpLink::on_events(uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(write_mutex_);
    if (!stopped_) flush_main();
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  Error why{ErrorCode::kClosed, "the peer closed the connection"};
  {
    std::lock_guard delivery(delivery_mutex_);
    if (stopped_ || finished_ || reader_.is_stripe()) return;
    if (main_->ended && (events & (EPOLLERR | EPOLLHUP)) == 0) return;
    bool more = !main_->ended;
    for (uint64_t bytes = 0; more && bytes < kBytesPerEvent;) {
      errno = 0;
      if (read_some(&bytes)) {
        if (main_->out.channel().is_drained() || reader_.is_stripe()) return;
        continue;
      }
      if (is_no_room(errno) || is_shortage(errno)) return;
      more = false;
      if (errno != 0) why.message = std::string("the connection broke: ") + std::strerror(errno);
      if (errno == 0 && reader_.error().empty() && ends_later()) return;
    }
    if (stopped_ || finished_) return;
    if (!reader_.error().empty()) why = {ErrorCode::kMalformed, reader_.error()};
    if (more && main_->out.channel().has_input()) {
      reactor_.post([owner = weak_from_this()] {
        if (auto kept = owner.lock()) kept->on_events(EPOLLIN);
      });
    }
    if (more) return;
    if (why.code != ErrorCode::kMalformed) drain_stripes();
  }
  if (why.code == ErrorCode::kMalformed) log_malformed(why.message);
  finish(why);
}

// False: nothing came (errno), the stream is over (0), or makes no sense.
bool TcpLink::read_some(uint64_t* bytes) {
  const std::span<std::byte> direct = reader_.direct();
  const std::array<iovec, 2> into{iovec{direct.data(), direct.size()}, iovec{spill_.get(), kSpillBytes}};
  const bool worth_it = direct.size() >= kPieceMin;
  const ssize_t count = main_->out.channel().read(std::span(into).subspan(worth_it ? 0 : 1));
  if (count <= 0) return false;
  heard_ = true;
  *bytes += static_cast<uint64_t>(count);
  const size_t placed = worth_it ? std::min(static_cast<size_t>(count), direct.size()) : 0;
  const bool striped = reader_.is_striped();
  errno = 0;
  if (placed != 0 && !reader_.advance(placed, take_all())) return false;
  const ByteSpan spilled{spill_.get(), static_cast<size_t>(count) - placed};
  bool fed = reader_.feed(spilled, take_all());
  if (fed && reader_.is_stripe()) fed = said_stripe(spilled.last(reader_.rest()));
  if (fed && !striped && reader_.is_striped()) fed = go_on_striped();
  errno = 0;
  return fed && !finished_;
}

std::shared_ptr<std::byte> TcpLink::memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) {
  return finished_ || closed() ? nullptr : sink_.memory_for(*this, header, route, size);
}

void TcpLink::take(ChunkLane lane, MessagePtr message) {
  if (finished_ || closed()) return;
  lane == ChunkLane::kControl ? sink_.on_control(*this, std::move(message)) : sink_.on_frame(*this, std::move(message));
}

std::unique_ptr<RecordAssembler> TcpLink::take_begun() {
  finished_ = true;  // what is still to be read would be the rest of that
  return reader_.take_begun();
}

void TcpLink::drain() {
  std::lock_guard delivery(delivery_mutex_);
  if (!main_ || stopped_ || reader_.is_stripe()) return;
  for (uint64_t bytes = 0; bytes < kDrainMax && !main_->ended && !reader_.is_stripe() && read_some(&bytes);) continue;
  drain_stripes();
}

// ---- Its end ----

void TcpLink::peer_died(const Error& why) {
  if (in_forked_child()) return;
  reactor_.post([self = shared_from_this(), why] {
    self->drain();
    self->finish(why);
  });
}

void TcpLink::finish(const Error& why) {
  closed_.store(true, std::memory_order_release);
  if (finished_.exchange(true)) return;
  sink_.on_closed(*this, why);
  // Later: we may be inside of what calls us.
  if (auto self = weak_from_this().lock()) reactor_.post([self = std::move(self)] { self->close(); });
}

void TcpLink::close() {
  if (in_forked_child()) return;
  finished_ = true;
  closed_.store(true, std::memory_order_release);
  // On the reactor nothing can be under way but what calls this.
  std::unique_lock delivery(delivery_mutex_, std::defer_lock);
  if (!reactor_.on_reactor_thread()) delivery.lock();
  std::vector<std::unique_ptr<Stream>> streams;
  {
    std::lock_guard lock(write_mutex_);
    stopped_ = true;
    if (main_) streams.push_back(std::move(main_));
    std::move(stripes_.begin(), stripes_.end(), std::back_inserter(streams));
    stripes_.clear();
    stripe_of_ = nullptr;
    data_.clear();
    control_.clear();
    backlog_ = 0;
    for (const auto& stream : streams) reactor_.remove(stream->out.channel().fd());
  }
  for (const auto& stream : streams) {
    if (!silent_) linger(reactor_, stream->out.take_channel());
  }
  over_.store(true, std::memory_order_release);
}

// What was sent last still goes. A socket that is closed with something unread is reset, and that is lost with it: read on
// until the other side has closed too.
void TcpLink::linger(Reactor& reactor, std::unique_ptr<Channel> channel) {
  channel->end_output();
  const int fd = channel->fd();
  const auto left = std::make_shared<std::unique_ptr<Channel>>(std::move(channel));  // shared: by event and timer
  const auto end = [&reactor, left, fd] {
    if (!*left) return;
    reactor.remove(fd);
    left->reset();
  };
  const auto wanted = [left] { return (*left)->wants_room() ? EPOLLIN | EPOLLOUT : EPOLLIN; };
  reactor.add(fd, wanted(), [&reactor, left, fd, wanted, end](uint32_t) {
    std::byte ignored[16 << 10];
    const iovec into{ignored, sizeof ignored};
    if (!*left) return;
    static_cast<void>((*left)->flush());
    const ssize_t count = (*left)->read({&into, 1});
    if (count == 0 || (count < 0 && !is_no_room(errno) && !is_shortage(errno))) return end();
    reactor.modify(fd, wanted());
  });
  reactor.after(kLingerNs, end);
}

// ---- Silence ----

void TcpLink::on_pulse() {
  std::lock_guard lock(write_mutex_);
  if (stopped_) return;
  say_alive(true);
}

// write_mutex_ held. On each connection that has not said something since the last tick; `anyhow`: on the others, too.
void TcpLink::say_alive(bool anyhow) {
  if (!std::exchange(main_->spoken, false) || anyhow) {
    say_alive_ = true;
    if (!main_->wants_room) flush_main();
  }
  for (const auto& stripe : stripes_) {
    if (std::exchange(stripe->spoken, false) && !anyhow) continue;
    if (broken_ || !stripe->out.empty() || stripe->wants_room || stripe->shortage) continue;
    stripe->out.add_stripe_sign();
    while (!stripe->out.empty() && write(*stripe)) continue;
    if (stripe->out.empty() && stripe->out.channel().wants_room()) want_room(*stripe, true);
  }
}

void TcpLink::watch_silence() {
  reactor_.after(silence_ns_ / kTicks, [owner = weak_from_this()] {
    if (auto kept = owner.lock()) kept->on_tick();
  });
}

// Of those that are read: what is not in turn waits for another one, which is looked at.
bool TcpLink::is_stripe_silent() {
  std::lock_guard delivery(delivery_mutex_);
  bool silent = false;
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stream& stripe = *stripes_[i];
    stripe.silent_ticks = std::exchange(stripe.heard, false) || is_done(i) ? 0 : stripe.silent_ticks + 1;
    silent = silent || stripe.silent_ticks >= kTicks;
  }
  return silent;
}

// Reactor. What had come by now has been read before this.
void TcpLink::on_tick() {
  if (finished_ || stopped_) return;
  silent_ticks_ = std::exchange(heard_, false) ? 0 : silent_ticks_ + 1;
  if (silent_ticks_ >= kTicks) {
    silent_ = true;
    return finish({ErrorCode::kClosed, "nothing has come from it for " + std::to_string(silence_ns_ / 1'000'000) + " ms"});
  }
  if (is_stripe_silent()) {
    return finish({ErrorCode::kClosed, "nothing has come by one of its connections for " +
                                           std::to_string(silence_ns_ / 1'000'000) + " ms"});
  }
  if (++ticks_ % kTicksPerSign == 0) {
    std::lock_guard lock(write_mutex_);
    if (stopped_) return;
    say_alive(false);
  }
  watch_silence();
}

}  // namespace monarch
