// SIGQUIT to a script (Ctrl-\, kill -QUIT) has it print the stacks of all its processes, and go on.
#pragma once

namespace monarch {

// When the runtime of a script has started. Does nothing where SIGQUIT does something else already, or on another thread
// than the main one. A handler that comes later takes its place.
void watch_quit_signal();

// Before the runtime ends: SIGQUIT is what it was.
void leave_quit_signal();

}  // namespace monarch
