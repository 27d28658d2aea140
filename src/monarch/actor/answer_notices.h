// When a caller tells gateways which answers it has (kTreeSeen), of calls whose answers come through the tree of a cast
// (docs/design/046): soon after each has ended, so that they forget what they keep of it, and now and then before, so that
// they send what was lost on the way. Pure; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "monarch/actor/members.h"

namespace monarch {

class AnswerNotices {
 public:
  // After a cast; then, while it has not ended, each time twice as late, up to the last. And so long before its deadline.
  static constexpr int64_t kFirstNs = 300'000'000, kLastNs = 10'000'000'000;

  struct Call {
    uint64_t token = 0;
    std::shared_ptr<const Members> owing;  // shared: with the call
    int64_t deadline_ns = 0;               // 0: none
    int64_t wait_ns = kFirstNs;
    int64_t due_ns = 0;
  };

  // Returns when it is due.
  int64_t add(uint64_t token, std::shared_ptr<const Members> owing, int64_t deadline_ns, int64_t now_ns) {
    return put({token, std::move(owing), deadline_ns, kFirstNs, 0}, now_ns);
  }
  // Those that are due by now, or all; who finds that one has not ended puts it back.
  std::vector<Call> take_due(int64_t now_ns, bool all) {
    const auto is_later = [&](const Call& call) { return !all && call.due_ns > now_ns; };
    const auto first = std::stable_partition(calls_.begin(), calls_.end(), is_later);
    std::vector<Call> due(std::make_move_iterator(first), std::make_move_iterator(calls_.end()));
    calls_.erase(first, calls_.end());
    return due;
  }
  int64_t put_back(Call call, int64_t now_ns) {
    call.wait_ns = std::min(2 * call.wait_ns, kLastNs);
    return put(std::move(call), now_ns);
  }
  bool empty() const { return calls_.empty(); }
  // Of the first that will be; not empty().
  int64_t due_ns() const { return std::ranges::min_element(calls_, {}, &Call::due_ns)->due_ns; }

 private:
  int64_t put(Call call, int64_t now_ns) {
    call.due_ns = now_ns + call.wait_ns;
    const int64_t last_ns = call.deadline_ns - kFirstNs;
    if (last_ns > now_ns) call.due_ns = std::min(call.due_ns, last_ns);
    calls_.push_back(std::move(call));
    return calls_.back().due_ns;
  }

  std::vector<Call> calls_;
};

}  // namespace monarch
