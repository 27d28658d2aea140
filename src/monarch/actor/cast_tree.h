// Casts that go through a tree of gateways (docs/design/035). Pure: what the gateway that has numbered them, their
// origin, remembers and decides, and in which order a host takes what comes. Who runs it has links, clocks and locks. Not
// thread-safe.
//
// Between an origin and a host all that the origin sends on one session has one order: what goes directly, over the session
// itself, and what comes through the tree. A tree cast says of which session it is and behind which direct frame of that
// it comes (TreeHost::after), and a fence among the direct frames behind which tree cast the next ones come (kTreeFence).
// With the session ends all that: the next one counts from nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/net/message.h"
#include "monarch/wire/tree_cast.h"

namespace monarch {

struct TreeRange {
  uint32_t first = 0, count = 0;
  friend bool operator==(const TreeRange&, const TreeRange&) = default;
};
// At most `fan_out` groups of about the same size, in order. Of each the first passes the rest on.
std::vector<TreeRange> split_tree(TreeRange hosts, uint32_t fan_out);
// Of a tree of so many, who passes it on to that one; kNoParent: its origin sends it there.
inline constexpr uint32_t kNoParent = UINT32_MAX;
uint32_t parent_in_tree(uint32_t hosts, uint32_t fan_out, uint32_t host);

// ---- At the origin ----

// A cast and some of the hosts that it goes to, as one tree. What has gone wrong with a tree is sent anew as another one.
struct Tree {
  struct Host {
    TreeHost at;
    uint64_t first_target = 0;  // of `source`
    uint32_t unsent = 0;        // so many from here on have not been sent, for want of memory
    bool waiting = true;        // not known to have got it, nor sent anew
    bool refused = false;       // its targets have been told that it is lost
    int64_t settled_ns = 0;     // since when it has not been waiting
  };
  // shared: with links that are sending it, and with the other trees of this cast
  std::shared_ptr<const Message> source;  // what `cast` refers to, and the parts
  TreeCast cast;
  uint64_t bytes = 0;       // of what it carries
  uint64_t kept_bytes = 0;  // of all that is kept of the cast while one host waits
  int64_t deadline_ns = 0;  // when its caller gives up; 0: never
  uint32_t fan_out = kFanOutMin;
  std::vector<Host> hosts;
  uint32_t waiting = 0;
  bool any_unsent = false;
  uint64_t made = 0;  // as how many-th
};

// The frame's body for some of them, of which the first gets it.
std::string encode_tree(const Tree& tree, TreeRange hosts);
// The same where it is passed on.
TreeCast part_of(const TreeCast& cast, TreeRange hosts);

// Its tables are bounded by what senders may leave waiting (backlog()), and by the hosts that are up: what is kept of a
// cast is charged, as a whole, to each host that has not got it.
class CastOrigin {
 public:
  // So much to be sent to the first of these, which passes the rest on.
  struct Send {
    std::shared_ptr<Tree> tree;  // shared: its origin may be done with it meanwhile. Who sends looks at what stays as it is
    TreeRange hosts;
  };
  using Sends = std::vector<Send>;

  // A host that has not got something for so long since whoever passes it on has, is passed by: what is behind it is sent
  // anew without it, and for a while it gets everything directly. Where it is not its origin that does not reach it, those
  // behind it get everything directly too: they may be of many hosts that do not reach each other. Each time that is for
  // twice as long, until all has gone well for as long as the last time.
  static constexpr int64_t kStuckNs = 2'000'000'000, kStuckNsPerMiB = 100'000'000;
  static constexpr int64_t kDirectNs = 60'000'000'000, kDirectMaxNs = 3600'000'000'000;

  // What counts beside what a cast carries: for each, and for each host of it. And for each direct frame behind a fence.
  static constexpr uint64_t kCastCost = 512, kHostCost = 128, kFrameCost = 256;
  // As Tree::kept_bytes.
  static uint64_t cost_of(const Tree& tree) {
    return kCastCost + tree.bytes + tree.hosts.size() * kHostCost + tree.cast.targets.size();
  }

  // Whether a cast to this host may be sent on that session: not while the one before is not known to be over.
  bool takes(NodeId gateway, uint64_t session) const;
  // `hosts`, whom it takes(), are filled in but for their numbers; no gateway comes twice. Throws std::bad_alloc: nothing
  // has been sent.
  void send(Tree tree, int64_t now_ns, Sends& sends);
  // There is no memory to send this; it is sent at the next look(). Where there is none to send anew what should be, below,
  // a later look() finds who waits for it.
  void not_sent(const Send& send);
  // This host has got all of that session up to that one. False: it cannot have.
  bool taken(NodeId gateway, uint64_t session, uint64_t number, int64_t now_ns);
  // That has not reached the host, and will not; `with_rest`: nor those behind it.
  void missed(NodeId gateway, uint64_t session, uint64_t number, bool with_rest, int64_t now_ns, Sends& sends);
  // The host had no memory for it, and takes it for nothing. Its targets are to be told: the tree, and the host in it.
  // None: it is not known, or they have been.
  std::optional<Send> lost(NodeId gateway, uint64_t session, uint64_t number, int64_t now_ns, Sends& sends);
  // It is dead, or that session to it is over (0: whichever there is). What it may not have got: each tree, and the host in
  // it.
  Sends down(NodeId gateway, uint64_t session, int64_t now_ns, Sends& sends);
  // Passes by who is stuck. To be called now and then while not idle().
  void look(int64_t now_ns, Sends& sends);
  bool idle() const { return trees_.empty(); }

  // The tree cast behind which the next direct frame of that session comes, if that has to be said; else 0.
  uint64_t fence(NodeId gateway, uint64_t session) const;
  void fenced(NodeId gateway, uint64_t number);
  // A direct frame of that session, which waits there behind a fence, perhaps.
  void sent_behind(NodeId gateway, uint64_t session, uint64_t bytes);
  // What is kept for this host, here or there, since it has not got it yet, as far as is known.
  uint64_t backlog(NodeId gateway) const;

 private:
  struct Pending {
    std::shared_ptr<Tree> tree;
    uint32_t host;
    uint64_t bytes_behind = 0;  // of direct frames behind the fence that names it
  };
  struct Host {
    uint64_t session = 0;
    uint64_t numbered = 0, taken = 0, fenced = 0;
    std::deque<Pending> pending;  // taken + 1, ...
    int64_t since_ns = 0;         // how long the first of pending has been that
    int64_t direct_until_ns = 0, direct_ns = 0;  // the last time for so long
    uint64_t bytes = 0, kept_bytes = 0;  // of the trees of pending
    uint64_t bytes_behind = 0;           // of pending
  };
  struct Earlier {
    bool operator()(const std::shared_ptr<Tree>& a, const std::shared_ptr<Tree>& b) const { return a->made < b->made; }
  };
  using Picked = std::map<std::shared_ptr<Tree>, std::set<uint32_t>, Earlier>;
  using Nodes = std::set<NodeId>;

  static void pick_behind(const std::shared_ptr<Tree>& tree, const Nodes& bad, Picked& picked);
  Nodes stuck(int64_t now_ns) const;
  void send_unsent(Sends& sends);
  void pass_by_stuck(int64_t now_ns, Sends& sends);
  static bool is_stuck(const Host& host, int64_t since_ns, int64_t now_ns);
  static void send_directly(Host& host, int64_t now_ns);
  using Planted = std::vector<std::shared_ptr<Tree>>;
  Planted plant(Tree tree, int64_t now_ns, Sends& sends);
  std::shared_ptr<Tree> plant_one(Tree tree);
  void uproot(const Planted& planted, Sends& sends, size_t sends_before);
  void send_anew(const Picked& picked, int64_t now_ns, Sends& sends);
  void pass_by(const Nodes& bad, int64_t now_ns, Picked& picked);
  // Of hosts_; null: not with that session.
  static auto* find(auto& hosts, NodeId gateway, uint64_t session) {
    const auto found = hosts.find(gateway);
    return found == hosts.end() || found->second.session != session ? nullptr : &found->second;
  }
  Pending* pending(NodeId gateway, uint64_t session, uint64_t number);
  void settle(const std::shared_ptr<Tree>& tree, uint32_t host, int64_t now_ns);
  void note_passed_on(const Tree& tree, uint32_t host, int64_t now_ns);

  std::unordered_map<NodeId, Host> hosts_;
  std::set<std::shared_ptr<Tree>, Earlier> trees_;  // with hosts that wait
  uint64_t made_ = 0;
  bool any_unsent_ = false;
};

// ---- At a host ----

// What comes of one session, from its origin. Holds back what comes too early: that is bounded by what the origin may leave
// waiting.
class CastArrivals {
 public:
  struct Cast {
    uint64_t after = 0;
    std::shared_ptr<const Message> message;  // shared: with links that pass it on
    TreeCast cast;                           // `targets` are those of this host
    int64_t deadline_ns = 0;
  };
  using Arrival = std::variant<MessagePtr, Cast>;

  // A data frame on the session itself; null: one that has no place in the order (a kTreeCast).
  void direct(MessagePtr message);
  // Those that have come too early.
  template <typename Visit>
  void visit_early(Visit visit) const {
    for (const auto& [number, cast] : early_) {
      if (cast.message) visit(cast.cast);
    }
  }
  bool has_been_here(uint64_t number) const { return number <= taken_ || early_.contains(number); }
  // False: it has been here.
  bool cast(uint64_t number, Cast cast);
  // It comes in vain. False: it has been here.
  bool lost(uint64_t number) { return cast(number, {}); }
  // The session is over: what waits for a cast waits no more, and comes in `held`, and casts that wait for direct frames
  // are lost, as their origin knows.
  void end(MessageQueue& held);
  // What is to be delivered next, before anything else that comes.
  std::optional<Arrival> next();
  // All tree casts up to this one have been given out by next().
  uint64_t taken() const { return taken_; }

 private:
  MessageQueue held_;
  uint64_t passed_ = 0;  // direct frames that next() has given out, and what has no place
  uint64_t taken_ = 0;
  std::map<uint64_t, Cast> early_;
};

}  // namespace monarch
