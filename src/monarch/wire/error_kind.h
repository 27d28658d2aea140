// What the error that user code raised looks like on the wire.

#pragma once

#include <cstdint>

#include "monarch/wire/value.h"

namespace monarch {

// The body of a kReplyError is a tuple: one of these, and what belongs to it. In Python: monarch/_calls/packing.py, Packed.
enum class ErrorKind : uint8_t {
  kPickled = 0,      // exception, traceback, who
  kBuiltin = 1,      // name of a builtin exception, its arguments, traceback, are the lines of code all in it? who
  kPlain = 2,        // exception, as somebody has put it into a port
  kEndOfStream = 3,  // text: nobody will answer
  kDeadline = 4,     // text
  kSetUp = 5,        // exception, traceback, who: of the bootstrap function of the process's mesh
  kNative = 6,       // type and what() of a C++ exception, who
  kDeadlock = 7,     // text: the call is one of a cycle, each of which waits for the next
};
// who: two values, the pid of the process and the name of its machine.

// `parts`: how many values belong to it; they are written next.
inline void begin_error(ValueWriter& writer, ErrorKind kind, uint32_t parts) {
  writer.begin_tuple(1 + parts);
  writer.integer(static_cast<int64_t>(kind));
}

}  // namespace monarch
