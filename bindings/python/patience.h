// Sees, in real time, that a simulation stands still: a thread of it that has the turn does nothing that the simulation
// knows of. Where that is the script, its main thread is sent a signal, whose handler in Python ends the block; other
// threads the script gives up itself (SimStage). What does not come back to Python all the same is a line on stderr.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "monarch/testing/sim_stage.h"
#include "support.h"

namespace monarch {

class PatienceWatch {
 public:
  // On the main thread, with the GIL. `signal`: what it is sent; 0: nothing. `where() -> str`: what the main thread runs.
  PatienceWatch(testing::SimStage& stage, int64_t patience_ns, int signal, PyObject* where);
  // GIL held, which is given away meanwhile. No signal comes any more.
  void end();
  // The main thread, in the handler: whether the script has done nothing since the signal was sent, and is given up now.
  bool gives_up();

 private:
  struct Line;  // one that is to be said, when there is the GIL
  static void* run(void* self);
  void watch();
  void say();

  testing::SimStage& stage_;
  const int64_t patience_ns_;
  const int signal_;
  const pthread_t main_ = pthread_self();
  Ref where_;
  pthread_t thread_{};
  bool has_thread_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<uint64_t> stuck_at_{UINT64_MAX};
};

}  // namespace monarch
