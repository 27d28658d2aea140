#include "monarch/actor/kept_answers.h"

#include <algorithm>

namespace monarch {

void KeptAnswers::add(const Key& key, NodeId parent, const std::vector<OwedAnswer>& owed) {
  uint64_t bytes = 0;
  for (const OwedAnswer& each : owed) bytes += each.answer->total_bytes();
  const auto [place, is_new] = kept_.try_emplace(key, Kept{parent, owed, bytes, numbered_ + 1});
  if (!is_new) return;
  try {
    by_age_.emplace(numbered_ + 1, key);
  } catch (...) {
    kept_.erase(place);
    throw;
  }
  ++numbered_;
  bytes_ += bytes;
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

KeptAnswers::Taken KeptAnswers::take_excess() {
  Taken taken;
  while (kept_.size() > kCallsMax || bytes_ > kBytesMax) move_out(kept_.find(by_age_.begin()->second), taken);
  return taken;
}

KeptAnswers::Taken KeptAnswers::take_missing(NodeId caller, const std::vector<SeenCall>& seen) {
  Taken taken;
  for (const SeenCall& call : seen) {
    const auto of = kept_.find({caller, call.token});
    if (of == kept_.end()) continue;
    const auto is_missing = [&call](const OwedAnswer& each) { return call.is_missing(each.rank); };
    std::ranges::any_of(of->second.owed, is_missing) ? move_out(of, taken) : erase(of);
  }
  return taken;
}

KeptAnswers::Taken KeptAnswers::take_with(NodeId gateway_or_node) {
  Taken taken;
  const auto is_of = [=](const OwedAnswer& each) { return each.node == gateway_or_node; };
  for (auto of = kept_.begin(); of != kept_.end();) {
    const bool is_wanted = of->second.parent == gateway_or_node || std::ranges::any_of(of->second.owed, is_of);
    of = is_wanted ? move_out(of, taken) : std::next(of);
  }
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
