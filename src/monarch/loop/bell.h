// The door bell: how a process is told that one of its inbound rings holds something (WALK.md, "Door bell").
//
// Each process shows one BellPage in shared memory. Its state word says who would have to be woken:
//   kAwake   somebody polls (or will look within the grace of the driver's tick): do nothing
//   kParked  the leading thread sleeps on this very word: wake it with a futex call
//   kEpoll   the reactor leads: write the process's eventfd
// Beside it lies one bit per inbound ring that may hold something, so a receiver with many rings does not scan.
//
// Receiver: set the state, full fence, look at the bits once more, then sleep.
// Sender:   publish, full fence, set the bit, read the state; who wins the compare-and-swap to kAwake makes the call.
// The winner may die between the two; so on any death the survivors ring their own bells (Driver::ring_self).
#pragma once

#include <atomic>
#include <cstdint>

namespace monarch {

inline constexpr uint32_t kBellRings = 1024;  // inbound rings one process can have

enum BellState : uint32_t { kAwake = 0, kParked = 1, kEpoll = 2 };

// Lives in a page of its own that every peer maps; all fields start as zero.
struct BellPage {
  alignas(64) std::atomic<uint32_t> state;
  std::atomic<int64_t> rung_ns;  // when who sleeps on `state` was woken, on the machine's monotonic clock; 0: nobody was
  alignas(64) std::atomic<uint64_t> ready[kBellRings / 64];
};
static_assert(sizeof(BellPage) <= 4096);

// Says that ring `index` holds something and wakes the process of `page` if it sleeps. The caller has published what it
// wants to be seen. `event_fd`: that process's eventfd. Returns true if a system call was made.
bool ring_bell(BellPage& page, uint32_t index, int event_fd);

// Wakes the process of `page` if it sleeps, whatever its rings hold.
bool wake_bell(BellPage& page, int event_fd);

// Receiver: does any bit stand among the first `rings`? Includes the full fence that must follow setting the state.
// (Bits beyond are a peer's mistake; they must not keep the receiver awake.)
bool any_ready(const BellPage& page, uint32_t rings);

}  // namespace monarch
