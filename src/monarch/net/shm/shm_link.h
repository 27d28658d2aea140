// The link between two processes of one host: a ring each way for data (net/shm/ring.h), the arena for large parts,
// and a unix socket for control frames, arena segments and the end of the peer (EOF).
//
// Threads: poll() is the leader's, one at a time. A slab goes back without a lock. Locks, in this order: life, finish,
// send, the control lane's, view; the sink is told things with none of them held. In a child of a user's fork() nothing
// here does anything.
//
// What is frozen is not copied to the arena, but shown to the peer once and then named (shm_link_frozen.cc).
//
// A segment that the peer has offered and this process has no descriptor for is lost, and asked for again until it is
// there; what lies in it, and what comes behind that, waits meanwhile. Control goes on. One that this process has no room
// to map is read from, part by part (net/shm/arena_view.h).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "monarch/base/mutex.h"
#include "monarch/loop/driver.h"
#include "monarch/net/link.h"
#include "monarch/net/shm/arena.h"
#include "monarch/net/shm/arena_view.h"
#include "monarch/net/shm/frozen_loans.h"
#include "monarch/net/shm/frozen_view.h"
#include "monarch/net/shm/lease.h"
#include "monarch/net/shm/received.h"
#include "monarch/net/shm/ring.h"
#include "monarch/net/socket_lane.h"

namespace monarch {

// What a process has one of, for all its shared-memory links.
struct ShmContext {
  Reactor& reactor;
  Driver& driver;
  std::shared_ptr<Arena> arena;  // shared: slabs outlive links
  std::shared_ptr<Received> received;  // shared: leases outlive links
  int64_t room_limit_ns = 30'000'000'000;  // how long a message waits for descriptors or memory before it is lost
};

// The peer's bell, mapped here.
struct PeerBell {
  Mapping page;
  UniqueFd event_fd;
};

// A place for one more link's ring among those of this process (kBellRings), held while the link is being set up.
class RingPlace {
 public:
  RingPlace() = default;
  // kUnavailable: there is none.
  static Result<RingPlace> take(Driver& driver);
  RingPlace(RingPlace&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)), index_(other.index_) {}
  RingPlace& operator=(RingPlace&& other) noexcept;
  ~RingPlace();

  // Its index, from now on the caller's. Without a place: one that is free now, or kBellRings.
  uint32_t fill(Driver& driver, Pollable& link);

 private:
  Driver* driver_ = nullptr;
  uint32_t index_ = 0;
};

// Parts of at least this many bytes go through the arena (below, one copy in and one out of the cache-sized ring cost
// less than the bookkeeping of a slab).
inline constexpr uint64_t kArenaPartMin = 16 * 1024;

// Of a message to several, parts of at least this many bytes are lent to all of them as one slab, from which each copies
// its own (docs/design/029).
inline constexpr uint64_t kSharedPartMin = 64 * 1024;
// Bytes that are copied between two signs of life: some hundredths of a second.
inline constexpr size_t kPulseEvery = size_t{32} << 20;

class ShmLink final : public Link,
                      public Pollable,
                      public LeaseReturn,
                      public FrozenLender,
                      public std::enable_shared_from_this<ShmLink> {
 public:
  struct Setup {
    NodeId peer;
    int side;         // 0: made the ring pair
    Mapping rings;    // a RingPair
    PeerBell bell;
    UniqueFd socket;  // connected
    RingPlace place{};
  };

  // A link whose peer is not connected yet: what is sent waits until start(), or is dropped by peer_died().
  ShmLink(ShmContext context, LinkSink& sink, NodeId peer);
  ~ShmLink() override;

  // Any thread, once. Begins to carry frames.
  void start(Setup setup);

  bool send(const Outgoing& outgoing) override { return send_it(outgoing, /*kept=*/false); }
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void>) override {
    return send_it(outgoing, /*kept=*/true);
  }
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override;
  // With what lies in the arena for a peer that has not taken the record which says so.
  uint64_t backlog() const override;
  std::string_view transport() const override { return "shm"; }

  bool poll() override;
  void before_sleep() override;
  void give_back(std::vector<std::unique_ptr<Lease>> leases) override;
  void frozen_ended(uint64_t id) override;

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    size_t written = 0;
  };
  // What a kSegment frame says, in its `method`; `dest` is the number of the segment, or of frozen memory, whose serial
  // number is then `token`; `rank` 1: the sender has made it.
  enum SegmentWord : uint32_t {
    kOffered = 0,  // a segment of the sender; its descriptor is beside the frame
    kWanted = 1,   // one of the receiver: it was lost
  };
  // What a kReleased frame says, in its `method`; the body is the words.
  enum ReleasedWord : uint32_t {
    kReturned = 0,   // locations in the arena of the receiver
    kForgotten = 1,  // numbers of frozen memory of the sender
  };
  enum class Offer : uint8_t { kNone, kQueued, kSent };
  enum class Parts { kThere, kWait, kMoreToRead, kWrong };
  static void end_lease(Lease* lease);
  SocketLane::Events control_events();
  void drop_outbound();
  bool send_it(const Outgoing& outgoing, bool kept);
  void place_parts(const Outgoing& outgoing, bool kept, std::vector<uint64_t>& locations);
  std::optional<Slab> place(ByteSpan part);
  std::optional<Slab> place_kept(ByteSpan part);
  void copy_part(std::byte* to, ByteSpan part);
  std::optional<Slab> place_for_all(CastParts& cast, size_t index, const Outgoing& outgoing);
  void release_slabs(std::span<const uint64_t> locations);
  bool share_segment(uint32_t segment);
  bool offer_segment(uint32_t segment);
  void on_segment_wanted(uint32_t segment);
  bool send_record(const Outgoing& outgoing, std::span<const uint64_t> locations);
  void write_record(const Outgoing& outgoing, bool quiet);
  bool has_room_for(uint64_t size);
  void put_record(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t size, bool quiet);
  void has_queued(uint64_t size);
  uint64_t place_frozen(ByteSpan part);
  bool lend_frozen(const std::shared_ptr<Freezable>& memory, uint32_t* number);
  void offer_frozen(FrozenLoans::Loan& loan, std::shared_ptr<Freezable> memory);
  void watch_unsent(int64_t after_ns);
  void flush_forgotten();
  void note_lent(const Outgoing& outgoing, std::span<const uint64_t> locations, uint64_t size);
  bool no_longer_lent(uint64_t key);
  void forget_taken() const;
  bool flush_overflow();
  void ring_peer();
  void look_again();
  bool drain(bool* more);
  Parts receive_arena_parts(Message& message);
  Parts wait_for_segment(uint32_t segment);
  Parts copy_part(const UniqueFd* unmapped, const Message::ArenaRef& ref, Part& part);
  void flush_released() noexcept;
  void tell_of_released();
  void on_released(const Message& message);
  void on_forgotten(const Message& message);
  bool receive_frozen_part(const Message::ArenaRef& ref, Part& part);
  SocketLane::Verdict on_frozen_offered(SocketLane::Received& received);
  SocketLane::Verdict on_control_read(SocketLane::Received& received);
  void on_control_message(SocketLane::Received received);
  void short_of_room(const std::string& why);
  void found_room();
  void ask_later();
  bool has_waited_long();
  void lose(Message& message);
  void ask_for_segments();
  void finish(const Error& why);
  void release_memory();

  ShmContext context_;
  LinkSink& sink_;

  Mutex life_mutex_{LockRank::kLinkLife};

  Mutex finish_mutex_{LockRank::kShmLinkFinish};
  bool finished_ = false;
  Error gone_why_;
  std::atomic<bool> peer_gone_{false};
  std::atomic<bool> torn_down_{false};

  mutable Mutex send_mutex_{LockRank::kShmLinkSend};
  bool started_ = false;
  Mapping rings_;
  PeerBell bell_;
  std::optional<RingProducer> producer_;
  std::deque<Chunk> overflow_;
  std::atomic<uint64_t> backlog_{0};
  // Records with parts in the arena that the peer may not have taken: where each ends in all that has been written, or
  // waits for that, and how much it lends.
  struct Lent {
    uint64_t end;
    uint64_t bytes;
  };
  mutable std::deque<Lent> untaken_;
  mutable std::atomic<uint64_t> untaken_bytes_{0};
  uint64_t appended_ = 0;  // bytes of all records
  std::vector<Offer> offered_segments_;
  std::unordered_map<uint64_t, uint32_t> lent_;  // slab key -> times lent to this peer
  std::vector<uint64_t> released_;               // where ended_ were: what the peer has not been told of yet
  uint64_t released_quietly_ = 0;                // bytes that the peer may not have seen to be back
  bool tell_armed_ = false;
  FrozenLoans loans_;
  bool unsent_watched_ = false;
  std::mutex ended_loans_mutex_;  // a leaf
  std::vector<uint64_t> ended_loans_;  // Freezable::id() of what is over, and the peer has not been told so
  std::atomic<bool> has_ended_loans_{false};

  EndedLeases ended_;  // slabs of the peer that are done with here

  // The leader's.
  std::optional<RingConsumer> consumer_;
  RecordAssembler assembler_{ArenaParts::kAllowed};
  MessagePtr waiting_;  // for a segment that was lost, or memory
  int64_t waiting_since_ns_ = 0;  // 0: it does not wait for room here
  struct {
    std::shared_ptr<std::byte> bytes;  // shared: with the part, when all of it is here
    uint64_t done = 0;
  } reading_;  // the part of waiting_ that is being copied, of what is lent to several or has no mapping
  std::string wrong_;
  std::atomic<bool> polling_{false};
  std::atomic<uint32_t> bell_index_{kNoBellIndex};

  Mutex view_mutex_{LockRank::kShmLinkView};
  ArenaView view_;
  FrozenView frozen_view_;
  int64_t ask_after_ns_;
  bool ask_armed_ = false;
  bool told_of_shortage_ = false;

  SocketLane control_;
};

}  // namespace monarch
