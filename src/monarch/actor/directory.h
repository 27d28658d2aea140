// Who is here: the cells of a node's actors and ports, what those have died of that are gone, and what waits for those that
// are yet to come. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "monarch/actor/early_messages.h"
#include "monarch/actor/recent.h"
#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/wire/failure.h"

namespace monarch {

class Cell;

class Directory {
 public:
  // Of ever so many actors that have ended, the last of these have an epitaph; an older one never was.
  static constexpr size_t kEpitaphsMax = 10'000;
  // Of ports, of which there are far more, and of each of which less is to be said.
  static constexpr size_t kClosedPortsMax = 100'000;
  // How long a message waits for an actor of which nothing is known: its spawn may still lie in the queue of a third node.
  static constexpr int64_t kEarlyLimitNs = 30'000'000'000;
  static constexpr char kPortClosed[] = "the port is closed: its receiver is gone";
  static constexpr char kBuried[] =
      "it ended with the process that was there before, and has not been made anew in the one that is now";
  static constexpr char kNoSuchActor[] = "there is no such actor in this process";

  using Refuse = std::function<void(const Message&, const Failure& why)>;
  // `refuse` answers messages that have waited in vain; it is called without a lock held.
  Directory(Timers& timers, Refuse refuse);
  ~Directory();

  // Actors with `count` indices from `first` on are about to be made for `owner`, who has spawned them, in that epoch.
  void expect(ActorIndex first, uint32_t count, const ActorId& owner, uint32_t epoch = 0);
  // Not over a cell that is there, nor after its end.
  void add(ActorIndex index, std::shared_ptr<Cell> cell);
  std::shared_ptr<Cell> find(ActorIndex index) const;  // null: there is none (any more)
  std::optional<ActorId> owner_of(ActorIndex index) const;  // none: it is not expected and not here
  uint32_t epoch_of(ActorIndex index) const;  // in which it was made; 0: as for owner_of()
  // The actors here that actors of `node` have spawned.
  std::vector<std::pair<ActorIndex, std::shared_ptr<Cell>>> owned_by(NodeId node) const;
  // Whether an actor of that index is here or expected, or was.
  bool is_known(ActorIndex index) const;
  std::optional<Failure> epitaph(ActorIndex index) const;
  // Its epitaph is written even if it has no cell yet: an actor may end before its spawn has been handled to the end.
  void remove(ActorIndex index, Failure epitaph);
  // As remove(), of a port; all of these are told the same.
  void remove_port(ActorIndex index);
  // An actor that has ended is to be made anew, of that: nobody is told any more what it had ended of, and messages wait
  // for the new one. Null: it has not quite ended; take_restart() gives the spawn back. `*ending`: its cell. Who was to be
  // made before, or anew, and has not begun never will: stops that wait for that one are refused.
  MessagePtr begin_restart(MessagePtr spawn, std::shared_ptr<Cell>* ending);
  // What is to be made now that this one has been removed; null: nothing. Of a process that is dead nothing is made.
  MessagePtr take_restart(ActorIndex index);
  // It will never be: its early messages are refused.
  void refuse_actor(ActorIndex index, const Failure& epitaph);

  // An actor that is made of `spawn` when the first message for it comes.
  void add_lazy(ActorIndex index, MessagePtr spawn);
  MessagePtr take_lazy(ActorIndex index);  // null: there is none, or it has been taken

  enum class Early { kKept, kFound, kRefused };
  // Takes a message that found no cell. kFound: look again, it has come meanwhile. kRefused: the message is still the
  // caller's, and will find nobody; `*why`. `made_here`: this node creates that actor, and would know it.
  Early keep_early(MessagePtr& message, bool made_here, Failure* why);
  // The cell of an actor that has been made: what came early is delivered first. Until the last of that is, later messages
  // join it, so that each sender's order holds.
  void deliver_early(ActorIndex index, const std::shared_ptr<Cell>& cell);
  // Of the first `count` indices of this creator, those that are not known here will never be. Before a process has heard
  // of an actor, its spawn may be on its way; where it has taken another one's place, what that one had never comes.
  void bury(NodeId creator, uint64_t count);
  // Nobody will make this actor; no actor of this creator that is not here yet.
  void refuse_early(ActorIndex index, const Failure& why);
  void refuse_early_of(NodeId creator, const Failure& why);

  void count(size_t* cells, size_t* parked, size_t* early) const;
  // Nothing is kept from now on, what waits is refused. Returns all cells.
  std::vector<std::shared_ptr<Cell>> close(const Failure& why);

 private:
  struct Nothing {};
  struct Entry {
    std::shared_ptr<Cell> cell;  // shared with what runs the actor; null: it is being made
    std::optional<ActorId> owner{};
    uint32_t epoch = 0;
  };
  std::optional<Failure> epitaph_locked(ActorIndex index) const;  // mutex_ held
  void set_cell(ActorIndex index, std::shared_ptr<Cell> cell);    // mutex_ held
  void refuse_all(EarlyMessages::Taken taken, const Failure& why);

  Timers& timers_;
  const Refuse refuse_;
  mutable Mutex mutex_{LockRank::kNodeDirectory};
  std::unordered_map<ActorIndex, Entry> cells_;
  Recent<ActorIndex, Failure> epitaphs_{kEpitaphsMax};
  Recent<ActorIndex, Nothing> closed_ports_{kClosedPortsMax};
  std::unordered_map<ActorIndex, MessagePtr> lazy_;  // their spawns; null while it is being made
  bool is_buried(ActorIndex index) const;  // mutex_ held
  void on_early_limit(ActorIndex index);
  void watch_early(ActorIndex index);      // mutex_ held

  std::unordered_map<ActorIndex, MessagePtr> parked_;    // the spawns of what has not quite ended
  std::unordered_map<NodeId, uint64_t> buried_;          // by creator: how many of its indices
  EarlyMessages early_;
  bool closing_ = false;
};

}  // namespace monarch
