#include "monarch/actor/deadlines.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace monarch {

Deadlines::~Deadlines() {
  if (armed_for_ns_ != 0) timers_.cancel(timer_);
}

void Deadlines::add(int64_t deadline_ns, uint64_t token) {
  std::lock_guard lock(mutex_);
  pending_.emplace(deadline_ns, token);
  if (armed_for_ns_ == 0 || deadline_ns < armed_for_ns_) arm();
}

void Deadlines::remove(int64_t deadline_ns, uint64_t token) {
  std::lock_guard lock(mutex_);
  pending_.erase({deadline_ns, token});
}

void Deadlines::arm() {
  mutex_.assert_held();
  if (armed_for_ns_ != 0) timers_.cancel(timer_);
  armed_for_ns_ = pending_.begin()->first;
  timer_ = timers_.after(std::max<int64_t>(0, armed_for_ns_ - timers_.now_ns()),
                         [this, deadline_ns = armed_for_ns_] { on_timer(deadline_ns); });
}

void Deadlines::on_timer(int64_t armed_for_ns) {
  std::vector<uint64_t> over;
  {
    std::lock_guard lock(mutex_);
    auto it = pending_.begin();
    for (; it != pending_.end() && it->first <= armed_for_ns; ++it) over.push_back(it->second);
    pending_.erase(pending_.begin(), it);
    if (armed_for_ns == armed_for_ns_) {  // else an earlier timer has taken its place
      armed_for_ns_ = 0;
      if (!pending_.empty()) arm();
    }
  }
  for (const uint64_t token : over) expired_(token);
}

}  // namespace monarch
