#include "monarch/actor/kept_answers.h"

#include <algorithm>

namespace monarch {

bool KeptAnswers::add(const Key& key, NodeId parent, const std::vector<OwedAnswer>& owed, int64_t now_ns) {
  uint64_t bytes = 0;
  for (const OwedAnswer& each : owed) bytes += each.answer->total_bytes() + kAnswerCost;
  if (bytes > kCallBytesMax || bytes_ + bytes > kBytesMax || kept_.size() == kCallsMax) return false;
  const auto [place, is_new] = kept_.try_emplace(key, Kept{parent, owed, bytes, now_ns, numbered_ + 1});
  if (!is_new) return true;
  try {
    by_age_.emplace(numbered_ + 1, key);
  } catch (...) {
    kept_.erase(place);
    throw;
  }
  ++numbered_;
  bytes_ += bytes;
  return true;
}

void KeptAnswers::forget(const Key& key) {
  if (const auto of = kept_.find(key); of != kept_.end()) erase(of);
}

KeptAnswers::Table::iterator KeptAnswers::erase(Table::iterator of) {
  by_age_.erase(of->second.number);
  bytes_ -= of->second.bytes;
  return kept_.erase(of);
}

KeptAnswers::Table::iterator KeptAnswers::move_out(Table::iterator of, Taken& taken) {
  taken.emplace_back(of->first, std::move(of->second));
  return erase(of);
}

KeptAnswers::Taken KeptAnswers::take_missing(NodeId caller, const std::vector<SeenCall>& seen, int64_t now_ns) {
  Taken taken;
  for (const SeenCall& call : seen) {
    const auto of = kept_.find({caller, call.token});
    if (of == kept_.end()) continue;
    const auto is_missing = [&call](const OwedAnswer& each) { return call.is_missing(each.rank); };
    if (std::ranges::none_of(of->second.owed, is_missing)) {
      erase(of);
    } else if (now_ns - of->second.since_ns >= kOnItsWayNs) {
      move_out(of, taken);
    }
  }
  return taken;
}

KeptAnswers::Taken KeptAnswers::take_given_to(NodeId gateway) {
  Taken taken;
  for (auto of = kept_.begin(); of != kept_.end();) {
    of = of->second.parent == gateway ? move_out(of, taken) : std::next(of);
  }
  return taken;
}

KeptAnswers::Taken KeptAnswers::take_last_of(NodeId process) {
  Taken taken;
  const uint64_t first = numbered_ - std::min(numbered_, kLastFew) + 1;
  for (auto next = by_age_.lower_bound(first); next != by_age_.end();) {
    const auto of = kept_.find((next++)->second);
    if (std::ranges::find(of->second.owed, process, &OwedAnswer::node) != of->second.owed.end()) move_out(of, taken);
  }
  return taken;
}

KeptAnswers::Taken KeptAnswers::take_unnamed(int64_t now_ns) {
  Taken taken;
  while (!empty() && unnamed_ns() <= now_ns) move_out(kept_.find(by_age_.begin()->second), taken);
  return taken;
}

void KeptAnswers::forget_caller(NodeId caller) {
  for (auto of = kept_.lower_bound({caller, 0}); of != kept_.end() && of->first.first == caller;) of = erase(of);
}

void KeptAnswers::clear() {
  kept_.clear();
  by_age_.clear();
  bytes_ = 0;
}

}  // namespace monarch
