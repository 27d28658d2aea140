// A cell is where messages for one actor arrive: the seam between the node, which routes, and what runs the actor (the
// pool for C++ actors, a thread of its own for Python ones).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "monarch/actor/supervisor.h"
#include "monarch/base/ids.h"
#include "monarch/net/message.h"

namespace monarch {

class Node;

class Cell {
 public:
  virtual ~Cell() = default;
  // Any thread: requests, one-way messages, kStopActor and kUndeliverable, in order per sender. Must not block and must
  // not take the GIL. A cell that has ended answers through Node::refuse().
  virtual void deliver(MessagePtr message) = 0;
  // Any thread: something that this actor owns has failed. Must not block and must not take the GIL.
  virtual void supervise(MeshFailure) {}
  // Any thread: for who looks for cycles of calls. What it does, if it takes no message meanwhile. With a `token`: also
  // what that call of `caller` has asked it for, if the call waits in here for the actor, or is what the actor does, and
  // nobody else can answer it; else nothing.
  struct Occupied {
    std::string who;     // "rank 3 of trainers (pid 17)"
    std::string doing;   // the endpoint
    std::string called;
    bool queued = false;  // the call waits in the mailbox; else it is what the actor does
  };
  virtual std::optional<Occupied> occupied(NodeId /*caller*/, uint64_t /*token*/) { return std::nullopt; }
  // Any thread: the node has ended (Node::close_links). Who waits in here for messages is told, now and later.
  virtual void on_node_closed(std::string_view) {}
};

// Makes the cells of one kind of actor out of kSpawn frames.
class CellFactory {
 public:
  virtual ~CellFactory() = default;
  // Called by whoever drives. Must not block and must not take the GIL: the constructor of the actor runs later, on the
  // actor's own thread. shared_ptr: the node's table and the runner of the actor own a cell together. Null: it has
  // called Node::add_cell itself.
  virtual std::shared_ptr<Cell> make(Node& node, ActorIndex index, MessagePtr spawn) = 0;
};

// Which factory a kSpawn frame is for: the low byte of FrameHeader::method. The rest is, for a swarm, how many actors it
// makes, with consecutive indices.
enum class CellKind : uint32_t { kNative = 0, kPython = 1 };
inline constexpr uint32_t kCellKinds = 2;
inline constexpr uint32_t kSwarmShift = 8, kSwarmMax = (1u << 24) - 1;

}  // namespace monarch
