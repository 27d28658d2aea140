#include "monarch/testing/sim_stage.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "monarch/base/check.h"
#include "monarch/base/log.h"

namespace monarch::testing {

namespace {
// The first thread waits so long of the world's time for what has no limit of its own: then it never comes.
constexpr int64_t kLongestWaitNs = 86'400'000'000'000;
// It asks whether it is interrupted so often: in real time while another one has the turn, and in events.
constexpr int64_t kLookNs = 50'000'000;
constexpr uint64_t kLookEvery = 4096;
}  // namespace

class SimStage::Player {
 public:
  Player(NodeId of, std::string named) : process(of), name(std::move(named)) {}

  const NodeId process;
  const std::string name;
  std::condition_variable turn;
  bool (*ready)(const void*) = nullptr;  // what it waits for; null: nothing, it can go on
  const void* context = nullptr;
  int64_t deadline_ns = kNoDeadline;
  bool dead = false;      // its process is
  bool released = false;  // it is to end
  bool gone = false;
};

namespace {
thread_local SimStage::Player* self_here = nullptr;
thread_local const SimStage* stage_here = nullptr;
}  // namespace

SimStage::SimStage(SimWorld& world, NodeId process, int64_t patience_ns, std::function<bool()> interrupted)
    : world_(world), patience_ns_(patience_ns), interrupted_(std::move(interrupted)) {
  players_.push_back(std::make_shared<Player>(process, "the script"));
  running_ = players_.front().get();
  self_here = running_;
  stage_here = this;
}

bool SimStage::is_player() const { return stage_here == this; }
bool SimStage::is_released() const { return self_here != nullptr && self_here->released; }

SimStage::PlayerPtr SimStage::enlist(NodeId process, std::string name) {
  std::lock_guard lock(mutex_);
  players_.push_back(std::make_shared<Player>(process, std::move(name)));
  return players_.back();
}

bool SimStage::enter(const PlayerPtr& player) {
  self_here = player.get();
  stage_here = this;
  std::unique_lock lock(mutex_);
  take_turn(*player, lock);
  return !player->released;
}

void SimStage::leave() {
  if (held_) hold();
  Player* const self = std::exchange(self_here, nullptr);
  stage_here = nullptr;
  std::unique_lock lock(mutex_);
  self->gone = true;
  lock.unlock();
  Player* const next = next_player();
  lock.lock();
  std::erase_if(players_, [self](const PlayerPtr& each) { return each.get() == self; });
  give_turn(*next);
}

WaitResult SimStage::wait(bool (*ready)(const void*), const void* context, int64_t deadline_ns, int64_t max_sleep_ns) {
  MONARCH_CHECK(stage_here != nullptr);  // a thread of the user's own, or one that has left
  if (stage_here != this) hold();  // this is a later one; all stages of a program have the same driver
  note_progress();
  Player& self = *self_here;
  const bool is_script = &self == players_.front().get();
  if (held_ && !is_script) hold();
  if (self.released || broken_ != Broken::kNo || (is_script && to_interrupt_)) return WaitResult::kInterrupted;
  const int64_t now_ns = world_.now_ns();
  const int64_t sleep_ns = max_sleep_ns < kNoDeadline - now_ns ? now_ns + max_sleep_ns : kNoDeadline;
  // Each takes some time: who looks at the clock and waits for the rest, which rounding makes nothing, would do so for
  // ever.
  int64_t until_ns = std::max(std::min(deadline_ns, sleep_ns), now_ns + 1);
  if (is_script && until_ns == kNoDeadline) until_ns = now_ns + kLongestWaitNs;
  const Timers::TimerId alarm = until_ns == kNoDeadline ? 0 : world_.after(until_ns - now_ns, [] {});
  self.ready = ready;
  self.context = context;
  self.deadline_ns = until_ns;
  Player* const next = next_player();
  flush_log();  // a line stands before what is printed afterwards
  if (next != &self) {
    std::unique_lock lock(mutex_);
    give_turn(*next);
    if (!take_turn(self, lock)) return WaitResult::kInterrupted;
  }
  note_progress();
  if (alarm != 0) world_.cancel(alarm);
  self.ready = nullptr;
  if (self.released || broken_ != Broken::kNo) return WaitResult::kInterrupted;
  if (is_script && to_interrupt_) return WaitResult::kInterrupted;
  if (ready(context)) return WaitResult::kReady;
  if (world_.now_ns() >= deadline_ns) return WaitResult::kTimeout;
  if (is_script && world_.now_ns() < sleep_ns) broken_ = Broken::kNothingLeft;
  return WaitResult::kInterrupted;
}

// The simulation has been given up, with this thread in it, which has come back from what it had waited for.
void SimStage::hold() {
  for (;;) ::pause();
}

void SimStage::stand() {
  wait([](const void*) { return false; }, nullptr, kNoDeadline, INT64_MAX);
}

void SimStage::pause(NodeId process, int64_t until_ns) {
  int64_t& until = paused_until_[process];
  until = std::max(until, until_ns);
  world_.at(until_ns, [] {});
}

bool SimStage::is_paused(const Player& player) {
  if (paused_until_.empty()) return false;
  const auto found = paused_until_.find(player.process);
  return found != paused_until_.end() && found->second > world_.now_ns();
}

void SimStage::kill(NodeId process) {
  std::lock_guard lock(mutex_);
  for (const PlayerPtr& player : players_) {
    if (player->process == process) player->dead = true;
  }
}

void SimStage::release_all() {
  releasing_ = true;
  for (;;) {
    Player* next = nullptr;
    {
      std::lock_guard lock(mutex_);
      for (const PlayerPtr& player : players_) {
        if (player.get() == self_here || player->released) continue;
        next = player.get();
        break;
      }
      if (next == nullptr) return;
      next->released = true;
    }
    std::unique_lock lock(mutex_);
    give_turn(*next);
    if (!take_turn(*self_here, lock)) return;
  }
}

bool SimStage::script_has_turn() {
  std::lock_guard lock(mutex_);
  return running_ == players_.front().get();
}

void SimStage::give_up_script() {
  note_progress();
  if (broken_ != Broken::kNo) return;
  culprit_ = players_.front()->name;
  broken_ = Broken::kStuck;
}

// Who can go on; when nobody can, what happens next decides.
SimStage::Player* SimStage::next_player() {
  std::vector<Player*> able;
  Player* const script = players_.front().get();
  for (uint64_t steps = 1;; ++steps) {
    if (releasing_ || to_interrupt_) return script;
    for (const PlayerPtr& player : players_) {
      if (player->dead || player->gone || player->released || is_paused(*player)) continue;
      const bool due = player->deadline_ns <= world_.now_ns();
      if (player->ready == nullptr || due || player->ready(player->context)) able.push_back(player.get());
    }
    if (!able.empty()) return able.size() == 1 ? able[0] : able[world_.random(able.size())];
    note_progress();
    const bool is_over = !world_.step();
    if (is_over) broken_ = Broken::kNothingLeft;
    if (steps % kLookEvery == 0 && self_here == script && interrupted_()) broken_ = Broken::kInterrupted;
    if (broken_ != Broken::kNo) return script;
  }
}

void SimStage::give_turn(Player& to) {
  running_ = &to;
  ++turns_;
  note_progress();
  to.turn.notify_one();
}

// False: somebody keeps it. Only the script loses its patience, and then goes on beside whoever has the turn.
bool SimStage::take_turn(Player& self, std::unique_lock<std::mutex>& lock) {
  const auto mine = [&] { return running_ == &self; };
  if (&self != players_.front().get()) {
    self.turn.wait(lock, mine);
    return true;
  }
  int64_t waited_ns = 0;
  for (uint64_t seen = turns_; !self.turn.wait_for(lock, std::chrono::nanoseconds(kLookNs), mine); seen = turns_) {
    lock.unlock();
    const bool interrupted = !releasing_ && interrupted_();
    lock.lock();
    if (mine()) break;
    waited_ns = seen == turns_ ? waited_ns + kLookNs : 0;
    if (!interrupted && waited_ns < patience_ns_) continue;
    broken_ = interrupted ? Broken::kInterrupted : Broken::kStuck;
    culprit_ = running_->name;
    held_ = true;
    return false;
  }
  return true;
}

}  // namespace monarch::testing
