// The deadline that holds where Python code runs: of `with deadline(...)`, or of the message that is being handled.
#pragma once

#include <cstdint>

#include "support.h"

namespace monarch {

// GIL held. The deadline of the code that runs, on the monotonic clock; 0: there is none. False: an exception is set.
bool code_deadline(int64_t* deadline_ns);

// GIL held. The same for something that is sent now; `option_seconds`: the endpoint's own deadline, 0 for none. False: it
// has passed, and DeadlineExceeded is set.
bool find_deadline(double option_seconds, int64_t* deadline_ns);

// The message that is handled on this thread has this deadline; 0: none.
void set_message_deadline(uint64_t deadline_ns);

// Sets DeadlineExceeded.
void raise_deadline_exceeded(const char* text);

// From now on find_deadline() looks; until then it costs nothing.
void use_deadlines();
bool deadlines_in_use();

}  // namespace monarch
