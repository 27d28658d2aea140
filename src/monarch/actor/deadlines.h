// Which calls end when: one timer for all of them, so that a call that ends in time costs nothing later. It stays when no
// call has a deadline any more, until its time: calls come and go faster than timers should.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "monarch/base/mutex.h"
#include "monarch/loop/timers.h"

namespace monarch {

class Deadlines {
 public:
  // `expired(token)` runs where timers do, without a lock held; not when this is gone, so nobody destroys it while timers
  // run.
  Deadlines(Timers& timers, std::function<void(uint64_t)> expired) : timers_(timers), expired_(std::move(expired)) {}
  ~Deadlines();

  // Any thread. Deadlines are on the clock of the timers.
  void add(int64_t deadline_ns, uint64_t token);
  void remove(int64_t deadline_ns, uint64_t token);

 private:
  void arm();  // for the first of pending_; mutex_ held
  void on_timer(int64_t armed_for_ns);

  Timers& timers_;
  const std::function<void(uint64_t)> expired_;
  Mutex mutex_{LockRank::kNodeDeadlines};
  std::set<std::pair<int64_t, uint64_t>> pending_;
  int64_t armed_for_ns_ = 0;  // not later than the first of pending_; 0: no timer is under way
  Timers::TimerId timer_ = 0;
};

}  // namespace monarch
