// Back-pressure on the way: who sends through this node to where too much waits is asked to hold back, and asked to go on
// when half of that has gone (docs/design/006). Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"
#include "monarch/net/link.h"
#include "monarch/wire/frame.h"

namespace monarch {

class Forwarding {
 public:
  struct Pair {
    NodeId origin, destination;
    auto operator<=>(const Pair&) const = default;
  };
  // kHold or kResume for one of them, in the name of its destination. False: its origin cannot be told, and sends nothing
  // any more.
  using Tell = std::function<bool(const Pair&, FrameKind)>;
  // How much waits for whom a link leads to.
  using Backlog = std::function<uint64_t(const Link&)>;
  static constexpr int64_t kLookNs = 2'000'000;  // how often it is looked whether there is room again
  static constexpr uint32_t kTellAgainEvery = 50;  // looks, while there is none

  Forwarding(Timers& timers, Tell tell, Backlog backlog)
      : timers_(timers), tell_(std::move(tell)), backlog_(std::move(backlog)) {}

  // Too much waits on `onward`, by which frames go to the destination.
  void hold(const Pair& pair, const std::shared_ptr<Link>& onward);
  // Nothing is told any more.
  void stop();
  size_t held() const;

 private:
  void look();
  void arm();  // mutex_ held

  Timers& timers_;
  const Tell tell_;
  const Backlog backlog_;
  mutable Mutex mutex_{LockRank::kNodeForwarding};  // held while they are told, or a kResume could overtake its kHold
  std::map<Pair, std::weak_ptr<Link>> held_;  // by which link it goes on; weak: one that is over holds nobody
  Timers::TimerId timer_ = 0;
  uint32_t looks_ = 0;
  bool stopped_ = false;
};

}  // namespace monarch
