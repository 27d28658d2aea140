// A node routes: between its links, its actors' cells and the calls that it waits for. One per process (several in
// tests). It has no thread of its own: whoever drives a link calls in, any thread may send.
//
// What it knows lies in four parts, each with its lock: Routes (links, and who is dead), Directory (cells, and what waits
// for those to come), Calls (what is waited for), Flow (who has asked to hold back). The node joins them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "monarch/actor/cast_tree.h"
#include "monarch/actor/cell.h"
#include "monarch/actor/forwarding.h"
#include "monarch/actor/recent.h"
#include "monarch/actor/successions.h"
#include "monarch/loop/timers.h"
#include "monarch/net/link.h"
#include "monarch/wire/error_kind.h"
#include "monarch/wire/failure.h"
#include "monarch/wire/last_words.h"

namespace monarch {

class Calls;
class Directory;
class Driver;
class Flow;
class PendingCall;
class Reductions;
class Routes;
struct UnsentMessage;
class UnobservedFailures;
struct CastTreeLimits;
struct Members;
struct MembersByHost;
struct SeenCall;
struct Trees;
struct TreesFrom;

class Node final : public LinkSink {
 public:
  struct Hooks {
    // Any thread. Makes a link to a node that there is none to; null: it cannot be reached. Must not block.
    std::function<std::shared_ptr<Link>(NodeId)> dial;
    // Any thread. Through whom a node is reached that is on another host; 0: it is dialled. Must not block.
    std::function<NodeId(NodeId)> gateway_of;
    // Any thread. The gateway of the host that a node of another host is on; 0: not known.
    std::function<NodeId(NodeId)> gateway_there;
    // Reactor. Memory for a frame of so many bytes that goes on to other processes of this host, from which links to them
    // need not copy it; null: the heap. Empty: there is none.
    std::function<std::shared_ptr<std::byte>(uint64_t size)> memory_to_pass_on;
    // Reactor; the driving thread for kStopNode, which also comes behind data. A control frame that is not the node's own
    // business.
    std::function<void(Link&, MessagePtr)> on_control;
    // The driving thread. A link ended. Returns true if the node will be declared down later, with a better reason
    // (Node::node_down), by somebody who can know it; false: the end of the link is all that will be known.
    std::function<bool(NodeId, const Error&)> on_link_lost;
    // Any thread. Whether it is the gateway of a third host, neither of this process nor of the script: that a session to
    // it ends says nothing of it, whatever that has ended for. Who is told of the end (on_link_lost) lets go of it, or
    // declares it down, now or later. Empty: none is.
    std::function<bool(NodeId)> is_third;
    // Any thread. A node that is reached through another one is lost: that one says so, or has ended. Whoever knows
    // declares it down (Node::node_down), now or later. Empty: it is down.
    std::function<void(NodeId, FailurePtr)> on_way_lost;
    // Any thread. A one-way message of an actor that has no cell here (the client) could not be delivered to `dest`.
    std::function<void(const ActorId& dest, const Failure& why)> on_undeliverable;
    // Any thread, maybe with a lock of its user's held (the GIL): must not block. Something that the client owns has
    // failed. Before anybody who calls it is told. Empty: an actor's failure that nobody is told of for a second is a line
    // on stderr.
    std::function<void(MeshFailure)> on_mesh_failure;
    // Any thread. See observed(): an end of one of these need not be told again, on stderr.
    std::function<void(const Members& members)> on_observed;
    // As timers: a call has not been answered, and will soon be past its deadline (Calls::kOverdueNs).
    std::function<void(const std::shared_ptr<PendingCall>& call)> on_overdue;
    // Any thread but an actor's: see answered().
    std::function<void(int64_t waited_ns)> on_answered;
    // As on_mesh_failure, in the place of everything else: these have a restart policy, or share their process with what
    // has one. What is not made anew is given to decide(). Empty: nothing is made anew.
    std::function<void(std::vector<MeshFailure>)> on_restart_wanted;
    // The driving thread, or who calls restart(): `from` (this node, too) says that this has been made anew.
    std::function<void(NodeId from, const Successions::Notice& notice)> on_restarted;
    // As timers, now and then while there are any: the calls that have not been answered for a while. True: also look again
    // if there are none (Calls::Hooks).
    std::function<bool(const std::vector<std::shared_ptr<PendingCall>>& calls)> on_look;
    // Reactor; any thread if this node asks itself. A kProbe or kSilent.
    std::function<void(MessagePtr)> on_inquiry;
    // Reactor; any thread if this node asks itself. Somebody wants the stacks of this process: tell_stacks(), soon.
    std::function<void(NodeId asker, uint64_t token, uint32_t rank)> on_stacks_wanted;
  };

  // Destroyed when no timer of `timers` runs any more.
  Node(NodeId id, Driver& driver, Timers& timers, Hooks hooks);
  ~Node() override;

  NodeId id() const { return id_; }
  Driver& driver() { return driver_; }
  Clock& clock() { return timers_; }

  // Any thread. Somebody has been told that a call to these has failed.
  void observed(const Members& members) const;
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
  // A data frame to the peer of this link, behind all that has been sent to it, whichever way that goes. False: it is over.
  // Throws std::bad_alloc.
  bool send_to_peer(Link& link, const Outgoing& outgoing);

  // The node is dead: everything that waits for it fails now, everything sent to it later fails at once. The first
  // reason stays. Nothing that still comes from it is taken. Of the dead the last Routes::kDeadMax are remembered.
  void node_down(NodeId node, FailurePtr reason);
  // Those that are lost together, as what runs on a host is with it: all are dead before anybody is told of the first.
  struct Down {
    NodeId node;
    FailurePtr reason;
  };
  void nodes_down(std::vector<Down> lost);
  // The host of that gateway, which may be well, is not reached: everything that waits for its nodes fails now, and what
  // was sent to them and may not have arrived comes back, or its sender is told. What is sent later makes a new session.
  // False: there never was a session, and nothing was to be sent on it but what others had cast, and this node passes on.
  bool let_go(NodeId gateway, const Failure& why);
  bool is_down(NodeId node) const { return why_down(node) != nullptr; }
  FailurePtr why_down(NodeId node) const;  // null: it is not, or not any more known to be

  // Frames for `node`, to which there is no way yet, go through `gateway` for good, and its answers come in the way
  // that is its own; whoever dies on either takes those behind it along. Frames of others pass through this node
  // likewise, if it has a route to where they go. Nobody speaks for a node that has dialled this one, or comes
  // through another. Whatever is not taken or passed on, its sender is told.
  void reach_through(NodeId node, NodeId gateway);

  // ---- Sending ----
  // To a link or, for this node itself, to the cell. False: `*why`, where asked for, says that the node is down, or, with
  // `*no_memory`, that there is no memory to send it.
  bool send(NodeId node, const Outgoing& outgoing, std::string* why = nullptr, bool* no_memory = nullptr);
  // Sends `outgoing` to every member, with header.dest and header.rank filled in. If `call` is given, its token goes
  // along and ranks that cannot be reached are filled with that failure; else they go to on_undeliverable of the
  // sender. With outgoing.deadline_ns (a call only), ranks that have not answered by then are filled with kReplyError,
  // ErrorKind::kDeadline. Throws std::bad_alloc, after all that could be sent, if there was no memory
  // to send something.
  void cast(const Members& members, Outgoing& outgoing, const std::shared_ptr<PendingCall>& call);
  // Before the first message: when casts to other hosts go through a tree (actor/trees.h).
  void set_cast_trees(const CastTreeLimits& limits);
  // Makes an actor of each member: `outgoing` is what its factory is told. Nobody answers; where it fails, calls say so.
  // In the processes that are named, not in others that have taken their places: own() has told that those have ended.
  // Throws std::bad_alloc as cast() does.
  void spawn(const Members& members, Outgoing& outgoing);
  // One one-way message, with the header's rank as it is. If it finds nobody, its sender is told (kFlagQuiet: nobody is).
  void post(const ActorId& to, Outgoing& outgoing);

  static constexpr uint64_t kMessageBytesMax = uint64_t{10} << 30;  // the default of codec_max_frame_length
  // Any thread. From now on messages of this process with more bytes, body and parts together, are not sent: a call's
  // ranks are filled with that failure, a one-way message is undeliverable, in the place of an answer goes a failure.
  void set_message_bytes_max(uint64_t bytes) { message_bytes_max_.store(bytes, std::memory_order_relaxed); }
  // Why this message is not sent for its size; empty if it is small enough.
  std::string why_too_large(const Outgoing& outgoing) const;

  // ---- Stacks ----
  // Any thread. Asks the process of each member of `call` for its stacks; the control lanes carry it, so nothing that
  // actors do holds it up. Ranks of the dead are filled with that failure, others that do not answer by answer_stacks().
  // Returns the token.
  uint64_t ask_stacks(const std::shared_ptr<PendingCall>& call);
  // The answer of this process, a value (wire/value.h) of at most kControlSizeMax.
  void tell_stacks(NodeId asker, uint64_t token, uint32_t rank, ByteSpan value);
  // What is known of one that has not answered. Nothing if it has.
  void answer_stacks(uint64_t token, uint32_t rank, ByteSpan value);

  // ---- Calls that wait ----
  // Any thread. kProbe or kSilent, to this node too. A node that there is no way to does not get it.
  void inquire(NodeId node, const Outgoing& inquiry);
  // Any thread. Nobody will answer what has not been answered of this call: it ends with an error of that kind, of which a
  // text is all there is, or with that failure.
  void end_call(uint64_t token, ErrorKind kind, std::string_view text);
  void end_call(uint64_t token, const Failure& why);
  // From now on somebody looks (Hooks::on_look), though no call begins.
  void begin_looks();

  // ---- Back-pressure ----
  // A call with more bytes waits for room as one-way messages do, and so does any, once so many wait for their answers.
  static constexpr uint64_t kFloodBytes = 256 * 1024;
  static constexpr size_t kFloodCalls = 4096;
  bool is_flood(bool is_call, uint64_t bytes) const;
  // The calls that a script has under way at a time, to whomever: some GiB of memory here and where they wait. Actors may
  // have more: for those others may wait, who would have to answer first (FLOW-1).
  static constexpr size_t kCallsMax = 1'000'000;
  bool has_room_for_call() const;
  void set_calls_max(size_t calls_max) { calls_max_ = calls_max; }
  // What a sender may leave waiting in a link to a node before it should wait itself. A node on the way that finds more
  // waiting asks who sends through it to hold back, the destination as a whole (Forwarding).
  static constexpr uint64_t kBacklogMax = uint64_t{16} << 20;
  static constexpr ActorIndex kWholeNode = 0;  // in kHold and kResume
  // Any thread. Whether a one-way message to these should be sent now: no actor among them has asked to hold back
  // (Inflow), nor has a node on the way, and no link to them has more than `backlog_max` bytes waiting. True for those
  // that are dead. Nothing is refused otherwise: who sends, waits first, or makes memory grow.
  bool has_room(const Members& members, uint64_t backlog_max);
  // Any thread, from a cell: kHold or kResume for its actor, to a node that sends to it (this one too). False: that node
  // is dead, or will be found so; nothing more comes from it.
  [[nodiscard]] bool tell_sender(NodeId node, FrameKind kind, ActorIndex actor);

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
  // The actor has ended; `epitaph` is what later callers are told. Of ever so many actors, the last
  // Directory::kEpitaphsMax have one; to call an older one ends as a call to an actor that never was.
  void remove_cell(ActorIndex index, Failure epitaph);
  // An actor of this node has failed, or has stopped itself, as its cell says at once, and once; remove_cell() may come
  // later. Its owner is told, before anybody who calls it. If there is none that can be told, and no caller is told for a
  // second, a line on stderr says a failure. `why` is what end_of_actor() has made.
  void actor_ended(const Failure& why);
  // Whether a call of this node waits for what has failed so: it will be told.
  bool is_awaited(const Failure& why) const;
  // Any thread. An actor of this node, or its client, has spawned this: what has failed of it by now is told too.
  Supervisor::MeshId own(OwnedMesh mesh);
  // Any thread. Its owner decides about it now, or the hook of the client.
  void decide(MeshFailure failure);
  // Whether somebody has been told of it, by observed(), since then.
  bool was_told(const Failure& why, int64_t since_ns) const;
  // Where its actors note what they are in, for whoever has started this process.
  Activity& activity() { return activity_; }
  // Any thread, without a lock. As Supervisor::ended(), and in it are all whom senders find dead by now.
  std::optional<std::vector<uint32_t>> ended_ranks(Supervisor::MeshId mesh);
  // What the actors of this node own, and its client.
  Supervisor& supervisor() { return *supervisor_; }
  // Any thread: says now what would be said later. For the end of a process.
  void report_failures();
  // Any thread. All are ending: that others were faster, and get no messages any more, is no failure of an actor here.
  void note_ending() { ending_.store(true, std::memory_order_relaxed); }
  bool is_ending() const { return ending_.load(std::memory_order_relaxed); }
  // The record of an actor's end (kActor, kActorStopped), as callers get it. `rank`: in its own mesh; -1: not known.
  Failure end_of_actor(ActorIndex index, int64_t rank, Failure::Kind kind, std::string why) const;
  // Who has spawned this actor, from its spawn until remove_cell(); the index is 0 for no actor (the client). None: it is
  // not here, or it was not spawned.
  std::optional<ActorId> owner_of(ActorIndex index) const;

  // ---- In the place of what has ended ----
  struct Restart {
    struct Actors {
      Supervisor::MeshId mesh = 0;
      std::shared_ptr<const Message> spawn;  // as spawn() was given it; shared: with whoever may want it again
      uint32_t per_process = 0;              // of a swarm: so many are made of one spawn; 0: it is none
      std::vector<uint32_t> ranks;    // that have ended
      std::vector<uint32_t> stopped;  // as in Supervisor::restart()
    };
    std::vector<std::pair<NodeId, NodeId>> processes;  // one that has ended, and the one that was started for it
    Supervisor::MeshId procs = 0;                      // the mesh that they are of
    std::vector<uint32_t> proc_ranks;
    std::vector<Actors> actors;
  };
  // Any thread. Processes that have been started for others, and actors that are made anew, take the places of those that
  // have ended, for all who hold handles of them: messages that are sent from now on go there. Everybody is told. An error:
  // some of that has not ended; nothing has been done.
  Status restart(const Restart& order);
  // Any thread. What on_restarted was given, if it is to be believed. True: that was news.
  bool take_up(const Successions::Notice& notice);
  const Successions& successions() const { return *successions_; }

  // What is there now of what comes and goes: where nothing happens any more there are cells of what lives, and no more.
  struct Held {
    size_t cells = 0;     // and actors that are being made
    size_t parked = 0;    // spawns that wait for the end of what they make anew
    size_t early = 0;     // messages for actors that are yet to come
    size_t calls = 0;     // that have not been answered
    size_t unsent = 0;    // one-way messages whose senders are to be told why they were not sent
    size_t meshes = 0;    // that somebody here owns
    size_t answers = 0;   // calls of others of which some are held, or kept
  };
  Held held() const;

  void remove_port(ActorIndex index);
  std::optional<Failure> epitaph(ActorIndex index) const;  // none: it lives, or is not remembered
  // A new index for an actor that this node creates (here or elsewhere); the first of `count` (base/ids.h).
  ActorIndex new_actor_index(uint32_t count = 1);

  // ---- Answering ----
  // kReply or kReplyError to the sender of `request`; nothing if it wants none.
  void reply(const FrameHeader& request, NodeId from, FrameKind kind, Outgoing& outgoing);
  // Answers any message that an actor will not handle: failure to a request, kUndeliverable to a one-way message.
  void refuse(const Message& message, const Failure& why);
  // kReplyFailed to the sender of `request`.
  void reply_failed(const FrameHeader& request, NodeId from, const Failure& why);

  // ---- LinkSink ----
  void on_frame(Link& link, MessagePtr message) override;
  std::shared_ptr<std::byte> memory_for(Link& link, const FrameHeader& header, const FrameRoute& route,
                                        uint64_t size) override;
  void on_control(Link& link, MessagePtr message) override;
  void on_closed(Link& link, const Error& why) override;

 private:
  std::shared_ptr<Link> dial(NodeId node);
  bool send_on(Link& link, NodeId node, const Outgoing& outgoing, bool control);
  bool arrived_by_route(Link& link, MessagePtr& message, bool control);
  void forward(Link& link, MessagePtr message, bool control);
  void forward_on(Link& link, const Outgoing& outgoing, bool control, const std::shared_ptr<const void>& keeper);
  bool tell_origin(const Forwarding::Pair& pair, FrameKind kind);
  bool is_held(const ActorId& id) const;
  void refuse_onward(Link& link, const Outgoing& outgoing, const Failure& why);
  void tell_unsent(const UnsentMessage& message, const Failure& why);
  void lost_for_all(const Message& message);
  void refuse_routed(Link* link, const FrameHeader& header, const FrameRoute& route, const Failure& why);
  template <typename Failed>
  void send_to_all(const Members& members, Outgoing& outgoing, const Failed& failed);
  bool send_cast(const Members& members, std::span<const uint32_t> ranks, const Outgoing& outgoing, bool* no_memory);
  void spread(Link& link, MessagePtr message);
  void spread_to(Link& link, const std::shared_ptr<const Message>& message, NodeId from, Outgoing outgoing,
                 const std::vector<CastTarget>& targets);
  void take(Link& link, MessagePtr message);
  // Casts through a tree of hosts (node_tree.cc).
  bool is_elsewhere(const Link& link) const;
  bool put(Link& link, const Outgoing& outgoing, const std::shared_ptr<const void>& keeper);
  uint64_t backlog_to(const Link& link) const;
  using RanksByHost = std::vector<std::pair<HostNumber, uint32_t>>;
  void send_by_tree(const Members& members, RanksByHost& elsewhere, const Outgoing& outgoing);
  bool send_by_tree(const std::shared_ptr<const MembersByHost>& to, const Outgoing& outgoing, RanksByHost& left);
  std::shared_ptr<const MembersByHost> send_as_before(const Members& members, const Outgoing& outgoing,
                                                      RanksByHost& left);
  std::shared_ptr<const MembersByHost> group(const Members& members, const RanksByHost& elsewhere,
                                             RanksByHost& others);
  std::vector<uint32_t> begin_tree(std::shared_ptr<const Message> request, const TreeCast& cast,
                                   std::vector<std::shared_ptr<Link>>* onward);
  void begin_tree_for(Link& link, const std::shared_ptr<const Message>& request, const TreeCast& cast);
  void send_star(Link& link, const std::shared_ptr<const Message>& request, const TreeCast& host);
  void send_trees(CastOrigin::Sends sends);
  void look_at_trees();
  void arm_trees();
  void tree_host_down(NodeId node);
  void tree_session_over(const Link& link, const Failure& why);
  void end_arrivals(Link& link);
  void let_go_of_tree(Link& link, const Message& message);
  void on_tree_control(Link& link, const FrameHeader& header);
  void from_elsewhere(Link& link, MessagePtr message);
  void on_tree_cast(Link& link, MessagePtr message);
  bool pass_on(const TreeCast& cast, const std::shared_ptr<const Message>& message);
  void await_branches(const TreeCast& cast, NodeId parent);
  void tell_of_tree(NodeId origin, FrameKind kind, NodeId gateway, uint64_t session, uint64_t number, uint32_t why);
  void drain(TreesFrom& from);
  void spread_tree(Link& link, const CastArrivals::Cast& arrived);
  void refuse_targets(Link* link, const TreeCast& cast, const Failure& why);
  void refuse_part(const CastOrigin::Send& part, const Failure& why);
  std::unique_ptr<Reductions> make_reductions();
  void pass_on(const std::shared_ptr<const Message>& answer);
  void answered_together(MessagePtr message);
  bool is_gateway_elsewhere(NodeId node) const;
  void note_tree_call(uint64_t token, std::vector<NodeId> gateways, int64_t deadline_ns);
  void hurry_notices(int64_t after_ns);
  void arm_notices();
  void tell_seen();
  void tell_gateways(const std::vector<NodeId>& gateways, const std::vector<SeenCall>& calls, bool directly);
  void dispatch(MessagePtr message);
  void deliver(MessagePtr message);
  bool keep_early(MessagePtr& message);  // true: look again, its actor has come
  void on_spawn(MessagePtr message);
  uint64_t time_left_ns(int64_t deadline_ns);
  void give_up(NodeId node, const std::string& why);
  void let_go_of(Link& link, const Message& message, const Failure& why);
  void tell_of_down(NodeId node, const FailurePtr& reason);
  void tell_those_behind(NodeId node, const Failure& reason);
  void refuse_lost(const Message& message);
  void forward_lost(Link& link, const Message& message, const FrameRoute& route);
  void way_lost(NodeId node, Failure why);
  void refuse_cast(const Members& members, const Outgoing& outgoing, const std::string& why);
  void owned_ended(const Failure& why, uint32_t epoch);
  void supervise(std::vector<MeshFailure> failures);
  void stop_owned_by(NodeId node, const Failure& why);
  void stop_cell(Cell& cell, ActorIndex index, const std::string& reason);
  std::vector<uint32_t> ranks_to_restart(const Restart& order, const Restart::Actors& actors);
  void look_again(const Supervisor::Restarted& mesh);
  bool has_ended(Supervisor::MeshId mesh, const std::vector<uint32_t>& ranks, bool must_be_known) const;
  void spawn_again(const Restart& order, const Restart::Actors& actors, const Supervisor::Restarted& mesh);
  void replace_owned(NodeId ended, NodeId next, std::vector<NodeId>* named);
  void look_at_next(NodeId next);
  void say_again(std::vector<NodeId>& named, Successions::Notice& notice);
  void forget_epochs();
  void bury_at(NodeId ended, NodeId next);
  void undeliverable(ActorIndex sender, NodeId from, const ActorId& dest, const Failure& why);
  // The same for what could not be sent to its node: told when it is known what the node died of.
  void unsent(ActorIndex sender, const ActorId& dest);

  const NodeId id_;
  Activity activity_;
  Driver& driver_;
  Timers& timers_;
  const Hooks hooks_;
  CellFactory* factories_[kCellKinds] = {};
  std::atomic<uint64_t> next_number_{kFirstNumber};
  std::atomic<uint64_t> message_bytes_max_{kMessageBytesMax};
  std::atomic<bool> ending_{false};

  // In the order of their locks (base/lock_order.h); the node itself has none.
  const std::unique_ptr<Reductions> reductions_;
  const std::unique_ptr<Directory> directory_;
  const std::unique_ptr<Routes> routes_;
  const std::unique_ptr<Forwarding> forwarding_;
  const std::unique_ptr<Trees> trees_;
  const std::unique_ptr<Flow> flow_;
  const std::unique_ptr<Calls> calls_;
  std::atomic<size_t> calls_max_{kCallsMax};
  mutable std::mutex told_mutex_;                // a leaf
  mutable Recent<ActorId, int64_t> told_{4096};  // of whom observed() was called, and when; of processes with index 0
  const std::unique_ptr<Supervisor> supervisor_;
  const std::unique_ptr<Successions> successions_;
  std::mutex restart_mutex_;  // one restart after the other; outermost
  size_t epochs_looked_at_ = 0;  // forget_epochs() looks when there are so many; restart_mutex_ held
  std::mutex spawned_mutex_;  // a leaf
  std::unordered_set<NodeId> spawned_at_;  // where this node has ever made actors
  const std::unique_ptr<UnobservedFailures> unobserved_;  // of actors; its lock guards a leaf
};

// Of a kUndeliverable frame: whom the message was for; none if the frame does not say.
ActorId undeliverable_dest(const Message& message);

}  // namespace monarch
