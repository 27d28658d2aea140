// The link over one channel between hosts: both lanes in chunks (net/tcp/chunks.h), so that control never queues behind
// data, and a sign of life in each direction, so that a connection that is silently gone is noticed.
//
// Who sends writes inline while the channel takes it, the reactor writes the rest. Small frames are copied; a large one is
// written from where it lies, and only what does not go at once is copied, or nothing where it is kept anyway
// (send_kept()). Everything is read by the reactor. The end of the channel is the end of the link.
//
// Locks, in this order: delivery, write. In a child of a user's fork() nothing here does anything.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "monarch/base/mutex.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/channel.h"
#include "monarch/net/link.h"
#include "monarch/net/tcp/chunks.h"

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

 private:
  // One frame that is not with the channel yet.
  struct Record {
    std::vector<iovec> pieces;  // what is in no chunk yet begins at `next`
    size_t next = 0;
    uint64_t left = 0;     // bytes in no chunk yet
    bool borrows = false;  // some pieces are the caller's
    std::unique_ptr<std::byte[]> bytes;  // that pieces point to
    std::shared_ptr<const void> keeper;  // of what else they point to; shared: with the session that may send it again
  };
  // What has its place on the stream.
  struct Piece {
    iovec bytes;
    ChunkHeader header;              // that bytes points to, of the first piece of a chunk
    std::shared_ptr<Record> record;  // whose bytes these are; shared: by its pieces and the queue
  };

  bool send_on(std::deque<std::shared_ptr<Record>>& lane, const Outgoing& outgoing, std::shared_ptr<const void> keeper,
               uint64_t begun = 0);
  static std::shared_ptr<Record> make_record(const Outgoing& outgoing, bool kept);
  static void leave_out(Record& record, uint64_t begun);
  void keep_rest(Record& record, uint64_t size);
  void flush_locked();
  bool write_pieces();
  void commit_chunks();
  void commit_chunk(ChunkLane lane, std::deque<std::shared_ptr<Record>>& records);
  void commit_header(ChunkLane lane, uint32_t size);
  void wait_for_room(bool room);
  void retry_later();

  std::shared_ptr<std::byte> memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) override;
  void on_events(uint32_t events);
  bool read_some(uint64_t* bytes);
  void take(ChunkLane lane, MessagePtr message);
  void drain();
  void finish(const Error& why);
  void watch_silence();
  void on_tick();
  void on_pulse() override;
  static void linger(Reactor& reactor, std::unique_ptr<Channel> channel);

  Reactor& reactor_;
  LinkSink& sink_;
  const int64_t silence_ns_;

  // Reactor: reading. Held while it reads and tells; close() of another thread waits for that.
  Mutex delivery_mutex_{LockRank::kLaneDelivery};
  ChunkReader reader_;
  std::unique_ptr<std::byte[]> spill_;  // read to, where there is no better place
  bool heard_ = true;                   // something has come since the last tick
  int silent_ticks_ = 0;
  std::atomic<bool> silent_{false};     // so long that nothing is said to it any more
  int ticks_ = 0;
  std::atomic<bool> finished_{false};   // the end has been told, or nobody wants to hear of it

  Mutex write_mutex_{LockRank::kLaneWrite};
  std::unique_ptr<Channel> channel_;  // replaced with both locked
  std::deque<std::shared_ptr<Record>> data_, control_;
  std::deque<Piece> pieces_;
  uint64_t committed_ = 0;  // bytes in pieces_
  bool say_alive_ = false;
  bool spoken_ = false;         // something has been written since the last tick
  bool waits_for_room_ = false;
  bool retry_armed_ = false;    // a shortage: a timer will try again
  std::atomic<bool> stopped_{false};  // written with both sides locked
  std::atomic<uint64_t> backlog_{0};
};

}  // namespace monarch
