// Messages that came before the spawn of their actor, which lies in the queue of a third node. Bounded: each holds its
// memory until the spawn, the creator's death or a limit of time (Directory). Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/loop/timers.h"
#include "monarch/net/message.h"

namespace monarch {

class EarlyMessages {
 public:
  static constexpr size_t kCountMax = 100'000;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 30;

  explicit EarlyMessages(size_t count_max = kCountMax, uint64_t bytes_max = kBytesMax)
      : count_max_(count_max), bytes_max_(bytes_max) {}

  bool has_room_for(const Message& message) const {
    return count_ < count_max_ && message.total_bytes() <= bytes_max_ - bytes_;
  }
  // Behind the others for its actor. True: it is the first.
  bool add(MessagePtr message);
  bool waits_for(ActorIndex index) const { return actors_.contains(index); }
  void set_timer(ActorIndex index, Timers::TimerId timer) { actors_.at(index).timer = timer; }

  // The stops among what waits for this actor, of those who knew of an earlier epoch.
  std::vector<MessagePtr> take_stops(ActorIndex index, uint32_t epoch);

  struct Taken {
    std::vector<MessagePtr> messages;
    std::vector<Timers::TimerId> timers;  // of the actors that nothing waits for any more
  };
  // What waits for this actor; it stays known as one that messages wait for, without any (false: there were none).
  bool take_some(ActorIndex index, std::vector<MessagePtr>* messages);
  Taken take(ActorIndex index);
  // What waits for actors that `creator` may have created.
  Taken take_of(NodeId creator);
  // What waits for actors of which this is true.
  Taken take_if(const std::function<bool(ActorIndex)>& wanted);
  Taken take_all();

  size_t count() const { return count_; }

 private:
  struct Waiting {
    std::vector<MessagePtr> messages;
    Timers::TimerId timer = 0;
  };
  using Actors = std::map<ActorIndex, Waiting>;  // ordered: those of one creator stand side by side
  Actors::iterator take(Actors::iterator actor, Taken* taken);

  const size_t count_max_;
  const uint64_t bytes_max_;
  Actors actors_;
  size_t count_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace monarch
