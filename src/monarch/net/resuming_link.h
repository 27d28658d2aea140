// A session: one link to a peer on another host that goes on, exactly where it was, on another link when the one under
// it breaks. Upwards it is a Link whose end says that the lease is over, or that the peer is not the one any more that it
// was; downwards it is made of links of a transport, one after the other, its *carriers*.
//
//   - Who has opened it redials (net/peer.h says when); the other end waits. Two nodes that dial each other at once have
//     two sessions, each used in one direction, as they have two links on one host.
//   - The first frame on each carrier, on its control lane, says which session it is for and how much of each lane has
//     come (wire/session.h). Until the other end has answered with the same, the dialer sends nothing else on it. A
//     session is opened as it is resumed.
//   - A frame is kept until it is acknowledged, and that is part of backlog(): the back-pressure of senders bounds it.
//     Acknowledged is what has come every 64 frames, every MiB, and 20 ms after a frame at the latest.
//   - Only one carrier is heard at a time. What older ones still bring is dropped before it is counted, since it is sent
//     again.
//   - A large data frame that a break has cut in two goes on inside: what has come of it is kept here, and the other end is
//     told with the counts how many bytes that are. So a frame gets through however short its connections are.
//   - When there is much data, in whichever direction, the dialer opens further connections for the carrier
//     (Link::stripes()). One that has had some and has broken is followed by one without, for a minute: perhaps it broke
//     because of them.
//   - Nothing that the peer says is believed: a count that cannot be, or a word out of turn, ends the session
//     (kMalformed).
//
// A shortage here while redialling is waited out until the lease ends. A session that was never answered ends then with
// what kept it from that; one that was, with kClosed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"
#include "monarch/net/link.h"
#include "monarch/net/peer.h"
#include "monarch/wire/session.h"

namespace monarch {

class ResumingLink;
class Sessions;

// One link that a session is made of, or that has yet to say of which: what that link tells its sink goes to the session.
// Owned by Sessions until that link is over and nothing of it is under way.
class Carrier final : public LinkSink, public std::enable_shared_from_this<Carrier> {
 public:
  // shared_ptr: a link may be telling something when its session has ended.
  Carrier(std::shared_ptr<Sessions> sessions, std::shared_ptr<ResumingLink> session);
  // Of a link that a peer has dialled: what it says first names the session.
  Carrier(std::shared_ptr<Sessions> sessions, NodeId peer, bool guest, int64_t lease_ns);
  ~Carrier() override;

  void on_frame(Link& link, MessagePtr message) override;
  std::shared_ptr<std::byte> memory_for(Link& link, const FrameHeader& header, const FrameRoute& route,
                                        uint64_t size) override;
  void on_control(Link& link, MessagePtr message) override;
  void on_closed(Link& link, const Error& why) override;

  // Reactor, before anything of this carrier is taken for the session.
  void belongs_to(std::shared_ptr<ResumingLink> session);
  bool has_session() const { return session_.load(std::memory_order_acquire) != nullptr; }

  const NodeId peer;
  const bool guest = false;
  const int64_t lease_ns = 0;
  // Set once, by whoever has made it. shared_ptr: links are.
  std::shared_ptr<Link> link;
  std::atomic<bool> refused{false};  // nothing that it says counts any more
  // What has come of a frame by the one before, until `link` is there to go on with it.
  std::unique_ptr<RecordAssembler> begun;

 private:
  const std::shared_ptr<Sessions> sessions_;
  std::shared_ptr<ResumingLink> owner_;  // of session_
  std::atomic<ResumingLink*> session_{nullptr};
};

class ResumingLink final : public Link, public std::enable_shared_from_this<ResumingLink> {
 public:
  // Makes a link to the peer whose frames go to the sink, and begins to connect it; null: it cannot be reached. It ends
  // with kRefused if it is known that the peer is not there any more.
  using Dial = std::function<std::shared_ptr<Link>(LinkSink&)>;

  // Made by Sessions, which is told when it ends; shared: it is told then, whoever is gone. `dial` empty: the peer has
  // opened it, and redials.
  // `opening_ns`: Peer.
  ResumingLink(std::shared_ptr<Sessions> sessions, NodeId peer, uint64_t number, int64_t lease_ns, Dial dial,
               int64_t opening_ns);
  ~ResumingLink() override;

  // The dialer, once. What is sent before it waits.
  void begin();

  bool send(const Outgoing& outgoing) override;
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override { static_cast<void>(close_unfinished()); }
  std::vector<std::shared_ptr<const Message>> close_unfinished() override;
  uint64_t backlog() const override { return unacknowledged_.load(std::memory_order_relaxed); }
  uint64_t session() const override { return number_; }
  bool opened() const override { return opened_.load(std::memory_order_acquire); }
  uint64_t data_frames_sent() const override;
  std::string_view transport() const override { return "session"; }

  uint64_t number() const { return number_; }
  // How many carriers it has had.
  uint32_t carriers() const;

  // ---- From its carriers ----
  void on_frame(Carrier& carrier, Link& link, MessagePtr message);
  std::shared_ptr<std::byte> memory_for(const FrameHeader& header, const FrameRoute& route, uint64_t size) {
    want_stripes(size);
    return sink_.memory_for(*this, header, route, size);
  }
  void on_control(Carrier& carrier, Link& link, MessagePtr message);
  void on_closed(Carrier& carrier, Link& link, const Error& why);
  // Reactor. The peer goes on here on a new carrier, with this frame as its first. False: there is nothing to go on with.
  bool adopt(const std::shared_ptr<Carrier>& carrier, const SessionFrame& frame);
  // Reactor. The peer has made `link` to be a stripe of the carrier of that number. False: that is over.
  bool adopt_stripe(Link& link, uint32_t carrier);
  // Reactor. The peer, who has opened it, has opened another one, so for the peer it is over. When this returns its end has
  // been told.
  void overtaken();

 private:
  using Lock = std::unique_lock<Mutex>;
  struct Lane {
    mutable Mutex mutex{LockRank::kSessionLane};
    ResumeWindow window;
    std::shared_ptr<Link> link;  // that frames are sent on at once; null: they wait
  };
  bool transmit(Lane& lane, bool control, const Outgoing& outgoing, std::shared_ptr<const void> keeper = nullptr);
  void redial();
  std::shared_ptr<Carrier> new_carrier(SessionFrame* first);
  void connect(std::shared_ptr<Carrier> carrier, const SessionFrame& first);
  void on_session_frame(Carrier& carrier, const SessionFrame& frame);
  void on_acknowledge(Carrier& carrier, const ReceivedCounts& received);
  bool resume(const std::shared_ptr<Link>& link, const SessionFrame& frame);
  void stop_hearing(Link* link);
  uint64_t keep_begun();
  void take(PeerStep step, Lock& lock);
  void arm(int64_t at_ns);
  void on_timer();
  void end(Lock& lock, const Error& why);
  std::shared_ptr<Link> tear_down(Lock& lock);
  void malformed(Carrier& carrier, const char* what);
  void drop_carrier();
  ReceivedCounts received() const { return {received_data_.count(), received_control_.count()}; }
  void count(ReceivedCount& lane, const Message& message, Link& link);
  void acknowledge(Link& link);
  void on_ack_timer();
  void leave(std::shared_ptr<Link> link);
  void want_stripes(uint64_t size);
  void open_stripes();
  void update_backlog(uint64_t before, uint64_t after);

  const std::shared_ptr<Sessions> sessions_;
  Timers& timers_;
  LinkSink& sink_;
  const uint64_t number_;
  const int64_t lease_ns_;
  const Dial dial_;

  Mutex delivery_mutex_{LockRank::kSessionDelivery};
  std::shared_ptr<Carrier> hearing_;  // null: none is heard
  std::unique_ptr<RecordAssembler> begun_;  // what has come of the next data frame; while one is heard, that has it
  ReceivedCount received_data_, received_control_;
  Link* ack_link_ = nullptr;  // that of hearing_, when there is something to acknowledge
  Timers::TimerId ack_timer_ = 0;

  mutable Mutex mutex_{LockRank::kSession};
  Peer peer_;
  std::shared_ptr<Carrier> carrier_;  // null: none, or none yet
  uint32_t carriers_ = 0;             // how many there were: the number of the present one
  std::atomic<bool> opened_{false};   // the other end has it; changed with mutex_ held
  bool goes_on_inside_ = false;       // the other end can, of a frame
  static constexpr int64_t kNever = INT64_MAX;
  std::atomic<int64_t> stripes_from_ns_{kNever};  // when the carrier, which has none, may have some
  bool striped_ = false;              // the carrier has been given some
  int64_t unstriped_until_ns_ = 0;
  bool told_ = false;                 // the end has been told, or is not wanted
  std::vector<std::shared_ptr<const Message>> lost_;  // of the data lane, once it is over and until it is closed
  std::optional<Error> ending_;       // it ends with its carrier, with this
  int64_t silent_ns_ = 0;  // for how long nothing had come when the last carrier that was linked ended
  Error last_error_{ErrorCode::kClosed, "it cannot be reached"};
  Timers::TimerId timer_ = 0;
  int64_t due_ns_ = 0;

  Lane data_, control_;
  std::atomic<uint64_t> unacknowledged_{0};
};

}  // namespace monarch
