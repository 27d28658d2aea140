// The link over one channel between hosts: both lanes in chunks (net/tcp/chunks.h), so that control never queues behind
// data, and a sign of life in each direction, so that a connection that is silently gone is noticed.
//
// Where there is much data, it goes by further connections from then on, the *stripes* of the link
// (net/tcp/stripe_reader.h), which the session makes; the first one has control to itself. The end of any of them is the
// end of the link, which goes on as any other: on the next.
//
// Who sends writes inline while the channel takes it, the reactor writes the rest. Small frames are copied; a large one is
// written from where it lies, and only what does not go at once is copied, or nothing where it is kept anyway
// (send_kept()). Everything is read by the reactor. The end of the channel is the end of the link.
//
// Locks, in this order: delivery, write. In a child of a user's fork() nothing here does anything.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "monarch/base/mutex.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/link.h"
#include "monarch/net/tcp/chunk_output.h"

namespace monarch {

class TcpLink final : public Link,
                      public Reactor::Pulsed,
                      private RecordMemory,
                      public std::enable_shared_from_this<TcpLink> {
 public:
  // `silence_ns`: when so long nothing has come, the connection is gone; 0: it is not looked at.
  TcpLink(Reactor& reactor, LinkSink& sink, NodeId peer, int64_t silence_ns);
  ~TcpLink() override;

  // Any thread, once. What was sent before goes now.
  void start(std::unique_ptr<Channel> channel);

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override;
  bool send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) override;
  std::unique_ptr<RecordAssembler> take_begun() override;
  bool go_on_with(std::unique_ptr<RecordAssembler> begun) override { return reader_.go_on_with(std::move(begun)); }
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override { return backlog_.load(std::memory_order_relaxed); }
  std::string_view transport() const override { return "tcp"; }
  int64_t silent_ns() const override { return silent_ ? silence_ns_ : 0; }
  int stripes() const override { return stripes_wanted_.load(std::memory_order_relaxed); }
  bool become_stripe_of(const std::shared_ptr<Link>& link) override;

  // How many more connections its data is spread over, once there is much of it. kAsNeeded: between two
  // machines a few, as networks give each connection only so much, and on one machine none.
  static constexpr int kAsNeeded = -1;
  void use_stripes(int count) { stripes_wanted_ = count; }  // before start()
  // No peer makes us watch more.
  static constexpr int kStripesMax = 16;
  // As somebody has written it, or nobody (null). None: it is no such number.
  static std::optional<int> stripes_from(const char* text);
  size_t stripe_count() const;

 private:
  // One connection, and what the reactor watches it for.
  struct Stream {
    explicit Stream(std::unique_ptr<Channel> channel) : out(std::move(channel)) {}
    ChunkOutput out;
    bool wants_input = true, wants_room = false;
    uint32_t watched = 0;
    bool shortage = false;  // of a stripe: a timer will try again
    bool spoken = false;    // something has been written since the last tick
    // delivery_mutex_, of a stripe but for `ended`:
    bool ended = false;     // nothing more comes
    bool heard = true;      // something has come since the last tick
    int silent_ticks = 0;
  };

  bool send_on(bool control, const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun = 0);
  void keep_rest(OutRecord& record, uint64_t size);
  void flush_main();
  void flush_stripes();
  bool write(Stream& stream);
  void commit_chunks();
  void want_room(Stream& stream, bool room);
  void watch(Stream& stream);
  void retry_later(Stream& stream);

  std::shared_ptr<std::byte> memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) override;
  void on_events(uint32_t events);
  bool read_some(uint64_t* bytes);
  void take(ChunkLane lane, MessagePtr message);
  ChunkReader::Take take_all() {
    return [this](ChunkLane lane, MessagePtr message) { take(lane, std::move(message)); };
  }
  void drain();

  void hand_over();
  bool said_stripe(ByteSpan rest);
  void add_stripe(std::unique_ptr<Channel> channel, ByteSpan early);
  void on_stripe_events(size_t index, uint32_t events);
  void look_at_stripe_later(size_t index);
  bool read_stripe(size_t index, Error* why);
  bool go_on_striped();
  bool is_done(size_t index) const;
  bool all_done() const;
  void drain_stripes();
  void watch_stripes();
  bool ends_later();
  void end_after(uint64_t striped_bytes);

  void finish(const Error& why);
  void watch_silence();
  void on_tick();
  bool is_stripe_silent();
  void say_alive(bool anyhow);
  void on_pulse() override;
  static void linger(Reactor& reactor, std::unique_ptr<Channel> channel);

  // What one event reads, or writes, at most: no peer keeps the reactor from the others.
  static constexpr uint64_t kBytesPerEvent = 4 << 20;
  // Who ends a link has at most so much to read that was under way; what comes later was sent later.
  static constexpr uint64_t kDrainMax = 256 << 20;
  static constexpr size_t kSpillBytes = 64 << 10;
  // What of a stripe may have come before its turn: some chunks, so that one stripe does not wait for the way of another.
  static constexpr int kStripeUnreadBytes = 2 << 20;
  // How long what was sent last may take to arrive after a link was closed.
  static constexpr int64_t kLingerNs = 2'000'000'000;

  Reactor& reactor_;
  LinkSink& sink_;
  const int64_t silence_ns_;
  std::atomic<int> stripes_wanted_{0};

  // Reactor: reading. Held while it reads and tells; close() of another thread waits for that.
  Mutex delivery_mutex_{LockRank::kLaneDelivery};
  ChunkReader reader_;
  std::unique_ptr<std::byte[]> spill_;  // read to, where there is no better place
  bool heard_ = true;                   // something has come since the last tick
  int silent_ticks_ = 0;
  std::atomic<bool> silent_{false};     // so long that nothing is said to it any more
  int ticks_ = 0;
  bool unwanted_ = false;  // as a stripe
  StripeReader stripe_reader_{reader_};
  std::vector<std::byte> rest_;    // what came behind the last chunk, of what is to be a stripe
  uint64_t striped_bytes_ = 0;     // that have come by stripes
  std::atomic<bool> finished_{false};   // the end has been told, or nobody wants to hear of it

  mutable Mutex write_mutex_{LockRank::kLaneWrite};
  std::unique_ptr<Stream> main_;                   // changed with both locked, as the next
  std::vector<std::unique_ptr<Stream>> stripes_;   // if there are any, all data goes by them
  OutRecords data_, control_;
  uint64_t stripe_chunks_sent_ = 0;
  size_t next_stripe_ = 0;      // that takes the next chunk, if it has room
  bool say_alive_ = false;
  bool say_stripe_ = false;     // behind all that was sent
  bool mute_ = false;           // it has been said
  bool broken_ = false;         // something could not be written: nothing more is
  std::shared_ptr<TcpLink> stripe_of_;  // shared: a link
  bool retry_armed_ = false;    // a shortage: a timer will try again
  std::atomic<bool> stopped_{false};  // written with both sides locked
  std::atomic<uint64_t> backlog_{0};
};

}  // namespace monarch
