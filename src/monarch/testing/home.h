// What a process has one of (reactor, bell, driver, arena), as one object, so that a test can have several of them.
#pragma once

#include <fcntl.h>

#include <cstdlib>
#include <memory>

#include "monarch/net/shm/own_bell.h"

namespace monarch::testing {

// MONARCH_TEST_SHORT=1: the short form of the long tests (sanitizer runs, quick checks).
inline bool short_form() {
  const char* value = std::getenv("MONARCH_TEST_SHORT");
  return value != nullptr && *value != '\0' && *value != '0';
}
inline int rounds(int full, int brief) { return short_form() ? brief : full; }

class Home {
 public:
  // `bell`: of a process that was forked, made before the fork; else a new one.
  explicit Home(OwnBell own = OwnBell::make().value(), uint64_t arena_bytes_max = uint64_t{256} << 20)
      : bell(std::move(own)),
        arena(std::make_shared<Arena>(arena_bytes_max)),
        received(std::make_shared<Received>(reactor)),
        driver(std::make_unique<Driver>(reactor, bell.bell(), bell.event_fd.get())) {
    reactor.start();
  }
  // Links first, then this.
  ~Home() { reactor.stop(); }

  ShmContext context() { return {reactor, *driver, arena, received}; }
  // What a peer in the same process maps of this bell.
  PeerBell peer_bell() const {
    return {map_shared_memory(bell.page_fd.get(), sizeof(BellPage)).value(),
            UniqueFd(fcntl(bell.event_fd.get(), F_DUPFD_CLOEXEC, 3))};
  }

  Reactor reactor;
  OwnBell bell;
  std::shared_ptr<Arena> arena;        // shared: as ShmContext has it
  std::shared_ptr<Received> received;  // the same
  std::unique_ptr<Driver> driver;
};

// Waits, driving, until ready() is true; false after `limit_ns`.
template <typename Ready>
bool drive_until(Driver& driver, Ready ready, int64_t limit_ns = 20'000'000'000) {
  Waiter waiter;
  const int64_t deadline_ns = monotonic_ns() + limit_ns;
  auto call = [](const void* context) { return (*static_cast<const Ready*>(context))(); };
  for (;;) {
    // The condition may be made true by a thread that does not know this waiter: look every 2 ms.
    const WaitResult result = driver.wait(waiter, call, &ready, deadline_ns, 2'000'000);
    if (result != WaitResult::kInterrupted) return result == WaitResult::kReady;
  }
}

}  // namespace monarch::testing
