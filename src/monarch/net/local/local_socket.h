// How processes of one machine find each other: stream sockets with abstract names (no file is left behind) made of job and
// node, between processes of one user. What all transports within a machine have in common.
#pragma once

#include <string>

#include "monarch/net/transport.h"

namespace monarch {

// The name under which a node of the job listens, without the leading zero byte.
std::string local_name(const JobId& job, NodeId node);

class LocalTransport : public Transport {
 public:
  std::string describe(const Identity& own) const override;
  bool reaches(const Identity&, NodeId) const override { return true; }
  Result<UniqueFd> listen(const JobId& job, NodeId node) override;
  Result<std::unique_ptr<Channel>> connect(const Identity& as, NodeId peer, bool* busy) override;
  Result<std::unique_ptr<Channel>> admit(UniqueFd socket) const override;  // of the same user, says the kernel
};

}  // namespace monarch
