// What a call with a reducer gives: one value, of the answers of all ranks. Pure.
#pragma once

#include "monarch/actor/pending_call.h"
#include "monarch/wire/reduce.h"

namespace monarch {

struct Reduced {
  MessagePtr value;  // as an answer; null: there is none
  ReduceProblem problem;
};

// Of a call that all ranks have answered with values; its reducer is neither kNone nor kConcat. The same whatever has been
// combined on the way. Throws std::bad_alloc.
Reduced reduce(const PendingCall& call);

}  // namespace monarch
