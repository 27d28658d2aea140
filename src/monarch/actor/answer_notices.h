// When a caller tells gateways which answers it has (kTreeSeen), of calls whose answers come through the tree of a cast
// (docs/design/046): soon after each has ended, so that they forget what they keep of it, and now and then before, so that
// they send what was lost on the way. Pure; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

class AnswerNotices {
 public:
  // After a cast; then, while it has not ended, each time twice as late, up to the last. And so long before its deadline.
  static constexpr int64_t kFirstNs = 300'000'000, kLastNs = 10'000'000'000;
  static constexpr int64_t kRestNs = 100'000'000;  // at least, between two times

  using Gateways = std::shared_ptr<const std::vector<NodeId>>;  // shared: by calls to the same hosts
  struct Call {
    uint64_t token = 0;
    Gateways gateways;
    int64_t deadline_ns = 0;  // 0: none
    int64_t wait_ns = kFirstNs;
    int64_t due_ns = 0;
  };

  // Of a call that was noted just before, and not sent, there is one note.
  void add(uint64_t token, std::vector<NodeId> gateways, int64_t deadline_ns, int64_t now_ns) {
    if (!calls_.empty() && calls_.back().token == token) return;
    if (!last_ || *last_ != gateways) last_ = std::make_shared<const std::vector<NodeId>>(std::move(gateways));
    put({token, last_, deadline_ns, kFirstNs, 0}, now_ns);
  }
  // Something may have been lost: all are due then, and after the first wait again.
  void hurry(int64_t at_ns) {
    for (Call& call : calls_) {
      call.due_ns = std::min(call.due_ns, at_ns);
      call.wait_ns = kFirstNs / 2;
    }
  }
  // Those that are due, or will be within half of their wait; who finds that one has not ended puts it back.
  std::vector<Call> take_due(int64_t now_ns) {
    told_ns_ = now_ns;
    const auto is_later = [now_ns](const Call& call) {
      return call.due_ns > now_ns + (call.wait_ns > kFirstNs ? call.wait_ns / 2 : 0);
    };
    const auto first = std::stable_partition(calls_.begin(), calls_.end(), is_later);
    std::vector<Call> due(std::make_move_iterator(first), std::make_move_iterator(calls_.end()));
    calls_.erase(first, calls_.end());
    if (calls_.empty()) last_ = nullptr;
    return due;
  }
  void put_back(const Call& call, int64_t now_ns) {
    Call again = call;
    again.wait_ns = std::min(2 * call.wait_ns, kLastNs);
    put(std::move(again), now_ns);
  }
  bool empty() const { return calls_.empty(); }
  // When somebody should look; not empty().
  int64_t next_ns() const {
    return std::max(std::ranges::min_element(calls_, {}, &Call::due_ns)->due_ns, told_ns_ + kRestNs);
  }

 private:
  void put(Call call, int64_t now_ns) {
    call.due_ns = now_ns + call.wait_ns;
    const int64_t last_ns = call.deadline_ns - kFirstNs;
    if (last_ns > now_ns) call.due_ns = std::min(call.due_ns, last_ns);
    calls_.push_back(std::move(call));
  }

  std::vector<Call> calls_;
  Gateways last_;
  int64_t told_ns_ = -kRestNs;
};

}  // namespace monarch
