// The door bell: how a process is told that one of its inbound rings holds something.
//
// Each process shows one BellPage in shared memory. Its state word says who would have to be woken:
//   kAwake   somebody polls (or will look within the grace of the driver's tick): do nothing
//   kParked  the leading thread sleeps on this very word: wake it with a futex call
//   kEpoll   the reactor leads: write the process's eventfd
// and whether somebody is about to do that (kRung). Beside it lies one bit per inbound ring that may hold something, so a
// receiver with many rings does not scan.
//
// Receiver: set the state, full fence, look at the bits once more, then sleep.
// Sender:   publish, full fence, set the bit, read the state; who wins the compare-and-swap that adds kRung makes the call,
//           and then, with another swap, says kAwake.
//
// The winner may be stopped between the two (SIGSTOP, a debugger) for as long as somebody likes. Then the state stays rung,
// and whoever rings meanwhile makes the call as well: one call too many wakes somebody who is awake, one too few loses the
// messages of living peers. That is rare and short when nobody is stopped, so it costs nothing. What the stopped one
// itself has published waits for it, or for the next ring. Since it may go on at any later time, each sleep has a number
// in the word: its second swap cannot hit another sleep, nor hide that a later winner has not made its call.
//
// The winner may die between the two: then as above, and on any death the survivors ring their own bells
// (Driver::ring_self), for what the dead one had published.
#pragma once

#include <atomic>
#include <cstdint>

namespace monarch {

inline constexpr uint32_t kBellRings = 1024;  // inbound rings one process can have

// The lower bits of the word; above them stands the number of the sleep. Awake, the whole word is 0.
enum BellState : uint32_t { kAwake = 0, kParked = 1, kEpoll = 2, kBellSleeper = 3, kRung = 4, kBellSleep = 8 };

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

// Receiver: does any bit stand among the first `rings`? Includes the full fence that must follow setting the state, and
// reads `rings` after it. (Bits beyond are a peer's mistake; they must not keep the receiver awake.)
bool any_ready(const BellPage& page, const std::atomic<uint32_t>& rings);

}  // namespace monarch
