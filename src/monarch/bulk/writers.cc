#include "monarch/bulk/writers.h"

#include <algorithm>

namespace monarch {

// Its life is looked at last: the descriptor was opened before the proof was read, so it is of the process that has the
// proof, if nobody has had that pid in between.
bool Writers::admit(const std::shared_ptr<Neighbour>& writer) {
  if (!writer->why_no_kernel().empty() || !writer->why_no_table().empty() || !writer->lives()) return false;
  Everybody gone;  // with what is mapped of them, without the lock
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  if (writers_.size() >= prune_at_) {
    std::erase_if(writers_, [&](auto& each) {
      if (!each.second->has_ended()) return false;
      gone.push_back(std::move(each.second));
      return true;
    });
    prune_at_ = std::min(kMax, 2 * writers_.size() + 16);
  }
  if (writers_.size() == kMax && !writers_.contains(writer->key())) return false;
  writers_[writer->key()] = writer;
  return true;
}

bool Writers::is_claimed(const Everybody& writers, uint64_t claim) {
  return std::ranges::any_of(writers, [&](const auto& each) { return each->may_write_to(claim); });
}

Writers::Everybody Writers::everybody() const {
  Everybody all;
  std::lock_guard lock(mutex_);
  for (const auto& [key, writer] : writers_) all.push_back(writer);
  return all;
}

bool Writers::keep(Claimed dropped) {
  if (!is_claimed(everybody(), dropped.first)) return false;
  std::lock_guard lock(mutex_);
  kept_.push_back(std::move(dropped));
  return true;
}

// Nobody claims anew what has been closed, so each is looked at without the lock.
bool Writers::look() {
  const Everybody all = everybody();
  std::vector<Claimed> mine;
  {
    std::lock_guard lock(mutex_);
    mine.swap(kept_);
  }
  std::erase_if(mine, [&](const Claimed& each) { return !is_claimed(all, each.first); });
  std::lock_guard lock(mutex_);
  kept_.insert(kept_.end(), std::make_move_iterator(mine.begin()), std::make_move_iterator(mine.end()));
  return !kept_.empty();
}

void Writers::end(std::vector<Claimed> open) {
  for (Claimed& each : open) keep(std::move(each));
  look();
  std::vector<Claimed> left;
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    left.swap(kept_);
  }
  if (left.empty()) return;
  static std::mutex mutex;  // a leaf
  static auto& for_ever = *new std::vector<Claimed>;  // never destroyed
  std::lock_guard lock(mutex);
  for_ever.insert(for_ever.end(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
}

bool Writers::is_full() const {
  std::lock_guard lock(mutex_);
  return writers_.size() >= kMax;
}

size_t Writers::kept() const {
  std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace monarch
