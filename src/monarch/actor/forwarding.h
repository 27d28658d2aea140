// Back-pressure on the way: who sends through this node to where too much waits is asked to hold back, and asked to go on
// when half of that has gone (docs/design/006). Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

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
  // kHold or kResume for one of them. False: its origin cannot be told, and sends nothing any more.
  using Tell = std::function<bool(const Pair&, FrameKind)>;
  static constexpr int64_t kLookNs = 2'000'000;  // how often it is looked whether there is room again

  explicit Forwarding(Timers& timers) : timers_(timers) {}

  // Too much waits on `onward`, by which frames go to the destination.
  void hold(const Pair& pair, const std::shared_ptr<Link>& onward, Tell tell);
  // Nothing is told any more. Before `tell`'s own is destroyed.
  void stop();
  size_t held() const;

 private:
  struct Held {
    std::weak_ptr<Link> onward;  // weak: one that is over holds nobody
    Tell tell;
  };
  void look();
  void arm();  // mutex_ held

  Timers& timers_;
  mutable Mutex mutex_{LockRank::kNodeForwarding};  // held while they are told, or a kResume could overtake its kHold
  std::map<Pair, Held> held_;
  Timers::TimerId timer_ = 0;
  bool stopped_ = false;
};

}  // namespace monarch
