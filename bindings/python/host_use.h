// Who uses the host object of this process.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "state.h"

namespace monarch {

// Of those who use the host object, which the end of a script frees. Before all other locks; who has it never takes the
// GIL.
inline std::shared_mutex host_users;

// `work` is given the runtime. Throws if the runtime has ended.
template <typename Work>
auto with_host(Work work) {
  std::shared_lock use(host_users);
  if (state().finalizing) throw std::runtime_error("the monarch runtime of this process has ended");
  return work(*state().runtime);
}

}  // namespace monarch
