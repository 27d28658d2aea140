// A node routes: between its links, its actors' cells and the calls that it waits for. One per process (several in
// tests). It has no thread of its own: whoever drives a link calls in, any thread may send.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "monarch/actor/cell.h"
#include "monarch/actor/deadlines.h"
#include "monarch/actor/pending_call.h"
#include "monarch/loop/driver.h"
#include "monarch/net/link.h"

namespace monarch {

class Node final : public LinkSink {
 public:
  struct Hooks {
    // Any thread. Makes a link to a node that there is none to; null: it cannot be reached. Must not block.
    std::function<std::shared_ptr<Link>(NodeId)> dial;
    // Reactor; the driving thread for kStopNode, which also comes behind data. A control frame that is not the node's own
    // business.
    std::function<void(Link&, MessagePtr)> on_control;
    // The driving thread. A link ended. Returns true if the node will be declared down later, with a better reason
    // (Node::node_down), by somebody who can know it; false: the end of the link is all that will be known.
    std::function<bool(NodeId, const Error&)> on_link_lost;
    // Any thread. node_down() was called for the first time for this node, with this reason.
    std::function<void(NodeId, const std::string&)> on_down;
    // Any thread. A one-way message of an actor that has no cell here (the client) could not be delivered.
    std::function<void(const std::string&)> on_undeliverable;
    // Any thread but an actor's: see answered().
    std::function<void(int64_t waited_ns)> on_answered;
    // Any thread. Runs a task once, `delay_ns` from now, on a thread that may call the node.
    std::function<void(int64_t delay_ns, std::function<void()>)> after;
  };

  Node(NodeId id, Driver& driver, Hooks hooks);
  ~Node() override;

  NodeId id() const { return id_; }
  Driver& driver() { return driver_; }

  // A thread that is no actor's has waited so long, and has the answers to a call.
  void answered(int64_t waited_ns) {
    if (hooks_.on_answered) hooks_.on_answered(waited_ns);
  }

  // ---- Links ----
  // shared_ptr: frames under way keep their link.
  void add_link(std::shared_ptr<Link> link);
  // The link to `node`, made if need be; null if the node is down or cannot be reached.
  std::shared_ptr<Link> route(NodeId node);
  // Every frame of this process is refused from now on; all links are closed; calls that wait for other nodes fail.
  void close_links();
  std::vector<std::shared_ptr<Link>> links() const;

  // The node is dead: everything that waits for it fails now, everything sent to it later fails at once. The first
  // reason stays. Nothing that still comes from it is taken.
  void node_down(NodeId node, const std::string& reason);
  bool is_down(NodeId node, std::string* reason) const;

  // ---- Sending ----
  // To a link or, for this node itself, to the cell. False: `*why` says that the node is down.
  bool send(NodeId node, const Outgoing& outgoing, std::string* why);
  // Sends `outgoing` to every member, with header.dest and header.rank filled in. If `call` is given, its token goes
  // along and ranks that cannot be reached are filled with that failure; else they go to on_undeliverable of the
  // sender. With header.deadline_ns (a call only), ranks that have not answered by then are filled with kReplyError,
  // ("__deadline__", text) in the native codec.
  void cast(const Members& members, Outgoing& outgoing, const std::shared_ptr<PendingCall>& call);
  // Makes an actor of each member: `outgoing` is what its factory is told. Nobody answers; where it fails, calls say so.
  void spawn(const Members& members, Outgoing& outgoing);
  // One one-way message, with the header's rank as it is. If it finds nobody, its sender is told (kFlagQuiet: nobody is).
  void post(const ActorId& to, Outgoing& outgoing);

  static constexpr uint64_t kMessageBytesMax = uint64_t{10} << 30;  // the default of codec_max_frame_length
  // Any thread. From now on messages of this process with more bytes, body and parts together, are not sent: a call's
  // ranks are filled with that failure, a one-way message is undeliverable, in the place of an answer goes a failure.
  void set_message_bytes_max(uint64_t bytes) { message_bytes_max_.store(bytes, std::memory_order_relaxed); }
  // Why this message is not sent for its size; empty if it is small enough.
  std::string why_too_large(const Outgoing& outgoing) const;

  // ---- Back-pressure ----
  // What a sender may leave waiting in a link to a node before it should wait itself.
  static constexpr uint64_t kBacklogMax = uint64_t{16} << 20;
  // Any thread. Whether a one-way message to these should be sent now: no actor among them has asked to hold back
  // (Inflow), and no link to them has more than `backlog_max` bytes waiting. True for those that are dead. Nothing is
  // refused otherwise: who sends, waits first, or makes memory grow.
  bool has_room(const Members& members, uint64_t backlog_max);
  // Any thread, from a cell: kHold or kResume for its actor, to a node that sends to it (this one too).
  void tell_sender(NodeId node, FrameKind kind, ActorIndex actor);

  // ---- Actors ----
  void set_factory(CellKind kind, CellFactory& factory);
  void add_cell(ActorIndex index, std::shared_ptr<Cell> cell);
  // For a factory that makes several cells out of one spawn: what came early for this one is delivered first.
  void deliver_early(ActorIndex index, const std::shared_ptr<Cell>& cell);
  // An actor that is made when the first message for it comes: `spawn` is the kSpawn frame for it. Before any message to
  // `index`, which is made by this node.
  void add_lazy_actor(ActorIndex index, MessagePtr spawn);
  // Any thread; null: there is none (any more).
  std::shared_ptr<Cell> find_cell(ActorIndex index) const;
  // The actor has ended; `epitaph` is what later callers are told. Of ever so many actors, the last kEpitaphsMax have one;
  // to call an older one ends as a call to an actor that never was.
  static constexpr size_t kEpitaphsMax = 100'000;
  void remove_cell(ActorIndex index, std::string epitaph);
  // A new index for an actor that this node creates (here or elsewhere); the first of `count`.
  ActorIndex new_actor_index(uint32_t count = 1);

  // ---- Answering ----
  // kReply or kReplyError to the sender of `request`; nothing if it wants none.
  void reply(const FrameHeader& request, NodeId from, FrameKind kind, Outgoing& outgoing);
  // Answers any message that an actor will not handle: failure to a request, kUndeliverable to a one-way message.
  void refuse(const Message& message, std::string_view why);

  // ---- LinkSink ----
  void on_frame(Link& link, MessagePtr message) override;
  void on_control(Link& link, MessagePtr message) override;
  void on_closed(Link& link, const Error& why) override;

 private:
  struct Slot {
    uint32_t generation = 1;
    int64_t deadline_ns = 0;  // 0: none
    std::shared_ptr<PendingCall> call;
  };
  std::vector<std::shared_ptr<Link>> take_dead_links();  // links_mutex_ held
  void dispatch(MessagePtr message);
  void deliver(MessagePtr message);
  void on_reply(MessagePtr message);
  void on_spawn(MessagePtr message);
  void undeliverable(ActorIndex sender, NodeId from, const ActorId& dest, std::string_view why);
  // The same for what could not be sent to its node: told when it is known what the node died of.
  void unsent(ActorIndex sender, const ActorId& dest);
  uint64_t open_slot(std::shared_ptr<PendingCall> call, int64_t deadline_ns);
  Slot find_slot(uint64_t token);  // without a call: it is closed
  void expire(uint64_t token);
  void answer(uint64_t token, uint32_t rank, MessagePtr reply);
  void fill(uint64_t token, PendingCall& call, uint32_t rank, MessagePtr reply);
  void fail_owed(const std::function<bool(NodeId)>& owed_by, const std::string& why);
  // Takes a message whose actor does not exist (yet): keeps it if the actor's spawn may still come, or else says why
  // not.
  bool keep_early(MessagePtr& message, std::string* epitaph);
  void refuse_early(const std::function<bool(ActorIndex)>& of, const std::string& why);
  bool spawn_lazy(ActorIndex index);
  void write_epitaph(ActorIndex index, std::string text);  // cells_mutex_ held
  void on_room(const ActorId& actor, bool has_room);

  const NodeId id_;
  Driver& driver_;
  const Hooks hooks_;
  CellFactory* factories_[kCellKinds] = {};

  mutable std::mutex links_mutex_;
  std::unordered_map<NodeId, std::shared_ptr<Link>> routes_;
  std::vector<std::shared_ptr<Link>> all_links_;  // also those that only receive
  std::unordered_map<NodeId, std::string> down_;
  struct Unsent {
    ActorIndex sender;
    ActorId dest;
  };
  std::vector<Unsent> unsent_;  // to nodes whose link has broken, and that are not down yet
  std::atomic<bool> any_down_{false};
  std::atomic<uint64_t> message_bytes_max_{kMessageBytesMax};
  bool closing_ = false;

  mutable std::mutex cells_mutex_;
  std::unordered_map<ActorIndex, std::shared_ptr<Cell>> cells_;
  std::unordered_map<ActorIndex, std::string> epitaphs_;
  std::deque<ActorIndex> epitaph_order_;  // oldest first: the last kEpitaphsMax are kept
  // Came before their actor's spawn, from other senders.
  std::unordered_map<ActorIndex, std::vector<MessagePtr>> early_;
  std::unordered_map<ActorIndex, MessagePtr> lazy_;  // their spawns; null while it is being made
  std::atomic<uint64_t> next_index_;

  std::mutex held_mutex_;
  std::unordered_set<ActorId> held_;  // actors of any node that asked us to hold back
  std::atomic<bool> any_held_{false};

  std::mutex slots_mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  Deadlines deadlines_;
};

// One sender's wait until members have room. It gives way only to half of what made it wait.
class RoomWait {
 public:
  RoomWait(Node& node, const Members& members) : node_(node), members_(members) {}

  bool over() const { return node_.has_room(members_, backlog_max_); }
  // There is none: until when to sleep before over() is asked again, on the monotonic clock.
  int64_t next_look_ns();
  // True once, when it has taken kSlowNs: time to say for whom.
  bool is_slow();
  static void say_slow(const std::string& receiver);

 private:
  // Looks become rarer from the first of these to the second. At half of Inflow::kBytesMax a receiver has work for longer.
  static constexpr int64_t kLookNs = 500'000, kLookMaxNs = 16'000'000;
  static constexpr int64_t kSlowNs = 5'000'000'000;

  Node& node_;
  const Members& members_;
  uint64_t backlog_max_ = Node::kBacklogMax;
  int64_t start_ns_ = 0;
  int64_t look_ns_ = kLookNs;
  bool told_ = false;
};

// Of a kUndeliverable frame: whom the message was for; none if the frame does not say.
ActorId undeliverable_dest(const Message& message);

// What a call past its deadline is answered with (see Node::cast).
MessagePtr make_expired(uint64_t token, uint32_t rank, std::string_view text);

// The failure that a rank gets when its process is gone.
MessagePtr make_failure(uint64_t token, uint32_t rank, std::string_view why);

}  // namespace monarch
