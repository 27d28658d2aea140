// What the threads of this process do: each writes its own stack down, in the handler of a signal that the reactor sends
// it. So it needs nothing of what runs there: not the GIL, nor that it waits, nor that it returns. A thread that is
// interrupted goes on where it was.
//
// Signals have one handler for a process, so what it uses is one per process too.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"

namespace monarch {

struct ThreadStack {
  pid_t thread = 0;
  std::string name;
  char state = '?';      // as in /proc: R, S, D, T, t, ...; before it was asked
  std::string waits_in;  // the kernel function that it waits in, where that may be known
  bool taken = false;    // it has written its stack; else it blocks the signal, or the kernel does not let it run
  std::string text;      // what the language that runs there says of its stack; empty: nothing runs there
  std::vector<uintptr_t> code;  // of native frames, innermost first: where each is, or will go on
};

// What the kernel says of a process that says nothing itself: name, state, waits_in; of one that has gone the state '?'.
ThreadStack look_at_process(pid_t pid);

class ThreadStacks {
 public:
  // More threads are not asked, and deeper frames not taken.
  static constexpr size_t kThreadsMax = 256;
  static constexpr int kFramesMax = 64;
  // How long all of them may take together, and one that is not let run.
  static constexpr int64_t kLimitNs = 800'000'000;
  static constexpr int64_t kThreadLimitNs = 250'000'000;

  // The signal of this process: a real-time one that nobody uses; 0: all are in use, and no stack can be taken. The same
  // again and again, also in forked children.
  static int signal_number();
  // From now on threads also write what the present handler of signal_number() writes for them, which writes to
  // `text_fd` (a file; this takes it). False: there is no handler.
  static bool add_writer(UniqueFd text_fd);

  explicit ThreadStacks(Reactor& reactor) : reactor_(reactor) {}
  ~ThreadStacks();
  ThreadStacks(const ThreadStacks&) = delete;
  ThreadStacks& operator=(const ThreadStacks&) = delete;

  using Done = std::function<void(const std::vector<ThreadStack>&)>;
  // Reactor. Takes the stacks of all threads but the reactor's; `done` runs there when it has them, within kLimitNs. Who
  // asks while they are being taken waits for the next round, which all such share.
  void take(Done done);

 private:
  bool install();
  void begin();
  void next();
  void on_written();
  void on_late();
  void collect();
  void serve();
  void finish();

  Reactor& reactor_;
  UniqueFd written_;  // an eventfd, once somebody has asked
  bool running_ = false;
  std::vector<Done> served_;   // by this round
  std::vector<Done> waiting_;  // for the next
  std::vector<ThreadStack> threads_;
  std::vector<int64_t> limits_ns_;  // for each of them; 0: it is not asked
  size_t index_ = 0;  // of the thread that is asked
  int torn_count_ = 0;  // how often that could not read its own
  int64_t ends_ns_ = 0;
  Timers::TimerId timer_ = 0;
};

}  // namespace monarch
