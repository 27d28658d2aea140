// A process that crashes writes down where: its handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT note the native
// frames of the thread that has crashed, have the language that runs there note its own, and let the process die of the
// signal as it would have.
#pragma once

#include "monarch/wire/last_words.h"

namespace monarch {

// Once in a process. From now on in `left`, which stays. What handles these signals so far is called after that, as their
// language's; it writes its text to descriptor `language_fd` (-1: none), whose position is set to `language_at` before. In
// a child of fork() it writes to stderr instead: its parent has not crashed.
void note_crashes(LastWords& left, int language_fd, long language_at);

// For a thread whose own stack may be at its end when it crashes: room for a handler. Until the thread ends.
class CrashStack {
 public:
  CrashStack();
  ~CrashStack();
  CrashStack(const CrashStack&) = delete;
  CrashStack& operator=(const CrashStack&) = delete;

 private:
  void* memory_;
};

}  // namespace monarch
