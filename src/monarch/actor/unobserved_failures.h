// Failures of actors that no caller has been told of: if that stays so for a second, a line says them, once each. Any
// thread.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "monarch/base/ids.h"
#include "monarch/loop/timers.h"

namespace monarch {

class UnobservedFailures {
 public:
  static constexpr int64_t kLimitNs = 1'000'000'000;
  static constexpr size_t kKeptMax = 100'000;  // what fails beyond that within the limit of time is said at once

  // `say` is called without a lock held, by whoever adds, or on the thread of the timers.
  UnobservedFailures(Timers& timers, std::function<void(const std::string& line)> say);
  ~UnobservedFailures();

  void add(ActorIndex actor, std::string line);
  // Somebody is told: it need not be said. Of others than those that were added nothing is known, and that is fine.
  void observed(ActorIndex actor);
  // Says now what nobody has been told of yet.
  void report_rest();

 private:
  struct Failed {
    std::string line;
    Timers::TimerId timer = 0;
  };
  void time_up(ActorIndex actor);

  Timers& timers_;
  const std::function<void(const std::string&)> say_;
  std::mutex mutex_;  // nothing is taken inside but what the timers take
  std::unordered_map<ActorIndex, Failed> failed_;
};

}  // namespace monarch
