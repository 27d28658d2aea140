// Actor: the base of every C++ actor. A class of your own, a constructor, methods, and one line that registers them:
//
//   struct Counter : monarch::Actor {
//     explicit Counter(int64_t start) : total(start) {}
//     int64_t add(int64_t by) { return total += by; }
//     int64_t total;
//   };
//   MONARCH_ACTOR(Counter, add)
//
// (MONARCH_ACTOR is in actor/registry.h, everything in monarch.h.)
// An actor runs on one thread at a time, a message at a time, in order of each sender; on which thread of the pool may
// change from one message to the next. Between construction and destruction nobody else touches it: no locks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

class Node;
struct MeshFailure;

namespace internal {

// What an actor knows of itself. Owned by its cell, which outlives it.
struct ActorSelf {
  Node* node = nullptr;
  ActorId id;
  std::string class_name;
  std::string name;  // of the mesh
  int64_t rank = 0;
  std::vector<std::string> labels;
  std::vector<int64_t> sizes;

  uint32_t message_rank = 0;
  bool stop_wanted = false;
  std::string stop_reason;

  std::string describe() const;  // "the C++ actor Counter 'counters' (rank 3)"
};

}  // namespace internal

class Actor {
 public:
  Actor();  // takes its identity from whoever constructs it; alone (in a unit test) it is rank 0 of nothing
  virtual ~Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // Its place in the mesh that it was spawned in.
  int64_t rank() const { return self_->rank; }
  int64_t size() const;  // actors in that mesh
  const std::vector<std::string>& labels() const { return self_->labels; }
  const std::vector<int64_t>& sizes() const { return self_->sizes; }
  int64_t coordinate(std::string_view label) const;  // throws std::invalid_argument for an unknown dimension

  const std::string& name() const { return self_->name; }  // of the mesh
  ActorId id() const { return self_->id; }

  // While a message is handled: its receiver's rank in the view that it was sent to.
  int64_t message_rank() const { return self_->message_rank; }

 protected:
  // Ends this actor after the message that it is handling. Later callers are told "stopped: <reason>".
  void stop(std::string reason);

  // A one-way message of this actor found its receiver dead or stopped. True: that is all right. False: this actor
  // fails.
  virtual bool on_undeliverable(std::string_view why);

  // A rank of a mesh that this actor has spawned has failed. True: that is dealt with. False: this actor fails with it.
  // `told`: a call of this process waits for it, and throws. (actor/supervisor.h)
  virtual bool supervise(const MeshFailure& failure, bool told);

 private:
  friend class NativeCell;
  internal::ActorSelf* self_;
};

}  // namespace monarch
