#include "monarch/net/tcp/tcp_link.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

// What one event reads, or writes, at most: no peer keeps the reactor from the others.
constexpr uint64_t kBytesPerEvent = 4 << 20;
// Who ends a link has at most so much to read that was under way; what comes later was sent later.
constexpr uint64_t kDrainMax = 256 << 20;
constexpr size_t kSpillBytes = 64 << 10;
// A control frame waits for at most so much that has its place already.
constexpr uint64_t kCommitMax = 512 << 10;
constexpr uint32_t kChunkBytes = 256 << 10;
constexpr size_t kPiecesPerChunk = 128;
constexpr size_t kPiecesPerCall = 256;
// The less there is to be written, the less goes at a time, so that the other side, which deciphers while this one
// enciphers, does not wait long for the first bytes, nor is left with many: 1 MiB arrives a quarter sooner.
constexpr uint64_t kWriteMin = 48 << 10;  // whole records of TLS
constexpr uint64_t kWriteMax = 256 << 10;
constexpr uint64_t kWritesPerBacklog = 16;
// A record of so many bytes is copied as a whole; of a larger one the pieces of this size stay where they are.
constexpr uint64_t kFlatMax = 16 << 10;
constexpr size_t kPieceMin = 4 << 10;
// From here on there may be no memory for it.
constexpr uint64_t kLargeRecord = 64 << 10;
constexpr int64_t kShortageRetryNs = 10'000'000;
// The silence is measured in ticks: a process that is stopped loses one of them, however long that takes.
constexpr int kTicks = 8;
constexpr int kTicksPerSign = 2;
// How long what was sent last may take to arrive after a link was closed.
constexpr int64_t kLingerNs = 2'000'000'000;

bool is_shortage(int error) { return error == ENOBUFS || error == ENOMEM; }
bool is_no_room(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

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
    channel_ = std::move(channel);
    spill_.reset(new std::byte[kSpillBytes]);
    reactor_.add(channel_->fd(), EPOLLIN, [this, owner = weak_from_this()](uint32_t ready) {
      if (auto kept = owner.lock()) on_events(ready);
    });
    flush_locked();
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

std::shared_ptr<TcpLink::Record> TcpLink::make_record(const Outgoing& outgoing, bool kept) {
  const uint64_t size = record_size_of(outgoing, {});
  if (size > kLargeRecord && sys::must_fail(ENOMEM)) throw std::bad_alloc();
  auto record = std::make_shared<Record>();
  record->left = size;
  const bool flat = size <= kFlatMax;
  uint64_t outside = 0;  // bytes that stay where they are
  const auto stays = [flat](size_t count) { return !flat && count >= kPieceMin; };
  if (stays(outgoing.body.size())) outside += outgoing.body.size();
  for (const ByteSpan& part : outgoing.parts) outside += stays(part.size()) ? part.size() : 0;
  // Room for the whole of it, where the rest may have to be copied later; what is not written to costs nothing.
  record->bytes.reset(new std::byte[kept ? size - outside : size]);
  std::byte* at = record->bytes.get();
  encode_record(outgoing, {}, size, [&](const void* data, size_t count) {
    if (stays(count)) {
      record->pieces.push_back({const_cast<void*>(data), count});
      record->borrows = !kept;
      if (!kept) at += count;
      return;
    }
    std::memcpy(at, data, count);
    iovec* last = record->pieces.empty() ? nullptr : &record->pieces.back();
    if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == at) {
      last->iov_len += count;
    } else {
      record->pieces.push_back({at, count});
    }
    at += count;
  });
  return record;
}

// The peer has so much of it.
void TcpLink::leave_out(Record& record, uint64_t begun) {
  MONARCH_CHECK(begun < record.left);
  record.left -= begun;
  while (begun != 0) {
    iovec& piece = record.pieces[record.next];
    const size_t taken = std::min<uint64_t>(begun, piece.iov_len);
    begun -= taken;
    piece = {static_cast<std::byte*>(piece.iov_base) + taken, piece.iov_len - taken};
    if (piece.iov_len == 0) ++record.next;
  }
}

bool TcpLink::send_on(std::deque<std::shared_ptr<Record>>& lane, const Outgoing& outgoing,
                      std::shared_ptr<const void> keeper, uint64_t begun) {
  if (in_forked_child() || closed()) return false;
  const bool kept = keeper != nullptr;
  std::shared_ptr<Record> record = make_record(outgoing, kept);
  leave_out(*record, begun);
  const uint64_t size = record->left;
  record->keeper = std::move(keeper);
  std::lock_guard lock(write_mutex_);
  if (stopped_) return false;
  lane.push_back(record);
  backlog_ += size;
  if (channel_ && !waits_for_room_) flush_locked();
  if (record->borrows && record.use_count() > 1) keep_rest(*record, size);
  return true;
}

// What has not gone is somebody else's until here.
void TcpLink::keep_rest(Record& record, uint64_t size) {
  std::byte* const begin = record.bytes.get();
  std::byte* end = begin + size;
  const auto keep = [&](iovec& piece) {
    end -= piece.iov_len;
    auto* data = static_cast<std::byte*>(piece.iov_base);
    if (data == end) return;
    std::memcpy(end, data, piece.iov_len);
    piece.iov_base = end;
  };
  for (size_t i = record.pieces.size(); i > record.next; --i) keep(record.pieces[i - 1]);
  for (size_t i = pieces_.size(); i > 0; --i) {
    Piece& piece = pieces_[i - 1];
    if (piece.record.get() == &record) keep(piece.bytes);
  }
}

bool TcpLink::send(const Outgoing& outgoing) { return send_on(data_, outgoing, nullptr); }
bool TcpLink::send_control(const Outgoing& outgoing) { return send_on(control_, outgoing, nullptr); }
bool TcpLink::send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) {
  return send_on(data_, outgoing, std::move(keeper));
}
bool TcpLink::send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) {
  return send_on(data_, outgoing, std::move(keeper), begun);
}

void TcpLink::commit_header(ChunkLane lane, uint32_t size) {
  Piece& piece = pieces_.emplace_back();
  piece.header = encode_chunk(lane, size);
  piece.bytes = {piece.header.data(), kChunkHeader};
  committed_ += kChunkHeader;
}

void TcpLink::commit_chunk(ChunkLane lane, std::deque<std::shared_ptr<Record>>& records) {
  commit_header(lane, 0);
  Piece& header = pieces_.back();
  uint32_t size = 0;
  for (size_t count = 0; !records.empty() && size < kChunkBytes && count < kPiecesPerChunk; ++count) {
    const std::shared_ptr<Record>& record = records.front();
    iovec& rest = record->pieces[record->next];
    const size_t taken = std::min<size_t>(rest.iov_len, kChunkBytes - size);
    Piece& piece = pieces_.emplace_back();
    piece.bytes = {rest.iov_base, taken};
    piece.record = record;
    size += static_cast<uint32_t>(taken);
    record->left -= taken;
    rest = {static_cast<std::byte*>(rest.iov_base) + taken, rest.iov_len - taken};
    if (rest.iov_len == 0) ++record->next;
    if (record->next == record->pieces.size()) records.pop_front();
  }
  header.header = encode_chunk(lane, size);
  committed_ += size;
}

void TcpLink::commit_chunks() {
  while (committed_ < kCommitMax) {
    if (!control_.empty()) {
      commit_chunk(ChunkLane::kControl, control_);
    } else if (!data_.empty()) {
      commit_chunk(ChunkLane::kData, data_);
    } else {
      if (say_alive_ && committed_ == 0) commit_header(ChunkLane::kAlive, 0);
      break;
    }
  }
  say_alive_ = false;
}

// False: not now.
bool TcpLink::write_pieces() {
  std::array<iovec, kPiecesPerCall> batch;
  size_t count = 0;
  uint64_t room = std::clamp(backlog_.load(std::memory_order_relaxed) / kWritesPerBacklog, kWriteMin, kWriteMax);
  for (auto piece = pieces_.begin(); piece != pieces_.end() && count < batch.size() && room != 0; ++piece) {
    iovec& bytes = batch[count++] = piece->bytes;
    bytes.iov_len = std::min<size_t>(bytes.iov_len, room);
    room -= bytes.iov_len;
  }
  const ssize_t written = channel_->write({batch.data(), count});
  if (written < 0 && is_no_room(errno)) return wait_for_room(true), false;
  if (written < 0 && is_shortage(errno)) return retry_later(), false;
  if (written < 0) {  // it is broken: its reader says so
    pieces_.clear();
    data_.clear();
    control_.clear();
    committed_ = 0;
    backlog_ = 0;
    return false;
  }
  spoken_ = true;
  for (auto left = static_cast<size_t>(written); left != 0;) {
    Piece& front = pieces_.front();
    const size_t taken = std::min(left, front.bytes.iov_len);
    left -= taken;
    committed_ -= taken;
    if (front.record) backlog_ -= taken;
    if (taken == front.bytes.iov_len) {
      pieces_.pop_front();
    } else {
      front.bytes = {static_cast<std::byte*>(front.bytes.iov_base) + taken, front.bytes.iov_len - taken};
    }
  }
  return true;
}

void TcpLink::flush_locked() {
  if (!channel_->flush()) return wait_for_room(true);
  for (uint64_t start = backlog_; start - backlog_ < kBytesPerEvent;) {
    commit_chunks();
    if (pieces_.empty()) return wait_for_room(channel_->wants_room());
    if (!write_pieces()) return;
  }
  wait_for_room(true);
}

// A full channel is told by epoll when it has room; nothing tells of the end of a shortage.
void TcpLink::wait_for_room(bool room) {
  if (std::exchange(waits_for_room_, room) == room) return;
  reactor_.modify(channel_->fd(), room ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void TcpLink::retry_later() {
  wait_for_room(false);
  if (std::exchange(retry_armed_, true)) return;
  reactor_.after(kShortageRetryNs, [owner = weak_from_this()] {
    auto kept = owner.lock();
    if (!kept) return;
    std::lock_guard lock(kept->write_mutex_);
    kept->retry_armed_ = false;
    if (!kept->stopped_) kept->flush_locked();
  });
}

// ---- Reading ----

void TcpLink::on_events(uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(write_mutex_);
    if (!stopped_) flush_locked();
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  Error why{ErrorCode::kClosed, "the peer closed the connection"};
  {
    std::lock_guard delivery(delivery_mutex_);
    if (stopped_ || finished_) return;
    bool more = true;
    for (uint64_t bytes = 0; more && bytes < kBytesPerEvent;) {
      errno = 0;
      if (read_some(&bytes)) {
        if (channel_->is_drained()) return;
        continue;
      }
      if (is_no_room(errno) || is_shortage(errno)) return;
      more = false;
      if (errno != 0) why.message = std::string("the connection broke: ") + std::strerror(errno);
    }
    if (stopped_ || finished_) return;
    if (!reader_.error().empty()) why = {ErrorCode::kMalformed, reader_.error()};
    if (more && channel_->has_input()) {
      reactor_.post([owner = weak_from_this()] {
        if (auto kept = owner.lock()) kept->on_events(EPOLLIN);
      });
    }
    if (more) return;
  }
  if (why.code == ErrorCode::kMalformed) log_malformed(why.message);
  finish(why);
}

// False: nothing came (errno), the stream is over (0), or makes no sense.
bool TcpLink::read_some(uint64_t* bytes) {
  const std::span<std::byte> direct = reader_.direct();
  const std::array<iovec, 2> into{iovec{direct.data(), direct.size()}, iovec{spill_.get(), kSpillBytes}};
  const bool worth_it = direct.size() >= kPieceMin;
  const ssize_t count = channel_->read(std::span(into).subspan(worth_it ? 0 : 1));
  if (count <= 0) return false;
  heard_ = true;
  *bytes += static_cast<uint64_t>(count);
  const auto take_one = [this](ChunkLane lane, MessagePtr message) { take(lane, std::move(message)); };
  const size_t placed = worth_it ? std::min(static_cast<size_t>(count), direct.size()) : 0;
  errno = 0;
  if (placed != 0 && !reader_.advance(placed, take_one)) return false;
  const bool fed = reader_.feed({spill_.get(), static_cast<size_t>(count) - placed}, take_one);
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
  if (!channel_ || stopped_) return;
  for (uint64_t bytes = 0; bytes < kDrainMax && read_some(&bytes);) continue;
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
  std::unique_ptr<Channel> channel;
  {
    std::lock_guard lock(write_mutex_);
    stopped_ = true;
    channel = std::move(channel_);
    data_.clear();
    control_.clear();
    pieces_.clear();
    backlog_ = 0;
    if (channel) reactor_.remove(channel->fd());
  }
  if (channel && !silent_) linger(reactor_, std::move(channel));
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
  say_alive_ = true;
  if (!waits_for_room_) flush_locked();
}

void TcpLink::watch_silence() {
  reactor_.after(silence_ns_ / kTicks, [owner = weak_from_this()] {
    if (auto kept = owner.lock()) kept->on_tick();
  });
}

// Reactor. What had come by now has been read before this.
void TcpLink::on_tick() {
  if (finished_ || stopped_) return;
  silent_ticks_ = std::exchange(heard_, false) ? 0 : silent_ticks_ + 1;
  if (silent_ticks_ >= kTicks) {
    silent_ = true;
    return finish({ErrorCode::kClosed, "nothing has come from it for " + std::to_string(silence_ns_ / 1'000'000) + " ms"});
  }
  if (++ticks_ % kTicksPerSign == 0) {
    std::lock_guard lock(write_mutex_);
    if (stopped_) return;
    if (!std::exchange(spoken_, false)) {
      say_alive_ = true;
      if (!waits_for_room_) flush_locked();
    }
  }
  watch_silence();
}

}  // namespace monarch
