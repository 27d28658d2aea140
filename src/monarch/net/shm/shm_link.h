// The link between two processes of one host: a ring each way for data (net/shm/ring.h), the arena for large parts,
// and a unix socket for control frames, arena segments and the end of the peer (EOF).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "monarch/loop/driver.h"
#include "monarch/net/link.h"
#include "monarch/net/shm/arena.h"
#include "monarch/net/shm/ring.h"
#include "monarch/net/socket_lane.h"

namespace monarch {

// What a process has one of, for all its shared-memory links.
struct ShmContext {
  Reactor& reactor;
  Driver& driver;
  std::shared_ptr<Arena> arena;  // shared: slabs outlive links
};

// The peer's bell, mapped here.
struct PeerBell {
  Mapping page;
  UniqueFd event_fd;
};

// Parts of at least this many bytes go through the arena (below, one copy in and one out of the cache-sized ring cost
// less than the bookkeeping of a slab).
inline constexpr uint64_t kArenaPartMin = 16 * 1024;

class ShmLink final : public Link, public Pollable, public std::enable_shared_from_this<ShmLink> {
 public:
  struct Setup {
    NodeId peer;
    int side;         // 0: made the ring pair
    Mapping rings;    // a RingPair
    PeerBell bell;
    UniqueFd socket;  // connected
  };

  // A link whose peer is not connected yet: what is sent waits until start() or fail().
  ShmLink(ShmContext context, LinkSink& sink, NodeId peer);
  ~ShmLink() override;

  // Any thread, once. Begins to carry frames.
  void start(Setup setup);
  // Any thread, instead of start(): the peer cannot be reached. The sink hears on_closed.
  void fail(const Error& why);

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override { return backlog_.load(std::memory_order_relaxed); }
  std::string_view transport() const override { return "shm"; }

  bool poll() override;
  void before_sleep() override;

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    size_t written = 0;
  };
  class Lease;
  void drop_outbound();
  void place_parts(const Outgoing& outgoing, std::vector<uint64_t>& locations);
  bool share_segment(uint32_t segment);
  bool wait_for_segment(uint32_t segment);
  void write_record(const Outgoing& outgoing, std::span<const uint64_t> locations, bool quiet);
  void flush_overflow();
  void ring_peer();
  bool drain(bool* more);
  bool receive_arena_parts(Message& message);
  void give_back_slab(uint64_t packed, uint64_t bytes);
  void flush_released();
  void on_released(const Message& message);
  void on_control_message(MessagePtr message, UniqueFd fd);
  void finish(const Error& why);
  void release_memory();

  ShmContext context_;
  LinkSink& sink_;

  std::mutex life_mutex_;  // start() against close()
  std::mutex send_mutex_;
  bool started_ = false;
  Mapping rings_;
  PeerBell bell_;
  std::optional<RingProducer> producer_;
  std::deque<Chunk> overflow_;
  std::atomic<uint64_t> backlog_{0};
  enum class Offer : uint8_t { kNone, kQueued, kSent };
  std::vector<Offer> offered_segments_;
  std::unordered_map<uint64_t, uint32_t> lent_;  // slab key -> times lent to this peer
  std::vector<uint64_t> released_;               // slabs of the peer that are done with here
  uint64_t released_bytes_ = 0;
  std::atomic<bool> has_released_{false};

  // The leader's.
  std::optional<RingConsumer> consumer_;
  RecordAssembler assembler_;
  std::string bad_part_;
  uint32_t bell_index_ = kNoBellIndex;

  std::mutex view_mutex_;
  ArenaView view_;

  std::unique_ptr<SocketLane> control_;
  std::atomic<bool> torn_down_{false};
  std::atomic<bool> peer_gone_{false};
  std::mutex finish_mutex_;
  bool finished_ = false;
  Error gone_why_;
};

}  // namespace monarch
