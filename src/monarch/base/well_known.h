// The actors that others have to be able to name without having been told of them: each has the same number, below
// kFirstNumber (base/ids.h), in every node that has it. This is the list: whoever adds such an actor, in whatever layer,
// adds a line. Programs of one job may be of different versions, so a number is never used for something else.
#pragma once

#include "monarch/base/ids.h"

namespace monarch {

enum class WellKnown : uint64_t {
  kReception = 2,  // of a script: publishes its job, tells guests of deaths (host/membership/reception.h)
  kAgent = 3,      // of a host: starts and stops processes there for others (host/agent.h)
  kOutput = 4,     // of a script: takes what is printed on hosts over a network (host/remote/output_inlet.h)
  kLibraries = 5,  // of every process: sends the libraries of C++ actors that it has loaded (actor/libraries.h)
  kBulk = 6,       // of every process of the machine: the owner's side of one-sided operations (bulk/bulk.h)
  kLimit = kFirstNumber,
};

constexpr ActorId well_known(NodeId node, WellKnown actor) {
  return {node, actor_index(node, static_cast<uint64_t>(actor))};
}

}  // namespace monarch
