#include "monarch/net/shm/frozen_view.h"

#include <utility>

namespace monarch {

// Null: the offer is old.
Result<FrozenView::Slot*> FrozenView::slot_for(uint64_t number, uint64_t serial) {
  if (!is_frozen_number(number) || serial == 0) return Error{ErrorCode::kMalformed, "bad number of frozen memory"};
  const uint64_t index = number - kFrozenFirst;
  if (index >= slots_.size()) slots_.resize(index + 1);
  Slot& slot = slots_[index];
  const bool done = slot.state == State::kThere || slot.state == State::kForgotten;
  if (serial < slot.serial || (serial == slot.serial && done)) return nullptr;
  if (serial > slot.serial && (slot.state == State::kThere || slot.state == State::kLost)) {
    return Error{ErrorCode::kMalformed, "frozen memory in the place of other that is not over"};
  }
  slot.serial = serial;
  return &slot;
}

Status FrozenView::add(uint64_t number, uint64_t serial, bool makers, UniqueFd fd) {
  auto slot = slot_for(number, serial);
  if (!slot) return slot.error();
  if (*slot == nullptr) return Ok{};
  auto map = Freezable::adopt(std::move(fd));
  if (!map) {
    (*slot)->state = State::kLost;
    return map.error();
  }
  auto use = makers && !(*map)->made_here() ? Freezable::use(*map) : nullptr;
  (*slot)->kept = std::make_shared<Slot::Kept>(Slot::Kept{std::move(*map), std::move(use)});
  (*slot)->state = State::kThere;
  return Ok{};
}

Status FrozenView::lose(uint64_t number, uint64_t serial) {
  auto slot = slot_for(number, serial);
  if (!slot) return slot.error();
  if (*slot != nullptr) (*slot)->state = State::kLost;
  return Ok{};
}

std::shared_ptr<void> FrozenView::forget(uint64_t number) {
  if (slot_of(number) == nullptr) return nullptr;
  Slot& slot = slots_[number - kFrozenFirst];
  slot.state = State::kForgotten;
  return std::exchange(slot.kept, nullptr);
}

const FrozenView::Slot* FrozenView::slot_of(uint64_t number) const {
  return is_frozen_number(number) && number - kFrozenFirst < slots_.size() ? &slots_[number - kFrozenFirst] : nullptr;
}

bool FrozenView::has_lost(uint64_t number) const {
  const Slot* const slot = slot_of(number);
  return slot != nullptr && slot->state == State::kLost;
}

std::vector<uint32_t> FrozenView::lost() const {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == State::kLost) found.push_back(kFrozenFirst + i);
  }
  return found;
}

std::shared_ptr<FreezableMap> FrozenView::find(uint64_t number) const {
  const Slot* const slot = slot_of(number);
  return slot == nullptr || !slot->kept ? nullptr : slot->kept->map;
}

}  // namespace monarch
