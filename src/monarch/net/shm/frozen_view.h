// The receiver's side of frozen memory that one peer has shown (net/shm/frozen_loans.h): each mapped to be read, as long as
// the peer says that it may name it, and as long as anybody here has a part in it. Guarded by its link.
//
// What has come from its maker counts as used here, so that what it was lent to in turn keeps it, too. Nothing else does:
// processes that send it to each other in a circle would keep it for ever.
#pragma once

#include <memory>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/net/freezable.h"
#include "monarch/net/shm/frozen_loans.h"

namespace monarch {

class FrozenView {
 public:
  // kMalformed: it lies. kUnavailable: there is no room for it here now, and it is lost. An offer that is older than what
  // is known of its number changes nothing. `makers`: it comes from the process that has made it.
  Status add(uint64_t number, uint64_t serial, bool makers, UniqueFd fd);
  // It was offered, and there was no descriptor for it here. kMalformed: no such number is possible.
  Status lose(uint64_t number, uint64_t serial);
  // The peer does not name it any more. What it was, for the caller to drop without a lock; null: there was nothing.
  std::shared_ptr<void> forget(uint64_t number);

  bool has_lost(uint64_t number) const;
  std::vector<uint32_t> lost() const;  // numbers
  std::shared_ptr<FreezableMap> find(uint64_t number) const;  // null: it is not there

 private:
  enum class State : uint8_t { kNone, kLost, kThere, kForgotten };
  struct Slot {
    struct Kept {
      std::shared_ptr<FreezableMap> map;  // shared: with its uses, and other links
      std::shared_ptr<Freezable> use;     // shared: with the parts that lie in it; null: does not count as one
    };
    std::shared_ptr<Kept> kept;  // shared: with who drops it; null: it is not there
    uint64_t serial = 0;
    State state = State::kNone;
  };
  Result<Slot*> slot_for(uint64_t number, uint64_t serial);
  const Slot* slot_of(uint64_t number) const;

  std::vector<Slot> slots_;  // by number
};

}  // namespace monarch
