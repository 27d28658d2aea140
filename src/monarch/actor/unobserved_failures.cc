#include "monarch/actor/unobserved_failures.h"

#include <utility>

namespace monarch {

UnobservedFailures::UnobservedFailures(Timers& timers, std::function<void(const std::string&)> say)
    : timers_(timers), say_(std::move(say)) {}

UnobservedFailures::~UnobservedFailures() {
  for (const auto& [actor, failed] : failed_) timers_.cancel(failed.timer);
}

void UnobservedFailures::add(ActorIndex actor, std::string line) {
  {
    std::lock_guard lock(mutex_);
    if (failed_.size() < kKeptMax) {
      Failed& failed = failed_[actor];
      if (failed.timer == 0) failed.timer = timers_.after(kLimitNs, [this, actor] { time_up(actor); });
      failed.line = std::move(line);
      return;
    }
  }
  say_(line);
}

void UnobservedFailures::observed(ActorIndex actor) {
  std::lock_guard lock(mutex_);
  auto found = failed_.find(actor);
  if (found == failed_.end()) return;
  timers_.cancel(found->second.timer);
  failed_.erase(found);
}

void UnobservedFailures::time_up(ActorIndex actor) {
  std::unique_lock lock(mutex_);
  auto taken = failed_.extract(actor);
  lock.unlock();
  if (taken) say_(taken.mapped().line);
}

void UnobservedFailures::report_rest() {
  std::unique_lock lock(mutex_);
  const auto rest = std::exchange(failed_, {});
  lock.unlock();
  for (const auto& [actor, failed] : rest) {
    timers_.cancel(failed.timer);
    say_(failed.line);
  }
}

}  // namespace monarch
