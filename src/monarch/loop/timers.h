// Time as the layers above see it: what it is now, and work that is to be done later. The reactor implements it with the
// machine's monotonic clock, SimWorld with a virtual one, so that every deadline, grace, lease and limit can be simulated.
// Nothing above `loop` reads the clock itself (`make lint`).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "monarch/base/clock.h"

namespace monarch {

class Timers : public Clock {
 public:
  using TimerId = uint64_t;  // 0: none

  // Any thread. Runs `task` once, `delay_ns` from now, on a thread that may call anything of its process but must not
  // block: the reactor's.
  virtual TimerId after(int64_t delay_ns, std::function<void()> task) = 0;
  // Any thread. The same, as soon as may be, in order of posting.
  virtual void post(std::function<void()> task) { after(0, std::move(task)); }
  // Any thread. It does not run any more, unless it is running now. An id that has run is ignored.
  virtual void cancel(TimerId id) = 0;
};

}  // namespace monarch
