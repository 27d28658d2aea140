#include "monarch/net/shm/shm_link.h"

#include <cstring>

#include "monarch/base/copy.h"
#include "monarch/base/log.h"

namespace monarch {

namespace {
constexpr int kMessagesPerPoll = 512;
// Slabs are given back one by one while the ring has room; this many bytes are never kept back.
constexpr uint64_t kReleasedBytesMax = 1 << 20;
}  // namespace

// A slab of the peer in use here: goes back when the last view of it is gone; until then the mapping stays, even if the
// peer dies.
class ShmLink::Lease {
 public:
  Lease(std::shared_ptr<ShmLink> link, std::shared_ptr<Mapping> mapping, uint64_t location, uint64_t bytes)
      : link_(std::move(link)), mapping_(std::move(mapping)), location_(location), bytes_(bytes) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { link_->give_back_slab(location_, bytes_); }

 private:
  std::shared_ptr<ShmLink> link_;
  std::shared_ptr<Mapping> mapping_;
  const uint64_t location_;
  const uint64_t bytes_;
};

ShmLink::ShmLink(ShmContext context, LinkSink& sink, NodeId peer)
    : Link(peer), context_(std::move(context)), sink_(sink) {}

ShmLink::~ShmLink() { close(); }

void ShmLink::start(Setup setup) {
  MONARCH_CHECK(setup.peer == peer() && setup.rings.size() >= sizeof(RingPair));
  SocketLane::Events events;
  events.on_message = [this](MessagePtr message, UniqueFd fd) {
    on_control_message(std::move(message), std::move(fd));
  };
  events.on_closed = [this](const Error& why) { peer_died(why); };
  std::unique_lock life(life_mutex_);
  {
    std::lock_guard lock(send_mutex_);
    if (closed()) return;
    rings_ = std::move(setup.rings);
    bell_ = std::move(setup.bell);
    auto* pair = static_cast<RingPair*>(rings_.get());
    producer_.emplace(pair->rings[setup.side]);
    consumer_.emplace(pair->rings[1 - setup.side]);
    control_ = std::make_unique<SocketLane>(context_.reactor, std::move(setup.socket), peer(), kControlSizeMax,
                                            std::move(events));
    started_ = true;
    flush_overflow();
  }
  bell_index_ = context_.driver.add(*this);
  if (bell_index_ == kBellRings) {
    bell_index_ = kNoBellIndex;
    life.unlock();
    fail(Error{ErrorCode::kUnavailable, "this process has too many links"});
    return;
  }
  consumer_->attach(bell_index_);
  control_->start(weak_from_this());
  context_.driver.mark_ready(bell_index_);  // look once: what came before attach() rang no bell
}

// What the peer published before its end is delivered first: the leader drains the ring, then calls finish().
void ShmLink::peer_died(const Error& why) {
  bool connected;
  {
    std::lock_guard lock(send_mutex_);
    connected = started_;
  }
  if (!connected) return finish(why);  // nothing can have come from it
  {
    std::lock_guard lock(finish_mutex_);
    if (finished_ || peer_gone_) return;
    gone_why_ = why;
    peer_gone_.store(true, std::memory_order_seq_cst);
  }
  context_.driver.ring_self();
  context_.driver.poll_once();
}

void ShmLink::fail(const Error& why) { finish(why); }

void ShmLink::close() {
  {
    std::lock_guard lock(finish_mutex_);
    finished_ = true;
  }
  if (torn_down_.exchange(true)) return;
  drop_outbound();
  {
    std::lock_guard life(life_mutex_);
    if (control_) control_->stop();
    if (bell_index_ != kNoBellIndex) context_.driver.remove(bell_index_);
  }
  release_memory();
  over_.store(true, std::memory_order_release);
}

// After the driver has let go. What has been received keeps its part of the peer's arena mapped.
void ShmLink::release_memory() {
  std::scoped_lock lock(send_mutex_, view_mutex_);
  producer_.reset();
  consumer_.reset();
  rings_ = {};
  bell_ = {};
  released_ = {};
  view_ = {};
}

// Refuses further sends and takes back what the peer has not taken or given back.
void ShmLink::drop_outbound() {
  std::lock_guard lock(send_mutex_);
  closed_.store(true, std::memory_order_release);
  overflow_.clear();
  backlog_ = 0;
  for (const auto& [key, count] : lent_) {
    for (uint32_t i = 0; i < count; ++i) context_.arena->release(key);
  }
  lent_.clear();
}

// Tells the sink once; later sends are refused. Then closes, so that the peer hears of it and nothing is kept; later,
// because we may be inside poll().
void ShmLink::finish(const Error& why) {
  {
    std::lock_guard lock(finish_mutex_);
    if (std::exchange(finished_, true)) return;
  }
  drop_outbound();
  sink_.on_closed(*this, why);
  if (auto self = weak_from_this().lock()) {
    context_.reactor.post([self = std::move(self)] { self->close(); });
  }
}

// ---- Sending ----

bool ShmLink::send(const Outgoing& outgoing) {
  std::vector<uint64_t> locations;
  bool has_large = false;
  for (const ByteSpan& part : outgoing.parts) has_large |= part.size() >= kArenaPartMin;
  if (has_large) place_parts(outgoing, locations);
  std::lock_guard lock(send_mutex_);
  if (closed()) {
    for (uint64_t location : locations) {
      if (location == 0) continue;
      const ArenaLocation at = ArenaLocation::unpack(location);
      context_.arena->release(Slab{at.segment, at.offset, nullptr}.key());
    }
    return false;
  }
  for (uint64_t location : locations) {
    if (location == 0) continue;
    const ArenaLocation at = ArenaLocation::unpack(location);
    ++lent_[Slab{at.segment, at.offset, nullptr}.key()];
  }
  if (!released_.empty()) flush_released();
  write_record(outgoing, locations, /*quiet=*/false);
  return true;
}

// Copies the large parts into slabs. A part for which there is no slab stays inline (location 0).
void ShmLink::place_parts(const Outgoing& outgoing, std::vector<uint64_t>& locations) {
  locations.assign(outgoing.parts.size(), 0);
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    const ByteSpan part = outgoing.parts[i];
    if (part.size() < kArenaPartMin) continue;
    context_.driver.poll_once();  // slabs that came back are used before new ones
    auto slab = context_.arena->allocate(part.size());
    if (!slab) continue;
    if (!share_segment(slab->segment)) {
      context_.arena->release(slab->key());
      continue;
    }
    copy_bytes(slab->data, part.data(), part.size());
    locations[i] = ArenaLocation{slab->segment, false, slab->offset}.pack();
  }
}

// Makes sure that the peer has the segment, or will have it before it can see a descriptor into it.
bool ShmLink::share_segment(uint32_t segment) {
  std::lock_guard lock(send_mutex_);
  if (closed() || !started_) return false;
  if (segment >= offered_segments_.size()) offered_segments_.resize(segment + 1, Offer::kNone);
  Offer& offer = offered_segments_[segment];
  if (offer == Offer::kNone) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.dest = segment;
    const bool sent = control_->send(Outgoing{header, {}, {}}, context_.arena->segment_fd(segment));
    offer = sent ? Offer::kSent : Offer::kQueued;
  } else if (offer == Offer::kQueued && control_->backlog() == 0) {
    offer = Offer::kSent;
  }
  return offer == Offer::kSent;
}

// With send_mutex_ held. `quiet`: the peer need not wake for it.
void ShmLink::write_record(const Outgoing& outgoing, std::span<const uint64_t> locations, bool quiet) {
  const uint64_t size = record_size_of(outgoing, locations);
  if (started_ && overflow_.empty() && size <= producer_->room()) {
    encode_record(outgoing, locations, size, [this](const void* data, size_t count) { producer_->put(data, count); });
    producer_->publish();
    if (!quiet) ring_peer();
    return;
  }
  overflow_.push_back(Chunk{encode_to_vector(outgoing, locations), 0});
  backlog_ += size;
  if (started_) flush_overflow();
}

// With send_mutex_ held: moves what fits from the overflow queue into the ring.
void ShmLink::flush_overflow() {
  bool wrote = false;
  while (!overflow_.empty()) {
    const uint64_t room = producer_->room();
    if (room == 0) {
      if (wrote) {
        producer_->publish();
        ring_peer();
        wrote = false;
      }
      if (producer_->ask_for_room()) continue;
      break;
    }
    Chunk& chunk = overflow_.front();
    const uint64_t count = std::min<uint64_t>(room, chunk.bytes.size() - chunk.written);
    producer_->put(chunk.bytes.data() + chunk.written, count);
    chunk.written += count;
    backlog_ -= count;
    wrote = true;
    if (chunk.written == chunk.bytes.size()) overflow_.pop_front();
  }
  if (wrote) {
    producer_->publish();
    ring_peer();
  }
}

void ShmLink::ring_peer() {
  auto& page = *static_cast<BellPage*>(bell_.page.get());
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t index = producer_->consumer_bell();
  if (index != kNoBellIndex) ring_bell(page, index, bell_.event_fd.get());
}

bool ShmLink::send_control(const Outgoing& outgoing) {
  std::lock_guard lock(send_mutex_);
  if (closed() || !started_) return false;
  control_->send(outgoing);
  return true;
}

// ---- Receiving ----

bool ShmLink::poll() {
  if (closed()) return false;
  bool more = false;
  const bool sane = drain(&more);
  if (backlog_.load(std::memory_order_relaxed) != 0) {
    std::lock_guard lock(send_mutex_);
    if (!closed()) flush_overflow();
  }
  if (!sane) {
    std::string what = bad_part_.empty() ? assembler_.error() : bad_part_;
    if (what.empty()) what = "the ring's indices are impossible";
    log_line("dropped the link to a peer that sent a malformed frame: " + what);
    finish(Error{ErrorCode::kMalformed, std::move(what)});
    return false;
  }
  if (!more && peer_gone_.load(std::memory_order_seq_cst)) {
    if (consumer_->available() != 0 && drain(&more) && more) return true;
    Error why;
    {
      std::lock_guard lock(finish_mutex_);
      why = gone_why_;
    }
    finish(why);
  }
  return more;
}

// Takes messages out of the ring, bounded. False: the stream is malformed.
bool ShmLink::drain(bool* more) {
  int messages = 0;
  bool took = false;
  *more = false;
  bool sane = true;
  for (;;) {
    uint64_t available = consumer_->available();
    if (available == 0) break;
    if (available > kRingBytes) {
      sane = false;
      break;
    }
    if (messages >= kMessagesPerPoll) {
      *more = true;
      break;
    }
    const std::span<std::byte> into = assembler_.buffer();
    const uint64_t count = std::min<uint64_t>(available, into.size());
    consumer_->take(into.data(), count);
    took = true;
    if (!assembler_.advance(count, peer())) {
      sane = false;
      break;
    }
    MessagePtr message = assembler_.take();
    if (!message) {
      // Within a long record: give room back early, so that the producer writes while we copy.
      if (count >= kRingBytes / 4 && consumer_->give_back()) ring_peer();
      continue;
    }
    ++messages;
    if (message->header.kind == FrameKind::kReleased) {
      on_released(*message);
      continue;
    }
    if (!message->arena_refs().empty() && !receive_arena_parts(*message)) {
      sane = false;
      break;
    }
    sink_.on_frame(*this, std::move(message));
  }
  if (took && consumer_->give_back()) ring_peer();
  return sane;
}

bool ShmLink::receive_arena_parts(Message& message) {
  for (const Message::ArenaRef& ref : message.arena_refs()) {
    Part& part = message.parts[ref.part];
    const bool known = wait_for_segment(ref.location.segment);
    std::lock_guard lock(view_mutex_);
    std::byte* data = known ? view_.resolve(ref.location, part.size) : nullptr;
    if (data == nullptr) {
      bad_part_ = known ? "a part reaches beyond its arena segment" : "a part lies in an arena segment never offered";
      return false;
    }
    part.data = data;
    part.owner = std::make_shared<Lease>(shared_from_this(), view_.mapping(ref.location.segment), ref.location.pack(),
                                         part.size);
  }
  return true;
}

// The segment was sent on the socket before the frame that needs it was published: it is there to be read, behind
// whatever other control frames there are.
bool ShmLink::wait_for_segment(uint32_t segment) {
  for (;;) {
    const bool readable = control_->readable();
    {
      std::lock_guard lock(view_mutex_);
      if (view_.has(segment)) return true;
    }
    if (!readable || !control_->pump()) break;
  }
  std::lock_guard lock(view_mutex_);
  return view_.has(segment);
}

// Any thread, from the destructor of a view: takes no lock that is held for long and never waits.
void ShmLink::give_back_slab(uint64_t packed, uint64_t bytes) {
  std::lock_guard lock(send_mutex_);
  if (closed()) return;
  released_.push_back(packed);
  released_bytes_ += bytes;
  has_released_.store(true, std::memory_order_relaxed);
  if (released_bytes_ >= kReleasedBytesMax) flush_released();
}

// With send_mutex_ held. Quiet: the peer sees it when it next looks at its rings, no wake-up is made for it.
void ShmLink::flush_released() {
  if (released_.empty() || closed() || !started_) return;
  FrameHeader header;
  header.kind = FrameKind::kReleased;
  write_record(Outgoing{header, as_byte_span(released_.data(), released_.size() * sizeof(uint64_t)), {}}, {},
               /*quiet=*/true);
  auto& page = *static_cast<BellPage*>(bell_.page.get());
  const uint32_t index = producer_->consumer_bell();
  if (index != kNoBellIndex) page.ready[index / 64].fetch_or(uint64_t{1} << (index % 64), std::memory_order_seq_cst);
  released_.clear();
  released_bytes_ = 0;
  has_released_.store(false, std::memory_order_relaxed);
}

void ShmLink::before_sleep() {
  if (!has_released_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(send_mutex_);
  flush_released();
}

void ShmLink::on_released(const Message& message) {
  std::lock_guard lock(send_mutex_);
  for (size_t at = 0; at + sizeof(uint64_t) <= message.body.size(); at += sizeof(uint64_t)) {
    uint64_t packed;
    std::memcpy(&packed, message.body.data() + at, sizeof packed);
    const ArenaLocation location = ArenaLocation::unpack(packed);
    auto lent = lent_.find(Slab{location.segment, location.offset, nullptr}.key());
    if (lent == lent_.end()) continue;  // never lent to this peer: it lies, or the link was closed meanwhile
    context_.arena->release(lent->first);
    if (--lent->second == 0) lent_.erase(lent);
  }
}

void ShmLink::on_control_message(MessagePtr message, UniqueFd fd) {
  if (message->header.kind != FrameKind::kSegment) {
    sink_.on_control(*this, std::move(message));
    return;
  }
  std::lock_guard lock(view_mutex_);
  auto added = view_.add(static_cast<uint32_t>(message->header.dest), std::move(fd));
  if (!added) log_line("a peer offered a bad arena segment: " + added.error().message);
}

}  // namespace monarch
