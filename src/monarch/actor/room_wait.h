// One sender's wait until the receivers of a message have room (Node::has_room), and for a call of a script its process.
#pragma once

#include <cstdint>
#include <string>

#include "monarch/actor/node.h"

namespace monarch {

// It gives way only to half of what made it wait.
class RoomWait {
 public:
  // `counts`: it is for a call, not of an actor: all calls of the process together are limited too.
  RoomWait(Node& node, const Members& members, bool counts) : node_(node), members_(members), counts_(counts) {}

  bool over() const { return has_call() && node_.has_room(members_, backlog_max_); }
  // There is none: until when to sleep before over() is asked again, on the node's clock.
  int64_t next_look_ns();
  // True once, when it has taken kSlowNs: time to say for whom.
  bool is_slow();
  void say_slow(const std::string& receiver) const;

 private:
  bool has_call() const { return !counts_ || node_.has_room_for_call(); }

  // Looks become rarer from the first of these to the second. At half of Inflow::kBytesMax a receiver has work for longer.
  static constexpr int64_t kLookNs = 500'000, kLookMaxNs = 16'000'000;
  static constexpr int64_t kSlowNs = 5'000'000'000;

  Node& node_;
  const Members& members_;
  const bool counts_;
  uint64_t backlog_max_ = Node::kBacklogMax;
  int64_t start_ns_ = 0;
  int64_t look_ns_ = kLookNs;
  bool told_ = false;
};

}  // namespace monarch
