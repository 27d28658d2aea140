#include "monarch/actor/directory.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "monarch/actor/cell.h"

namespace monarch {

Directory::Directory(Timers& timers, Refuse refuse) : timers_(timers), refuse_(std::move(refuse)) {}

Directory::~Directory() {
  for (const Timers::TimerId timer : early_.take_all().timers) timers_.cancel(timer);
}

void Directory::expect(ActorIndex first, uint32_t count, const ActorId& owner, uint32_t epoch) {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) cells_.try_emplace(first + i, Entry{nullptr, owner, epoch});
}

void Directory::add(ActorIndex index, std::shared_ptr<Cell> cell) {
  std::lock_guard lock(mutex_);
  set_cell(index, std::move(cell));
}

void Directory::set_cell(ActorIndex index, std::shared_ptr<Cell> cell) {
  mutex_.assert_held();
  Entry& entry = cells_[index];
  if (!entry.cell) entry.cell = std::move(cell);
}

std::shared_ptr<Cell> Directory::find(ActorIndex index) const {
  std::lock_guard lock(mutex_);
  auto found = cells_.find(index);
  return found != cells_.end() ? found->second.cell : nullptr;
}

std::optional<ActorId> Directory::owner_of(ActorIndex index) const {
  std::lock_guard lock(mutex_);
  auto found = cells_.find(index);
  return found != cells_.end() ? found->second.owner : std::nullopt;
}

uint32_t Directory::epoch_of(ActorIndex index) const {
  std::lock_guard lock(mutex_);
  auto found = cells_.find(index);
  return found != cells_.end() ? found->second.epoch : 0;
}

std::vector<std::pair<ActorIndex, std::shared_ptr<Cell>>> Directory::owned_by(NodeId node) const {
  std::vector<std::pair<ActorIndex, std::shared_ptr<Cell>>> found;
  std::lock_guard lock(mutex_);
  for (const auto& [index, entry] : cells_) {
    if (entry.cell && entry.owner && entry.owner->node == node) found.emplace_back(index, entry.cell);
  }
  return found;
}

bool Directory::is_known(ActorIndex index) const {
  std::lock_guard lock(mutex_);
  return cells_.contains(index) || epitaphs_.contains(index);
}

std::optional<Failure> Directory::epitaph(ActorIndex index) const {
  std::lock_guard lock(mutex_);
  return epitaph_locked(index);
}

std::optional<Failure> Directory::epitaph_locked(ActorIndex index) const {
  mutex_.assert_held();
  if (const Failure* found = epitaphs_.find(index)) return *found;
  if (closed_ports_.contains(index)) return Failure(kPortClosed);
  return std::nullopt;
}

void Directory::remove_port(ActorIndex index) {
  std::shared_ptr<Cell> port;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  closed_ports_.put(index, {});
  auto found = cells_.find(index);
  if (found == cells_.end()) return;
  port = std::move(found->second.cell);
  cells_.erase(found);
}

void Directory::remove(ActorIndex index, Failure epitaph) {
  std::shared_ptr<Cell> cell;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  if (parked_.contains(index)) return;  // it is the next one's already
  epitaphs_.put(index, epitaph.detail.empty() ? Failure(Failure::Kind::kNoActor, kNoSuchActor) : std::move(epitaph));
  auto found = cells_.find(index);
  if (found == cells_.end()) return;
  cell = std::move(found->second.cell);
  cells_.erase(found);
}

MessagePtr Directory::begin_restart(MessagePtr spawn, std::shared_ptr<Cell>* ending) {
  const ActorIndex index = spawn->header.dest;
  std::unique_lock lock(mutex_);
  epitaphs_.erase(index);
  const uint32_t epoch = spawn->header.epoch;
  const auto found = cells_.find(index);
  const bool begins = found == cells_.end() && !parked_.contains(index);
  if (found != cells_.end()) {
    *ending = std::move(found->second.cell);
    cells_.erase(found);
  }
  MessagePtr never_begun;  // destroyed outside the lock
  // What comes from now on is for the new one, and waits for it.
  if (!begins) never_begun = std::exchange(parked_[index], std::exchange(spawn, nullptr));
  std::vector<MessagePtr> stops;
  if (begins || never_begun) stops = early_.take_stops(index, epoch);
  lock.unlock();
  for (const MessagePtr& stop : stops) refuse_(*stop, Failure(Failure::Kind::kNoActor, kNoSuchActor));
  return spawn;
}

MessagePtr Directory::take_restart(ActorIndex index) {
  std::lock_guard lock(mutex_);
  auto found = parked_.find(index);
  if (found == parked_.end()) return nullptr;
  MessagePtr spawn = std::move(found->second);
  parked_.erase(found);
  epitaphs_.erase(index);
  return spawn;
}

void Directory::refuse_actor(ActorIndex index, const Failure& epitaph) {
  {
    std::lock_guard lock(mutex_);
    epitaphs_.put(index, epitaph);
  }
  refuse_early(index, epitaph);
}

// ---- Lazy actors ----

void Directory::add_lazy(ActorIndex index, MessagePtr spawn) {
  std::lock_guard lock(mutex_);
  lazy_.emplace(index, std::move(spawn));
}

MessagePtr Directory::take_lazy(ActorIndex index) {
  std::lock_guard lock(mutex_);
  auto found = lazy_.find(index);
  return found == lazy_.end() ? nullptr : std::move(found->second);
}

// ---- Early messages ----

Directory::Early Directory::keep_early(MessagePtr& message, bool made_here, Failure* why) {
  const ActorIndex index = message->header.dest;
  std::lock_guard lock(mutex_);
  if (auto epitaph = epitaph_locked(index)) {
    *why = std::move(*epitaph);
    return Early::kRefused;
  }
  if (auto found = cells_.find(index); found != cells_.end() && found->second.cell) return Early::kFound;
  *why = Failure(Failure::Kind::kNoActor, kNoSuchActor);
  const bool is_coming = lazy_.contains(index) || parked_.contains(index);
  if (closing_ || (made_here && !is_coming)) return Early::kRefused;
  if (!is_coming && !cells_.contains(index) && is_buried(index)) {
    *why = Failure(Failure::Kind::kNoActor, kBuried);
    return Early::kRefused;
  }
  if (!early_.has_room_for(*message)) {
    *why = "too much waits in this process for actors that have not been spawned yet";
    return Early::kRefused;
  }
  if (!early_.add(std::move(message))) return Early::kKept;
  watch_early(index);
  return Early::kKept;
}

void Directory::watch_early(ActorIndex index) {
  early_.set_timer(index, timers_.after(kEarlyLimitNs, [this, index] { on_early_limit(index); }));
}

// For an actor whose predecessor is still cleaning up they wait as long as that takes.
void Directory::on_early_limit(ActorIndex index) {
  {
    std::lock_guard lock(mutex_);
    if (parked_.contains(index) && early_.waits_for(index)) return watch_early(index);
  }
  refuse_early(index, kNoSuchActor);
}

bool Directory::is_buried(ActorIndex index) const {
  mutex_.assert_held();
  for (const auto& [creator, count] : buried_) {
    if (((index - creator) & kIdMask) < count) return true;
  }
  return false;
}

void Directory::bury(NodeId creator, uint64_t count) {
  EarlyMessages::Taken taken;
  {
    std::lock_guard lock(mutex_);
    uint64_t& known = buried_[creator];
    known = std::max(known, count);
    taken = early_.take_if([&](ActorIndex index) {
      return !lazy_.contains(index) && !parked_.contains(index) && !cells_.contains(index) &&
             ((index - creator) & kIdMask) < count;
    });
  }
  refuse_all(std::move(taken), Failure(Failure::Kind::kNoActor, kBuried));
}

void Directory::deliver_early(ActorIndex index, const std::shared_ptr<Cell>& cell) {
  std::vector<MessagePtr> waiting;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (!early_.take_some(index, &waiting)) {
        for (const Timers::TimerId timer : early_.take(index).timers) timers_.cancel(timer);
        lazy_.erase(index);
        if (!epitaphs_.contains(index)) set_cell(index, cell);
        return;
      }
    }
    for (MessagePtr& message : waiting) cell->deliver(std::move(message));
    waiting.clear();
  }
}

void Directory::refuse_early(ActorIndex index, const Failure& why) {
  std::unique_lock lock(mutex_);
  EarlyMessages::Taken taken = early_.take(index);
  lock.unlock();
  refuse_all(std::move(taken), why);
}

void Directory::refuse_early_of(NodeId creator, const Failure& why) {
  std::unique_lock lock(mutex_);
  EarlyMessages::Taken taken = early_.take_of(creator);
  lock.unlock();
  refuse_all(std::move(taken), why);
}

void Directory::refuse_all(EarlyMessages::Taken taken, const Failure& why) {
  for (const Timers::TimerId timer : taken.timers) timers_.cancel(timer);
  for (const MessagePtr& message : taken.messages) refuse_(*message, why);
}

void Directory::count(size_t* cells, size_t* parked, size_t* early) const {
  std::lock_guard lock(mutex_);
  *cells = cells_.size();
  *parked = parked_.size();
  *early = early_.count();
}

std::vector<std::shared_ptr<Cell>> Directory::close(const Failure& why) {
  std::vector<std::shared_ptr<Cell>> cells;
  std::unique_lock lock(mutex_);
  closing_ = true;
  parked_.clear();
  EarlyMessages::Taken taken = early_.take_all();
  cells.reserve(cells_.size());
  for (const auto& [index, entry] : cells_) {
    if (entry.cell) cells.push_back(entry.cell);
  }
  lock.unlock();
  refuse_all(std::move(taken), why);
  return cells;
}

}  // namespace monarch
