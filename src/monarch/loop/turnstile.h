// Lets a few threads in at a time, in the order in which they came.
//
// For those that ask for the GIL: CPython has every thread that waits for it look again each 5 ms, so that thousands of
// actors with a message spent all their time looking. A thread is inside only while it asks. Who has the GIL has left,
// however long it keeps it, and so has who blocks in its endpoint: nobody inside waits for somebody outside.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "monarch/base/mutex.h"

namespace monarch {

class Turnstile {
 public:
  explicit constexpr Turnstile(int at_once) : free_(at_once) {}
  Turnstile(const Turnstile&) = delete;
  Turnstile& operator=(const Turnstile&) = delete;

  void enter();  // waits
  void leave();
  int waiting();  // how many threads

 private:
  struct Place {
    Place* next = nullptr;
    std::atomic<uint32_t> called{0};
  };

  Mutex mutex_{LockRank::kTurnstile};
  int free_;
  int waiting_ = 0;
  Place* first_ = nullptr;
  Place* last_ = nullptr;
};

}  // namespace monarch
