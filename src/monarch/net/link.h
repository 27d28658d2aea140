// The transport seam. A Link carries frames to one peer node, in order; a LinkSink is told of what arrives.
//
// Every link has two lanes: data (in order among itself; what actors say to each other) and control, which never
// queues behind data and is always handled by the reactor. Size never changes liveness: a frame of any size goes
// through send(), in pieces if need be. A shortage here (descriptors, memory) is no statement about the peer: what needs it
// waits or takes another way, and the link lives.
//
// In a child of a user's fork() a link is dead: each call returns at once, sends return false, and no lock is taken nor
// shared page touched (base/forked.h).
//
// One suite (testing/link_suite.h) runs over every implementation. A new transport implements Link, calls the sink as
// written below, and adds an instantiation of the suite.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/net/message.h"

namespace monarch {

class Link;

class LinkSink {
 public:
  virtual ~LinkSink() = default;
  // A data frame. Called by whoever drives the link (leader, reactor), never concurrently for one link. Must not block,
  // must not take the GIL.
  virtual void on_frame(Link& link, MessagePtr message) = 0;
  // Before the parts of a large data frame come: memory for the next one, if there is better than the heap (RecordMemory).
  // Called as on_frame() will be, which may not follow.
  virtual std::shared_ptr<std::byte> memory_for(Link& link, const FrameHeader& header, const FrameRoute& route,
                                                uint64_t size) {
    static_cast<void>(link), static_cast<void>(header), static_cast<void>(route), static_cast<void>(size);
    return nullptr;
  }
  // A control frame. Called on the reactor.
  virtual void on_control(Link& link, MessagePtr message) = 0;
  // The link is over: after the last frame that the peer published, exactly once, unless close() was called before. The
  // link closes itself then.
  virtual void on_closed(Link& link, const Error& why) = 0;
};

class Link {
 public:
  explicit Link(NodeId peer) : peer_(peer) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  NodeId peer() const { return peer_; }

  // Any thread. Sends a data frame; everything in `outgoing` is copied before it returns, but for parts that are frozen
  // (net/freezable.h). Never blocks: what does not fit is queued (backlog()). False: the link is closed and nothing was
  // sent. Throws std::bad_alloc where there is no memory for what must be queued: nothing was sent, and the link is as it
  // was.
  virtual bool send(const Outgoing& outgoing) = 0;
  // As send(), where all that `outgoing` refers to stays as it is for as long as `keeper` is held: a link need not copy it.
  virtual bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) {
    static_cast<void>(keeper);
    return send(outgoing);
  }

  // What a session needs to go on inside of a frame (net/resuming_link.h), where a link can: the first data frame of the
  // next link is the rest of one that this has brought in part. Both: reactor, or a callback of this link.
  // The sink hears nothing more. Gives what has come of a data frame that is not whole; null: nothing.
  virtual std::unique_ptr<RecordAssembler> take_begun() { return nullptr; }
  // False: data has come already.
  virtual bool go_on_with(std::unique_ptr<RecordAssembler> begun) { return begun == nullptr; }
  // Any thread. As send_kept(), of a frame of whose record the peer has the first `begun` bytes, which is fewer than all.
  virtual bool send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) {
    return begun == 0 && send_kept(outgoing, std::move(keeper));
  }

  // Any thread. As send(), on the control lane; frames of at most kControlSizeMax bytes. On a link that is not connected
  // yet both lanes wait.
  virtual bool send_control(const Outgoing& outgoing) = 0;
  // Any thread. The peer's process is known to be dead, though its socket may be held open by a child it forked:
  // deliver what it left, then on_closed.
  virtual void peer_died(const Error& why) = 0;
  // Any thread, but not from a callback of the sink. Ends the link; the sink hears nothing more. What the peer has not
  // taken may be lost.
  virtual void close() = 0;
  // As close(), also when it has ended by itself, with what was sent on the data lane and may not have arrived, oldest
  // first, where that is kept (a session, until it is closed). shared_ptr: a link under it may be sending it.
  virtual std::vector<std::shared_ptr<const Message>> close_unfinished() {
    close();
    return {};
  }
  // Bytes queued here because the peer has not made room, or is not connected yet.
  virtual uint64_t backlog() const = 0;
  // ---- Of sessions (net/resuming_link.h) ----
  // Which one it is, by a number that both ends know and none has a second time; 0: it is no session.
  virtual uint64_t session() const { return 0; }
  // The other end is known to have it.
  virtual bool opened() const { return false; }
  // Of what one is made of: it has ended since nothing came for so long; 0: for another reason, or not at all.
  virtual int64_t silent_ns() const { return 0; }
  // How many data frames have been sent on it.
  virtual uint64_t data_frames_sent() const { return 0; }
  // ---- Of what a session is made of: more connections for what is large ----
  // How many more it makes use of, once it is connected; 0: none.
  virtual int stripes() const { return 0; }
  // Any thread. What was sent on it so far is the last that is; its connection becomes one more of `link`, of the same
  // kind, as soon as the other end has called this too, and it is over then. False: it does not. Null, in a callback: the
  // other end wants that, and is not to have it.
  virtual bool become_stripe_of(const std::shared_ptr<Link>& link) { return link == nullptr; }
  // "shm", "unix", ...: for people.
  virtual std::string_view transport() const = 0;

  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Closed, and nothing drives it any more: it may be destroyed by whoever holds it last.
  bool over() const { return over_.load(std::memory_order_acquire); }

 protected:
  std::atomic<bool> closed_{false};
  std::atomic<bool> over_{false};

 private:
  const NodeId peer_;
};

inline constexpr uint64_t kControlSizeMax = 1 << 20;

// The one line for a peer whose bytes made no sense; many in a row are counted (log_line_limited).
void log_malformed(const std::string& what);

}  // namespace monarch
