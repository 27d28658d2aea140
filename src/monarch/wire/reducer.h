// How the answers of the ranks of a call are combined (wire/reduce.h).
#pragma once

#include <cstdint>

namespace monarch {

// In Python: monarch/_calls/endpoint.py. The numbers are on the wire (wire/cast.h).
enum class Reducer : uint8_t {
  kNone = 0,
  // Of numbers, tuples, lists and dicts of them of one shape, element by element, or arrays of one dtype and shape. A bool
  // is an int in a sum; of equal numbers an int comes before a float, and that before a bool; a NaN is either. An int
  // beyond 64 bits, or beyond the dtype of its array, is an error.
  kSum = 1,
  kMin = 2,
  kMax = 3,
  kCount = 4,     // of answers: no value is sent
  kAllEqual = 5,  // that which all ranks have answered: encoded alike, so that 1 is neither True nor 1.0
  kConcat = 6,    // a list of all: no value is looked at
  // To gateways only: they are not combined, but may be sent side by side, as nobody looks at each when it comes.
  kGather = 7,
};
inline constexpr uint8_t kReducerMax = 6;  // of those that a program may name

}  // namespace monarch
