// Which hosts of a job do not reach each other, though the script reaches both: their gateways say so (kOutOfReach), and
// the user is told, in one line for a pair. Who is dead is not decided here (actor/deaths.h). Of the script; reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "monarch/base/ids.h"
#include "monarch/loop/timers.h"
#include "monarch/wire/failure.h"

namespace monarch {

class Partings {
 public:
  // A pair is told again after so long at the earliest; of more pairs within that time nothing is told.
  static constexpr int64_t kAgainNs = 60'000'000'000;
  static constexpr size_t kPairsMax = 4096;

  // `who_is`: a host that this script has attached to; none: it is not one, or it is down. `say` is given the line.
  using WhoIs = std::function<std::optional<Failure>(NodeId gateway)>;
  using Say = std::function<void(const std::string& line)>;
  Partings(Timers& timers, WhoIs who_is, Say say) : timers_(timers), who_is_(std::move(who_is)), say_(std::move(say)) {}

  // So much later it is known whether one of them is dead, and that is why: the lease. Before the first told().
  void set_lease(int64_t lease_ns) { lease_ns_ = lease_ns; }
  // The host of gateway `from` says that it does not reach that of `other`. What is no gateway of this job is ignored.
  void told(NodeId from, NodeId other, const std::string& why);

 private:
  void look(NodeId one, NodeId other, const std::string& why) const;

  Timers& timers_;
  const WhoIs who_is_;
  const Say say_;
  int64_t lease_ns_ = 0;
  std::map<std::pair<NodeId, NodeId>, int64_t> told_;  // when; the smaller id first
};

}  // namespace monarch
