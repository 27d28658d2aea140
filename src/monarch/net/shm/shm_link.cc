#include "monarch/net/shm/shm_link.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "monarch/base/copy.h"
#include "monarch/base/forked.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/net/message_blocks.h"
#include "monarch/wire/cast_parts.h"

namespace monarch {

namespace {
// One poll, about: it must not keep a leader from its deadline, whatever the peer sends.
constexpr int kMessagesPerPoll = 512;
constexpr uint64_t kBytesPerPoll = 512 * 1024;
// What is moved from the overflow queue in one go, with the lock held: the peer may take as fast as we write.
constexpr uint64_t kFlushBytes = 1 << 20;
// Slabs are given back one by one while the ring has room; this many bytes are never kept back.
constexpr uint64_t kReleasedBytesMax = 1 << 20;
// A peer that sleeps is woken for slabs, if it is for so many bytes at least, and not before it may have woken by itself.
constexpr uint64_t kTellReleasedBytes = 1 << 20;
constexpr int64_t kTellReleasedAfterNs = 500'000'000;
// Control frames that are read at once on the way to a segment.
constexpr int kPumpsPerSegment = 16;
constexpr int64_t kCloseDeadNs = 2'000'000;  // after the end of a link whose peer is dead, if nobody has closed it
constexpr int64_t kAskAfterMinNs = 10'000'000;
constexpr int64_t kAskAfterMaxNs = 1'000'000'000;

uint64_t key_of(uint64_t location) {
  const ArenaLocation at = ArenaLocation::unpack(location);
  return Slab{at.segment, at.offset, nullptr}.key();
}

bool in_arena(uint64_t location) { return location != 0 && !is_frozen_number(ArenaLocation::unpack(location).segment); }

struct PlacedInArena final : CastParts::Placed {
  PlacedInArena(std::shared_ptr<Arena> a, size_t parts) : arena(std::move(a)), slabs(parts) {}
  ~PlacedInArena() override {
    for (const auto& slab : slabs) {
      if (slab) arena->release(slab->key());
    }
  }
  const std::shared_ptr<Arena> arena;  // shared: the one of the process
  std::vector<std::optional<Slab>> slabs;
};

// One at a time: whoever breaks that is a bug of the driver, and would tear the ring.
class PollGuard {
 public:
  explicit PollGuard(std::atomic<bool>& polling) : polling_(polling) {
    MONARCH_CHECK(!polling_.load(std::memory_order_relaxed));
    polling_.store(true, std::memory_order_relaxed);
  }
  ~PollGuard() { polling_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool>& polling_;
};
}  // namespace

// ---- RingPlace ----

Result<RingPlace> RingPlace::take(Driver& driver) {
  RingPlace place;
  place.index_ = driver.reserve();
  if (place.index_ == kBellRings) {
    return Error{ErrorCode::kUnavailable, "this process has as many links as it can have (" +
                                              std::to_string(kBellRings) + ")"};
  }
  place.driver_ = &driver;
  return place;
}

RingPlace& RingPlace::operator=(RingPlace&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(index_, other.index_);
  return *this;
}

RingPlace::~RingPlace() {
  if (driver_ != nullptr) driver_->give_up(index_);
}

uint32_t RingPlace::fill(Driver& driver, Pollable& link) {
  if (driver_ == nullptr) return driver.add(link);
  std::exchange(driver_, nullptr)->fill(index_, link);
  return index_;
}

// ---- ShmLink ----

ShmLink::ShmLink(ShmContext context, LinkSink& sink, NodeId peer)
    : Link(peer), context_(std::move(context)), sink_(sink), ask_after_ns_(kAskAfterMinNs),
      control_(context_.reactor, peer, kControlSizeMax, control_events()) {}

ShmLink::~ShmLink() {
  if (!torn_down_) close();
}

SocketLane::Events ShmLink::control_events() {
  SocketLane::Events events;
  events.on_read = [this](SocketLane::Received& received) { return on_control_read(received); };
  events.on_message = [this](SocketLane::Received received) { on_control_message(std::move(received)); };
  events.on_closed = [this](const Error& why) {
    if (why.code == ErrorCode::kMalformed) {
      log_malformed(why.message);
    }
    peer_died(why);
  };
  return events;
}

void ShmLink::start(Setup setup) {
  MONARCH_CHECK(setup.peer == peer() && setup.rings.size() >= sizeof(RingPair));
  std::unique_lock life(life_mutex_);
  {
    std::lock_guard lock(send_mutex_);
    if (closed()) return;
    rings_ = std::move(setup.rings);
    bell_ = std::move(setup.bell);
    auto* pair = static_cast<RingPair*>(rings_.get());
    producer_.emplace(pair->rings[setup.side]);
    consumer_.emplace(pair->rings[1 - setup.side]);
    started_ = true;
    flush_overflow();
  }
  control_.start(std::move(setup.socket), weak_from_this());  // first: what the ring brings may want a segment from there
  const uint32_t index = setup.place.fill(context_.driver, *this);
  if (index == kBellRings) {
    life.unlock();
    finish(Error{ErrorCode::kUnavailable, "this process has too many links"});
    return;
  }
  bell_index_ = index;
  consumer_->attach(index);
  context_.driver.mark_ready(index);  // look once: what came before attach() rang no bell
}

// What the peer published before its end is delivered first: the leader drains the ring, then calls finish().
void ShmLink::peer_died(const Error& why) {
  if (in_forked_child()) return;
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
  if (context_.reactor.on_reactor_thread()) control_.drain();  // its end may not have come there yet, nor be coming soon
  context_.driver.ring_self();
  context_.driver.poll_once();
}

void ShmLink::close() {
  if (in_forked_child()) return;
  {
    std::lock_guard lock(finish_mutex_);
    finished_ = true;
  }
  if (torn_down_.exchange(true)) return;
  drop_outbound();
  {
    std::lock_guard life(life_mutex_);
    control_.stop();
    if (bell_index_ != kNoBellIndex) context_.driver.remove(bell_index_);
  }
  release_memory();
  over_.store(true, std::memory_order_release);
}

// After the driver has let go. What has been received keeps its part of the peer's arena mapped.
void ShmLink::release_memory() {
  {
    std::lock_guard lock(send_mutex_);
    producer_.reset();
    consumer_.reset();
    rings_ = {};
    bell_ = {};
    released_ = {};
  }
  MessagePtr waiting = std::move(waiting_);
  reading_ = {};
  FrozenView frozen;  // goes without the lock
  std::lock_guard lock(view_mutex_);
  view_ = {};
  std::swap(frozen, frozen_view_);
}

// Refuses further sends and takes back what the peer has not taken or given back.
void ShmLink::drop_outbound() {
  std::lock_guard lock(send_mutex_);
  closed_.store(true, std::memory_order_release);
  overflow_.clear();
  backlog_ = 0;
  untaken_.clear();
  untaken_bytes_ = 0;
  for (const auto& [key, count] : lent_) {
    for (uint32_t i = 0; i < count; ++i) context_.arena->release(key);
  }
  lent_.clear();
  loans_ = {};
}

// Tells the sink once; later sends are refused. Then closes, so that the peer hears of it and nothing is kept; later,
// because we may be inside poll(), and, of a peer that is dead, because to unmap its rings costs 50 us, while the
// reactor is wanted for the word of that death. (Who tells it closes the link then.)
void ShmLink::finish(const Error& why) {
  {
    std::lock_guard lock(finish_mutex_);
    if (std::exchange(finished_, true)) return;
  }
  drop_outbound();
  sink_.on_closed(*this, why);
  if (auto self = weak_from_this().lock()) {
    const int64_t delay_ns = peer_gone_.load(std::memory_order_relaxed) ? kCloseDeadNs : 0;
    context_.reactor.after(delay_ns, [self = std::move(self)] { self->close(); });
  }
}

// ---- Sending ----

bool ShmLink::send_it(const Outgoing& outgoing, bool kept) {
  if (in_forked_child()) return false;
  std::vector<uint64_t> locations;
  bool has_large = false;
  for (const ByteSpan& part : outgoing.parts) has_large |= part.size() >= kArenaPartMin;
  try {
    if (has_large) place_parts(outgoing, kept, locations);
    return send_record(outgoing, locations);
  } catch (const std::bad_alloc&) {  // then nothing of it counts yet
    release_slabs(locations);
    throw;
  }
}

bool ShmLink::send_record(const Outgoing& outgoing, std::span<const uint64_t> locations) {
  const uint64_t size = record_size_of(outgoing, locations);
  // What the ring cannot hold at once waits in the queue in any case: it is copied before the lock is taken.
  std::vector<std::byte> record;
  if (size > kRingBytes) record = encode_to_vector(outgoing, locations);
  std::lock_guard lock(send_mutex_);
  if (closed()) {
    release_slabs(locations);
    return false;
  }
  if (!ended_.empty()) flush_released();
  const bool now = record.empty() && has_room_for(size);
  if (!now) {
    if (record.empty()) record = encode_to_vector(outgoing, locations);
    overflow_.push_back(Chunk{std::move(record), 0});
  }
  try {
    note_lent(outgoing, locations, size);
  } catch (const std::bad_alloc&) {
    if (!now) overflow_.pop_back();
    throw;
  }
  now ? put_record(outgoing, locations, size, /*quiet=*/false) : has_queued(size);
  return true;
}

// With send_mutex_ held, before a record of `size` bytes is written or counted. All of it or, if it throws, nothing.
void ShmLink::note_lent(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t size) {
  uint64_t bytes = 0;
  size_t lent = 0;
  try {
    for (; lent < locations.size(); ++lent) {
      if (!in_arena(locations[lent])) continue;
      ++lent_[key_of(locations[lent])];
      bytes += outgoing.parts[lent].size();
    }
    if (bytes == 0) return;
    forget_taken();
    untaken_.push_back({appended_ + size, bytes});
  } catch (const std::bad_alloc&) {
    for (const uint64_t location : locations.first(lent)) {
      if (in_arena(location)) no_longer_lent(key_of(location));
    }
    throw;
  }
  untaken_bytes_ += bytes;
}

// With send_mutex_ held. False: it is not lent to this peer.
bool ShmLink::no_longer_lent(uint64_t key) {
  const auto lent = lent_.find(key);
  if (lent == lent_.end()) return false;
  if (--lent->second == 0) lent_.erase(lent);
  return true;
}

// With send_mutex_ held.
void ShmLink::forget_taken() const {
  const uint64_t taken = producer_ ? producer_->taken() : 0;
  for (; !untaken_.empty() && untaken_.front().end <= taken; untaken_.pop_front()) {
    untaken_bytes_ -= untaken_.front().bytes;
  }
}

uint64_t ShmLink::backlog() const {
  if (untaken_bytes_.load(std::memory_order_relaxed) != 0) {
    std::lock_guard lock(send_mutex_);
    forget_taken();
  }
  return backlog_.load(std::memory_order_relaxed) + untaken_bytes_.load(std::memory_order_relaxed);
}

// What has not been lent yet.
void ShmLink::release_slabs(std::span<const uint64_t> locations) {
  for (uint64_t location : locations) {
    if (in_arena(location)) context_.arena->release(key_of(location));
  }
}

// On the reactor of a host's gateway other hosts wait to hear that it lives, and gigabytes take seconds.
void ShmLink::copy_part(std::byte* to, ByteSpan part) {
  for (; part.size() > kPulseEvery; to += kPulseEvery, part = part.subspan(kPulseEvery)) {
    copy_bytes(to, part.data(), kPulseEvery);
    context_.driver.pulse();
  }
  copy_bytes(to, part.data(), part.size());
}

// Copies the large parts into slabs, but for what lies in one. A part for which there is no slab stays inline (location 0).
void ShmLink::place_parts(const Outgoing& outgoing, bool kept, std::vector<uint64_t>& locations) {
  locations.assign(outgoing.parts.size(), 0);
  context_.driver.poll_once();  // slabs that came back are used before new ones
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    const ByteSpan part = outgoing.parts[i];
    if (part.size() < kArenaPartMin) continue;
    if ((locations[i] = place_frozen(part)) != 0) continue;
    if (const auto there = kept ? place_kept(part) : std::nullopt) {
      locations[i] = ArenaLocation{there->segment, outgoing.cast != nullptr, there->offset}.pack();
      continue;
    }
    const bool shared = outgoing.cast != nullptr && part.size() >= kSharedPartMin;
    const auto slab = shared ? place_for_all(*outgoing.cast, i, outgoing) : place(part);
    if (slab) locations[i] = ArenaLocation{slab->segment, shared, slab->offset}.pack();
  }
}

// Held once, for this link.
std::optional<Slab> ShmLink::place(ByteSpan part) {
  const auto slab = context_.arena->allocate(part.size());
  if (!slab) return std::nullopt;
  if (!share_segment(slab->segment)) {
    context_.arena->release(slab->key());
    return std::nullopt;
  }
  copy_part(slab->data, part);
  return slab;
}

// What was read to the arena (Arena::memory): nobody writes there who has it now, and one receiver may.
std::optional<Slab> ShmLink::place_kept(ByteSpan part) {
  const auto there = context_.arena->hold_at(part);
  if (!there || share_segment(there->segment)) return there;
  context_.arena->release(there->key());
  return std::nullopt;
}

// The same, of what the first link has copied: held by the cast, too, until it has gone to all.
std::optional<Slab> ShmLink::place_for_all(CastParts& cast, size_t index, const Outgoing& outgoing) {
  if (!cast.placed) cast.placed = std::make_unique<PlacedInArena>(context_.arena, outgoing.parts.size());
  auto& placed = static_cast<PlacedInArena&>(*cast.placed);
  std::optional<Slab>& slab = placed.slabs[index];
  if (!slab) {
    const ByteSpan part = outgoing.parts[index];
    slab = context_.arena->allocate(part.size());
    if (!slab) return std::nullopt;
    copy_part(slab->data, part);
  }
  if (!share_segment(slab->segment)) return std::nullopt;
  context_.arena->hold(slab->key());
  return slab;
}

// Makes sure that the peer has the segment, or will have it before it can see a descriptor into it.
bool ShmLink::share_segment(uint32_t segment) try {
  std::lock_guard lock(send_mutex_);
  if (closed() || !started_) return false;
  if (segment >= offered_segments_.size()) offered_segments_.resize(segment + 1, Offer::kNone);
  Offer& offer = offered_segments_[segment];
  if (offer == Offer::kNone) {
    offer = offer_segment(segment) ? Offer::kSent : Offer::kQueued;
  } else if (offer == Offer::kQueued && control_.backlog() == 0) {
    offer = Offer::kSent;
  }
  return offer == Offer::kSent;
} catch (const std::bad_alloc&) {
  return false;
}

bool ShmLink::offer_segment(uint32_t segment) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.dest = segment;
  header.method = kOffered;
  return control_.send(Outgoing{header, {}, {}}, context_.arena->segment_fd(segment));
}

// The peer could not take it. It asks for what it was offered, and not faster than it reads the answers.
void ShmLink::on_segment_wanted(uint32_t segment) {
  std::lock_guard lock(send_mutex_);
  if (FrozenLoans::Loan* const loan = loans_.find_number(segment)) {
    auto memory = loan->shown.lock();
    if (!closed() && memory && control_.backlog() == 0) offer_frozen(*loan, std::move(memory));
    return;
  }
  if (closed() || segment >= offered_segments_.size() || offered_segments_[segment] == Offer::kNone) return;
  if (control_.backlog() == 0) offer_segment(segment);
}

// With send_mutex_ held. A record of this link's own: of no slabs. `quiet`: the peer need not wake for it.
void ShmLink::write_record(const Outgoing& outgoing, bool quiet) {
  const uint64_t size = record_size_of(outgoing, {});
  if (has_room_for(size)) return put_record(outgoing, {}, size, quiet);
  overflow_.push_back(Chunk{encode_to_vector(outgoing, {}), 0});
  has_queued(size);
}

// With send_mutex_ held. Whether such a record can be written now.
bool ShmLink::has_room_for(uint64_t size) {
  send_mutex_.assert_held();
  return started_ && overflow_.empty() && size <= producer_->room();
}

// With send_mutex_ held, where there is room.
void ShmLink::put_record(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t size, bool quiet) {
  appended_ += size;
  encode_record(outgoing, locations, size, [this](const void* data, size_t count) { producer_->put(data, count); });
  producer_->publish();
  if (!quiet) ring_peer();
}

// With send_mutex_ held: a record of `size` bytes is the last in the queue.
void ShmLink::has_queued(uint64_t size) {
  appended_ += size;
  backlog_ += size;
  if (started_ && flush_overflow()) look_again();
}

// With send_mutex_ held: moves what fits from the overflow queue into the ring. True: there is room for more, which
// nobody will tell us of.
bool ShmLink::flush_overflow() {
  send_mutex_.assert_held();
  uint64_t moved = 0;
  bool wrote = false;
  while (!overflow_.empty() && moved < kFlushBytes) {
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
    moved += count;
    wrote = true;
    if (chunk.written == chunk.bytes.size()) overflow_.pop_front();
  }
  if (wrote) {
    producer_->publish();
    ring_peer();
  }
  return moved >= kFlushBytes && !overflow_.empty();
}

void ShmLink::ring_peer() {
  auto& page = *static_cast<BellPage*>(bell_.page.get());
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t index = producer_->consumer_bell();
  if (index != kNoBellIndex) ring_bell(page, index, bell_.event_fd.get());
}

// Any thread. Somebody polls soon.
void ShmLink::look_again() {
  const uint32_t index = bell_index_;
  if (index != kNoBellIndex) context_.driver.mark_ready(index);  // else start() does, once it has one
}

bool ShmLink::send_control(const Outgoing& outgoing) {
  if (in_forked_child() || closed()) return false;
  control_.send(outgoing);  // before the start it waits there
  return true;
}

// ---- Receiving ----

bool ShmLink::poll() {
  if (closed()) return false;
  PollGuard guard(polling_);
  bool more = false;
  const bool sane = drain(&more);
  if (backlog_.load(std::memory_order_relaxed) != 0) {
    std::lock_guard lock(send_mutex_);
    if (!closed()) more |= flush_overflow();
  }
  if (ended_.bytes() >= kReleasedBytesMax) {
    std::lock_guard lock(send_mutex_);
    flush_released();
  }
  if (has_ended_loans_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(send_mutex_);
    flush_forgotten();
  }
  if (!sane) {
    std::string what = wrong_.empty() ? assembler_.error() : wrong_;
    if (what.empty()) what = "the ring's indices are impossible";
    log_malformed(what);
    finish(Error{ErrorCode::kMalformed, std::move(what)});
    return false;
  }
  if (!more && peer_gone_.load(std::memory_order_seq_cst)) {
    while (waiting_ && control_.readable() && control_.pump()) {  // what it waits for may be the last that was sent
    }
    if ((waiting_ || consumer_->available() != 0) && drain(&more) && more) return true;
    Error why;
    {
      std::lock_guard lock(finish_mutex_);
      why = gone_why_;
    }
    if (waiting_) log_line("what a process sent at its end is lost: there was no room here for its shared memory");
    finish(why);
  }
  return more;
}

// Takes messages out of the ring, bounded. False: the stream is malformed.
bool ShmLink::drain(bool* more) {
  int messages = 0;
  uint64_t bytes = 0;
  bool sane = true;
  *more = false;
  for (;;) {
    MessagePtr message = std::move(waiting_);
    if (!message) {
      const uint64_t available = consumer_->available();
      if (available == 0) break;
      if (available > kRingBytes) {
        sane = false;
        break;
      }
      if (messages >= kMessagesPerPoll || bytes >= kBytesPerPoll) {
        *more = true;
        break;
      }
      const std::span<std::byte> into = assembler_.buffer();
      const uint64_t count = std::min<uint64_t>(available, into.size());
      consumer_->take(into.data(), count);
      bytes += count;
      if (!assembler_.advance(count, peer())) {
        sane = false;
        break;
      }
      message = assembler_.take();
      if (!message) {
        // Within a long record: give room back early, so that the producer writes while we copy.
        if (count >= kRingBytes / 4 && consumer_->give_back()) ring_peer();
        continue;
      }
      ++messages;
      if (message->header.kind == FrameKind::kReleased) {
        message->header.method == kForgotten ? on_forgotten(*message) : on_released(*message);
        continue;
      }
    }
    const Parts parts = message->arena_refs().empty() ? Parts::kThere : receive_arena_parts(*message);
    const bool lost = parts == Parts::kWait && has_waited_long();
    if (lost) lose(*message);
    if (lost || parts == Parts::kThere) {
      waiting_since_ns_ = 0;
      sink_.on_frame(*this, std::move(message));
      continue;
    }
    sane = parts != Parts::kWrong;
    if (sane) waiting_ = std::move(message);
    *more = parts == Parts::kMoreToRead;
    break;
  }
  if (bytes != 0 && consumer_->give_back()) ring_peer();
  return sane;
}

bool ShmLink::has_waited_long() {
  const int64_t now_ns = context_.reactor.now_ns();
  if (waiting_since_ns_ == 0) waiting_since_ns_ = now_ns;
  return now_ns - waiting_since_ns_ > context_.room_limit_ns;
}

// There has been no room here for long: whoever waits for the message hears so, and the link goes on.
void ShmLink::lose(Message& message) {
  message.lost_bytes = message.body.size();
  for (const Part& part : message.parts) message.lost_bytes += part.size;
  const uint64_t forks = context_.received->forks();
  for (const Message::ArenaRef& ref : message.arena_refs()) {
    const Part& part = message.parts[ref.part];
    if (part.owner || is_frozen_number(ref.location.segment)) continue;
    end_lease(new Lease{shared_from_this(), nullptr, ref.location.pack(), part.size, forks});
  }
  message.body = {};
  message.parts.clear();
  reading_ = {};
}

// May be called again for the same message if it has to wait.
ShmLink::Parts ShmLink::receive_arena_parts(Message& message) {
  for (const Message::ArenaRef& ref : message.arena_refs()) {
    Part& part = message.parts[ref.part];
    if (part.owner) continue;
    const uint32_t segment = ref.location.segment;
    const Parts known = wait_for_segment(segment);
    if (is_frozen_number(segment) && known == Parts::kThere) {
      if (!receive_frozen_part(ref, part)) return Parts::kWrong;
      continue;
    }
    if (known == Parts::kWrong) wrong_ = "a part lies in an arena segment never offered";
    if (known != Parts::kThere) return known;
    std::unique_lock lock(view_mutex_);
    if (!view_.contains(ref.location, part.size)) {
      wrong_ = "a part reaches beyond its arena segment";
      return Parts::kWrong;
    }
    part.data = view_.resolve(ref.location, part.size, *context_.received);
    std::shared_ptr<ReceivedSegment> memory = view_.memory(segment);
    const std::shared_ptr<UniqueFd> unmapped = view_.unmapped(segment);
    lock.unlock();
    if (part.data == nullptr || ref.location.shared) {
      if (const Parts read = copy_part(part.data == nullptr ? unmapped.get() : nullptr, ref, part); read != Parts::kThere) {
        return read;
      }
      continue;
    }
    reading_ = {};  // there is room for the mapping after all
    memory->begin_lease(ref.location.offset + part.size);
    auto* lease = new Lease{.link = shared_from_this(),
                            .segment = std::move(memory),
                            .location = ref.location.pack(),
                            .bytes = part.size,
                            .born = context_.received->forks()};
    part.owner = std::shared_ptr<Lease>(lease, end_lease);
  }
  return Parts::kThere;
}

// A piece of it, since a poll is short: of what others read, too (at part.data), or of a segment without a mapping. Then
// its slab goes back.
ShmLink::Parts ShmLink::copy_part(const UniqueFd* unmapped, const Message::ArenaRef& ref, Part& part) {
  if (!reading_.bytes) {
    std::byte* const block = sys::must_fail(ENOMEM) ? nullptr : internal::take_large_block(std::max<size_t>(1, part.size));
    if (block != nullptr) reading_.bytes = std::shared_ptr<std::byte>(block, &internal::return_large_block);
    reading_.done = 0;
  }
  const uint64_t wanted = std::min(part.size - reading_.done, kBytesPerPoll);
  auto count = static_cast<ssize_t>(wanted);
  if (!reading_.bytes) {
    errno = ENOMEM;
    count = -1;
  } else if (unmapped == nullptr) {
    std::memcpy(reading_.bytes.get() + reading_.done, part.data + reading_.done, wanted);
  } else {
    count = pread(unmapped->get(), reading_.bytes.get() + reading_.done, wanted,
                  static_cast<off_t>(ref.location.offset + reading_.done));
    if (count < 0 && errno == EINTR) return Parts::kMoreToRead;
  }
  if (count < 0) {
    std::lock_guard lock(view_mutex_);
    short_of_room(sys::shortage_error("read shared memory of another process").message);
    return Parts::kWait;
  }
  if (count == 0 && part.size != 0) {
    wrong_ = "a part lies where there is nothing to be read";
    return Parts::kWrong;
  }
  reading_.done += static_cast<uint64_t>(count);
  if (reading_.done < part.size) return Parts::kMoreToRead;
  part.data = reading_.bytes.get();
  part.owner = std::exchange(reading_.bytes, nullptr);
  end_lease(new Lease{shared_from_this(), nullptr, ref.location.pack(), part.size, context_.received->forks()});
  return Parts::kThere;
}

// The segment was sent on the socket before the frame that needs it was published: it is there to be read, behind
// whatever other control frames there are.
ShmLink::Parts ShmLink::wait_for_segment(uint32_t segment) {
  for (int pumps = 0;; ++pumps) {
    const bool readable = control_.readable();
    {
      std::lock_guard lock(view_mutex_);
      if (view_.has(segment) || frozen_view_.find(segment)) return Parts::kThere;
      if (view_.has_lost(segment) || frozen_view_.has_lost(segment)) return Parts::kWait;
    }
    if (!readable) return Parts::kWrong;
    if (pumps == kPumpsPerSegment) return Parts::kMoreToRead;
    control_.pump();
  }
}

// Any thread, as the deleter of the last view: takes no lock and never waits.
void ShmLink::end_lease(Lease* lease) {
  if (in_forked_child()) return;  // it is the parent's
  std::unique_ptr<Lease> owned(lease);
  const std::shared_ptr<ShmLink> link = std::move(lease->link);
  const std::shared_ptr<ReceivedSegment> segment = std::move(lease->segment);
  if (segment) segment->end_lease();
  lease->died = link->context_.received->forks();
  if (link->closed() || link->ended_.push(std::move(owned)) < kReleasedBytesMax) return;
  if (!link->send_mutex_.try_lock()) return link->look_again();
  link->flush_released();
  link->send_mutex_.unlock();
}

// With send_mutex_ held. Quiet: the peer sees it when it next looks at its rings, no wake-up is made for it. If it is much
// and the peer idle, somewhat later one is: what it holds may be wanted by others.
void ShmLink::flush_released() noexcept {
  send_mutex_.assert_held();
  if (closed() || !started_) return;
  if (producer_->all_taken()) released_quietly_ = 0;
  ended_.take_all([this](std::unique_ptr<Lease> lease) {
    try {
      if (lease->born != lease->died && context_.received->hold(lease, weak_from_this())) return;
      released_.push_back(lease->location);
      released_quietly_ += lease->bytes;
    } catch (const std::bad_alloc&) {  // another time
      ended_.push(std::move(lease));
    }
  });
  if (released_.empty()) return;
  FrameHeader header;
  header.kind = FrameKind::kReleased;
  try {
    write_record({header, as_byte_span(released_.data(), released_.size() * sizeof(uint64_t)), {}}, /*quiet=*/true);
    released_.clear();
    auto& page = *static_cast<BellPage*>(bell_.page.get());
    const uint32_t index = producer_->consumer_bell();
    if (index != kNoBellIndex) page.ready[index / 64].fetch_or(uint64_t{1} << (index % 64), std::memory_order_seq_cst);
    if (released_quietly_ < kTellReleasedBytes || tell_armed_) return;
    context_.reactor.after(kTellReleasedAfterNs, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->tell_of_released();
    });
    tell_armed_ = true;
  } catch (const std::bad_alloc&) {  // with the next
  }
}

void ShmLink::tell_of_released() {
  std::lock_guard lock(send_mutex_);
  tell_armed_ = false;
  if (!closed() && started_ && !producer_->all_taken()) ring_peer();
}

void ShmLink::before_sleep() {
  if (ended_.empty()) return;
  std::lock_guard lock(send_mutex_);
  flush_released();
}

// Those that a forked child had a part in, and has no more.
void ShmLink::give_back(std::vector<std::unique_ptr<Lease>> leases) {
  for (auto& lease : leases) {
    lease->died = lease->born;
    ended_.push(std::move(lease));
  }
  before_sleep();
}

void ShmLink::on_released(const Message& message) {
  std::lock_guard lock(send_mutex_);
  for (size_t at = 0; at + sizeof(uint64_t) <= message.body.size(); at += sizeof(uint64_t)) {
    uint64_t packed;
    std::memcpy(&packed, message.body.data() + at, sizeof packed);
    const uint64_t key = key_of(packed);
    if (no_longer_lent(key)) context_.arena->release(key);  // else it lies, or the link was closed meanwhile
  }
}

// ---- Control ----

// Whoever reads, with the lane locked. Segments are taken at once, since a leader may wait for one.
SocketLane::Verdict ShmLink::on_control_read(SocketLane::Received& received) {
  const FrameHeader& header = received.message->header;
  if (header.kind != FrameKind::kSegment || header.method == kWanted) return SocketLane::Verdict::kDeliver;
  if (header.method == kOffered && is_frozen_number(header.dest)) return on_frozen_offered(received);
  if (header.method != kOffered || header.dest >= kArenaSegmentsMax) return SocketLane::Verdict::kMalformed;
  const auto segment = static_cast<uint32_t>(header.dest);
  std::lock_guard lock(view_mutex_);
  if (received.fd_lost) {
    if (!view_.lose(segment)) return SocketLane::Verdict::kMalformed;
    if (!view_.has_lost(segment)) return SocketLane::Verdict::kDone;  // it has come already
    errno = EMFILE;
    short_of_room(sys::shortage_error("take shared memory of another process").message);
    return SocketLane::Verdict::kDone;
  }
  const bool was_lost = view_.has_lost(segment);
  if (!view_.add(segment, std::move(received.fd), *context_.received)) return SocketLane::Verdict::kMalformed;
  if (was_lost) found_room();
  return SocketLane::Verdict::kDone;
}

void ShmLink::on_control_message(SocketLane::Received received) {
  const FrameHeader& header = received.message->header;
  if (closed()) return;
  if (header.kind != FrameKind::kSegment) return sink_.on_control(*this, std::move(received.message));
  on_segment_wanted(static_cast<uint32_t>(std::min<uint64_t>(header.dest, UINT32_MAX)));
}

// With view_mutex_ held.
void ShmLink::short_of_room(const std::string& why) {
  if (!std::exchange(told_of_shortage_, true)) log_line(why + "; messages wait until there is room");
  ask_later();
}

// With view_mutex_ held: for what had been lost.
void ShmLink::found_room() {
  ask_after_ns_ = kAskAfterMinNs;
  told_of_shortage_ = false;
  look_again();
}

// With view_mutex_ held.
void ShmLink::ask_later() {
  view_mutex_.assert_held();
  if (std::exchange(ask_armed_, true)) return;
  context_.reactor.after(ask_after_ns_, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->ask_for_segments();
  });
  ask_after_ns_ = std::min(2 * ask_after_ns_, kAskAfterMaxNs);
}

// Until all are there: the peer does not answer while it has other things to say.
void ShmLink::ask_for_segments() {
  if (closed()) return;
  std::vector<uint32_t> lost;
  {
    std::lock_guard lock(view_mutex_);
    ask_armed_ = false;
    lost = view_.lost();
    for (const uint32_t number : frozen_view_.lost()) lost.push_back(number);
    if (!lost.empty()) ask_later();
    look_again();
  }
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.method = kWanted;
  for (const uint32_t segment : lost) {
    header.dest = segment;
    send_control(Outgoing{header, {}, {}});
  }
}

}  // namespace monarch
