// A peer is what a node that is talked to is to this one, whatever happens to the links between the two: it decides what
// lies between "the link has ended" and "that node is dead". Pure: whoever owns it tells it what has happened and does
// what it says. Routes has one for each node that it has a link to, with no lease: the link's end is the end. Between hosts
// that link is a session (net/resuming_link.h), which has a peer with a lease inside.
//
//   state       event      next        action
//   kNone       kWanted    kLinked     dial; with no lease (one host)
//   kNone       kWanted    kResuming   dial: what is to be opened is opened as it is resumed
//   kNone       kLink      kLinked     use it
//   kLinked     kLink      kLinked     only listen to it: both have dialled at once, and order wants one direction each
//   kLinked     kShortage  kNone       with no lease: give up what waits for it (its dial has been tried long enough, for
//                                      want of something here): that says nothing about it, and the next message dials
//                                      again. With a lease as kClosed
//   kLinked     kClosed    kEnded      report; with no lease
//   kLinked     kClosed    kResuming   dial if this side has dialled before, else wait; look again when the lease is over
//   kResuming   kLink      kLinked     resume on it: each says how much it has received, the rest is sent again
//   kResuming   kShortage  kResuming   dial again soon
//   kResuming   kClosed    kResuming   dial again soon
//   kResuming   kTimer     kResuming   dial: the time to do so has come, or the last dial has not got through
//   kResuming   kTimer     kEnded      report: the lease is over
//   kResuming   kRefused   kEnded      report: it says itself, or who is in its place does, that there is nothing to resume
//   any         kDeclared  kDead       drop all
//
// Everything else changes nothing. In kEnded it is yet to be told what the node has died of: nothing is sent to it any
// more, nothing is refused yet, and a link that comes now is only listened to: never half a death.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "monarch/net/message.h"

namespace monarch {

enum class PeerState : uint8_t { kNone, kLinked, kResuming, kEnded, kDead };
enum class PeerEvent : uint8_t {
  kWanted,    // something is to be sent
  kLink,      // a link to it is there, dialled by it; of a session: both ends have agreed on where it goes on
  kShortage,  // the link ended before it was one, for want of something in this process (ErrorCode::kUnavailable)
  kClosed,    // the link ended
  kTimer,     // the moment that was asked for
  kDeclared,  // the node is known to be dead
  kRefused,   // the link was refused for good (ErrorCode::kRefused)
};
enum class PeerAction : uint8_t { kNothing, kUse, kListen, kDial, kGiveUp, kReport, kResume, kDrop };

struct PeerStep {
  PeerAction action = PeerAction::kNothing;
  int64_t look_again_ns = 0;  // when kTimer is to come; 0: no more
};

class Peer {
 public:
  // `lease_ns`: how long a peer without a link lives on; 0: it does not, as on one host. `dials`: this side makes the new
  // links; else the other one does. `opening_ns`: how long the first link may take, lease_ns at least.
  explicit Peer(int64_t lease_ns = 0, bool dials = true, int64_t opening_ns = 0)
      : lease_ns_(lease_ns), opening_ns_(std::max(lease_ns, opening_ns)), dials_(dials) {}

  PeerState state() const { return state_; }
  PeerStep on(PeerEvent event, int64_t now_ns);

  static constexpr int64_t kRedialNs = 10'000'000, kRedialMaxNs = 1'000'000'000;
  // How long one dial may take before the next one; half of the time that there is for all, if that is more.
  static constexpr int64_t kDialNs = 5'000'000'000;

 private:
  PeerStep begin_resuming(int64_t now_ns, int64_t limit_ns);
  PeerStep dial(int64_t now_ns) const;
  PeerStep redial_soon(int64_t now_ns);

  const int64_t lease_ns_, opening_ns_;
  const bool dials_;
  PeerState state_ = PeerState::kNone;
  int64_t lease_end_ns_ = 0;
  int64_t dial_ns_ = kDialNs;
  int64_t redial_ns_ = kRedialNs;
};

// What makes a new link go on exactly where the last one ended: frames are counted at both ends (each lane is in order and
// loses only its end, so the count is the sequence number and no frame has to carry one); those that the peer has not
// acknowledged are kept, and sent again from where it says it is. One of each for each lane. Not used where there is no
// lease.

// Of the sender.
class ResumeWindow {
 public:
  // How much may wait here is bounded by whoever sends: bytes() belong to the backlog.
  void sent(std::shared_ptr<const Message> copy);
  // The peer has received so many in all. False: it cannot have.
  bool acknowledged(uint64_t count);
  // A new link: what the peer, having received so many in all, is to be sent again, in order. None: it says what cannot be,
  // and is not the one that it was.
  std::optional<std::vector<std::shared_ptr<const Message>>> resume(uint64_t count);
  uint64_t bytes() const { return bytes_; }
  uint64_t sent_count() const { return first_ + unacknowledged_.size(); }
  // All that it holds, in order; it is empty then.
  std::vector<std::shared_ptr<const Message>> take();

 private:
  uint64_t first_ = 0;  // number of the first of unacknowledged_
  std::deque<std::shared_ptr<const Message>> unacknowledged_;  // shared: with a link that is sending it
  uint64_t bytes_ = 0;
};

// Of the receiver.
class ReceivedCount {
 public:
  // So much may be unacknowledged before that is due; less is in time when it has waited a moment, which the owner times.
  static constexpr uint64_t kAckEvery = 64, kAckBytes = 1 << 20;

  void received(uint64_t bytes) { ++count_, unacknowledged_bytes_ += bytes; }
  uint64_t count() const { return count_; }
  bool ack_due() const { return count_ - acknowledged_ >= kAckEvery || unacknowledged_bytes_ >= kAckBytes; }
  bool ack_pending() const { return count_ != acknowledged_; }
  void note_acknowledged() { acknowledged_ = count_, unacknowledged_bytes_ = 0; }

 private:
  uint64_t count_ = 0;
  uint64_t acknowledged_ = 0;  // of count_
  uint64_t unacknowledged_bytes_ = 0;
};

}  // namespace monarch
