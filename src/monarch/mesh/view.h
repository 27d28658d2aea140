// A mesh, or a part of one, as its messages see it: who its members are, and in which shape they are told to be. It knows
// neither a language nor how long a mesh lives; ActorMesh and Python's MeshRef both cast through it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/mesh/region.h"
#include "monarch/net/message.h"

namespace monarch {

class Node;
class PendingCall;
enum class WaitResult;

struct View {
  std::shared_ptr<const Members> members;  // by rank; shared: with the calls under way
  uint8_t flags = 0;                       // kFlagScalarView, kFlagView; 0: a whole mesh, in its own shape
  std::vector<std::byte> shape;            // with kFlagView: the part of each message that describes it

  // The members of a mesh (`whole`) or of a part of it, in the shape of a region that has as many ranks.
  static View of(std::shared_ptr<const Members> members, const Region& region, bool whole);

  // To every member: `outgoing` with what they are told of the shape. Null `call`: nobody waits for answers.
  void cast(Node& node, Outgoing outgoing, const std::shared_ptr<PendingCall>& call) const;
  std::shared_ptr<PendingCall> new_call() const;
};

// Actors that share a thread, and so can only be waited for by others: one, or those of a swarm.
struct OneThread {
  NodeId node = 0;
  ActorIndex first = 0;
  uint32_t count = 1;

  bool has(const ActorId& id) const { return id.node == node && id.index - first < count; }
};

// The first of `members` that cannot answer while `waiting`'s thread waits for it; null: none.
const ActorId* find_own(const Members& members, const OneThread& waiting);

// ---- Waiting for room ----

// How a language waits: with its locks given up, looking at its signals.
class RoomSleep {
 public:
  virtual ~RoomSleep() = default;
  // As Driver::wait(). kInterrupted: the wait is given up.
  virtual WaitResult sleep(bool (*over)(const void*), const void* context, int64_t until_ns) = 0;
  // Whether who waits is to go on though there is no room.
  virtual bool has_no_time() const { return false; }
  // Whom the message is for, when it takes long.
  virtual std::string receiver() = 0;
};

enum class RoomOutcome { kRoom, kTooLate, kGivenUp };

// Waits while one of `members`, or a link to one, has too much to take. Replies are not held up by this. Not beyond
// `deadline_ns` of the node's clock; 0: there is none. `counts`: RoomWait.
RoomOutcome wait_for_room(Node& node, const Members& members, bool counts, int64_t deadline_ns, RoomSleep& sleep);

}  // namespace monarch
