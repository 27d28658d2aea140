// Which frozen memory the peer of a link has been shown, and by which numbers. Pure bookkeeping; guarded by its link.
//
// A number is used again when the peer has taken the word that its last memory is over, which comes behind all records
// that name it. Offers go over another lane than records, and one may be made twice (kWanted): its serial number says
// whether it is still about the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/net/freezable.h"
#include "monarch/net/shm/arena.h"

namespace monarch {

// Of each direction of a link: what is frozen beyond that is copied. In records they stand behind the numbers of segments.
inline constexpr uint32_t kFrozenNumbers = 1024;
inline constexpr uint32_t kFrozenFirst = kArenaSegmentsMax;
constexpr bool is_frozen_number(uint64_t segment) {
  return segment >= kFrozenFirst && segment < kFrozenFirst + kFrozenNumbers;
}

class FrozenLoans {
 public:
  struct Loan {
    uint64_t memory = 0;  // Freezable::id(); 0: the number is free
    uint64_t serial = 0;
    uint64_t free_at = 0;  // of a free one: when the peer has taken so many bytes of records
    std::shared_ptr<Freezable> unsent;  // shared: with whoever has it, while its descriptor waits to be sent
    std::weak_ptr<Freezable> shown;
    uint32_t number = 0;
  };

  // Null: it has not been lent.
  Loan* find(uint64_t memory);
  Loan* find_number(uint64_t number);
  // Null: all numbers are in use. `taken`: how much the peer has taken of what was written. Its descriptor is to be sent.
  Loan* lend(const std::shared_ptr<Freezable>& memory, uint64_t taken);
  // The memory is over, and the word of that ends at `free_at` of all that is written.
  void end(Loan& loan, uint64_t free_at);
  void keep_unsent(Loan& loan, std::shared_ptr<Freezable> memory) { loan.unsent = std::move(memory), has_unsent_ = true; }
  // All descriptors have gone.
  void all_sent();
  bool has_unsent() const { return has_unsent_; }

 private:
  std::vector<Loan> loans_;  // by number
  std::unordered_map<uint64_t, uint32_t> numbers_;  // Freezable::id() -> index
  uint64_t last_serial_ = 0;
  bool has_unsent_ = false;
};

}  // namespace monarch
