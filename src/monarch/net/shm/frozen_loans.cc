#include "monarch/net/shm/frozen_loans.h"

#include <algorithm>

namespace monarch {

FrozenLoans::Loan* FrozenLoans::find(uint64_t memory) {
  const auto at = numbers_.find(memory);
  return at == numbers_.end() ? nullptr : &loans_[at->second];
}

FrozenLoans::Loan* FrozenLoans::find_number(uint64_t number) {
  const uint64_t index = number - kFrozenFirst;
  return index < loans_.size() && loans_[index].memory != 0 ? &loans_[index] : nullptr;
}

FrozenLoans::Loan* FrozenLoans::lend(const std::shared_ptr<Freezable>& memory, uint64_t taken) {
  auto free = std::find_if(loans_.begin(), loans_.end(),
                           [taken](const Loan& loan) { return loan.memory == 0 && loan.free_at <= taken; });
  if (free == loans_.end()) {
    if (loans_.size() == kFrozenNumbers) return nullptr;
    free = loans_.emplace(loans_.end());
    free->number = kFrozenFirst + static_cast<uint32_t>(loans_.size() - 1);
  }
  free->memory = memory->id();
  free->serial = ++last_serial_;
  free->shown = memory;
  numbers_[memory->id()] = free->number - kFrozenFirst;
  return &*free;
}

void FrozenLoans::end(Loan& loan, uint64_t free_at) {
  numbers_.erase(loan.memory);
  loan.memory = 0;
  loan.unsent.reset();
  loan.free_at = free_at;
}

void FrozenLoans::all_sent() {
  for (Loan& loan : loans_) loan.unsent.reset();
  has_unsent_ = false;
}

}  // namespace monarch
