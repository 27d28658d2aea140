// What a process leaves behind for whoever has started it, in memory that the two share: the endpoints that its actors are
// in, which costs them a store each, and what it could still write when it crashed. Read when it has died, so nothing in
// it is trusted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace monarch {

// The memory: zeroes at first.
struct LastWords {
  static constexpr size_t kActors = 32;        // of more, what they are in is not known
  static constexpr size_t kWaitingMax = 5;     // of an actor

  // What an actor's thread runs: the number of an endpoint, or one of these.
  enum Doing : int64_t { kNothing = -1, kConstructor = -2, kCleanUp = -3, kSupervise = -4, kUndeliverable = -5 };

  struct alignas(64) Actor {
    std::atomic<int64_t> doing;
    std::atomic<uint32_t> waiting[kWaitingMax];  // endpoints that it has begun with and awaits: 1 and the number; 0: none
    std::atomic<uint32_t> methods;               // where in `methods` the names of its endpoints are; 0: there is no actor
    char name[96];

    void begin_waiting(uint32_t method);
    void end_waiting(uint32_t method);
  };
  static_assert(sizeof(Actor) == 128);

  Actor actors[kActors];
  char methods[4096];   // names, each with a zero behind it, and one more at the end of an actor's
  char native[4096];    // native frames of the thread that crashed: a line each, "function+0x12 in /path/of/library"
  char language[16384]; // what the language that ran there says, as Python's faulthandler
};
static_assert(sizeof(LastWords) == 28672);

// Who writes down what actors are in, in the process that they belong to. Any thread.
class Activity {
 public:
  // From now on, in this memory, which stays for as long as the process. Before the first actor.
  void use(LastWords& memory) { memory_ = &memory; }
  // Else enter() finds no place.
  bool has_room() const {
    return memory_ != nullptr && entered_.load(std::memory_order_relaxed) != LastWords::kActors;
  }
  // A place for an actor, whose thread writes to it; null: there is none to be had.
  LastWords::Actor* enter(std::string_view name, const std::vector<std::string>& methods);
  void leave(LastWords::Actor* place);

 private:
  uint32_t place_of(const std::vector<std::string>& methods);  // 0: no room

  LastWords* memory_ = nullptr;
  std::mutex mutex_;  // a leaf
  std::atomic<size_t> entered_{0};
  std::map<std::string, uint32_t> places_;  // of names that are there
  uint32_t used_ = 1;
};

// The endpoints that a process was in, as "trainer.step", in order, at most LastWords::kActors of them.
std::vector<std::string> read_endpoints(const LastWords& left);
// Of a native frame: below an interpreter's loop, or this runtime's code, nothing is the user's. Safe in a signal handler.
bool is_base_frame(std::string_view frame);
// Whether people have asked for those all the same: MONARCH_RUNTIME_FRAMES is set, and not empty.
bool shows_runtime_frames();
// The stack of the thread that crashed, as text, innermost frames first: what the language says, then native frames.
// Without those of this runtime, unless they are wanted. Empty: it has written none.
std::string read_stack(const LastWords& left, bool with_runtime);

}  // namespace monarch
