#include "monarch/host/membership/partings.h"

#include <algorithm>

namespace monarch {

// Both say so, each when its own session has ended.
void Partings::told(NodeId from, NodeId other, const std::string& why) {
  if (!who_is_(from) || !who_is_(other)) return;
  const int64_t now_ns = timers_.now_ns();
  std::erase_if(told_, [now_ns](const auto& each) { return each.second + kAgainNs <= now_ns; });
  if (told_.size() >= kPairsMax || !told_.try_emplace(std::minmax(from, other), now_ns).second) return;
  timers_.after(lease_ns_, [this, from, other, why] { look(from, other, why); });
}

void Partings::look(NodeId one, NodeId other, const std::string& why) const {
  const auto name_of = [](const Failure& who) { return who.label + " (" + who.host + ")"; };
  const auto first = who_is_(one), second = who_is_(other);
  if (!first || !second) return;  // a host that is dead has been told of
  say_(name_of(*first) + " and " + name_of(*second) +
       " do not reach each other, though this script reaches both. Calls between them fail while that is so: " + why);
}

}  // namespace monarch
