#include "monarch/actor/deadlines.h"

#include <algorithm>
#include <vector>

#include "monarch/base/clock.h"

namespace monarch {

void Deadlines::add(int64_t deadline_ns, uint64_t token) {
  {
    std::lock_guard lock(mutex_);
    pending_.emplace(deadline_ns, token);
    if (armed_for_ns_ != 0 && armed_for_ns_ <= deadline_ns) return;
    armed_for_ns_ = deadline_ns;
  }
  arm(deadline_ns);
}

void Deadlines::remove(int64_t deadline_ns, uint64_t token) {
  std::lock_guard lock(mutex_);
  pending_.erase({deadline_ns, token});
}

void Deadlines::arm(int64_t deadline_ns) {
  after_(std::max<int64_t>(0, deadline_ns - monotonic_ns()), [this, deadline_ns] { on_timer(deadline_ns); });
}

void Deadlines::on_timer(int64_t armed_for_ns) {
  std::vector<uint64_t> over;
  int64_t next_ns = 0;
  {
    std::lock_guard lock(mutex_);
    auto it = pending_.begin();
    for (; it != pending_.end() && it->first <= armed_for_ns; ++it) over.push_back(it->second);
    pending_.erase(pending_.begin(), it);
    if (armed_for_ns == armed_for_ns_) {  // else an earlier timer has come in between, and arms the next
      next_ns = pending_.empty() ? 0 : pending_.begin()->first;
      armed_for_ns_ = next_ns;
    }
  }
  for (const uint64_t token : over) expired_(token);
  if (next_ns != 0) arm(next_ns);
}

}  // namespace monarch
