// Threads on the clock of a SimWorld: exactly one of them runs at any time, the one that has the turn. Whoever waits gives
// the turn away; when nobody can go on, the next event of the world happens, on the thread that gives the turn away. Which
// of several that can go on is next, the seed decides. So a program of many threads runs the same way each time, as long as
// they wait in here only.
//
// A thread belongs to a process of the world. One whose process has died never has the turn again, and stands where it
// waits, until release_dead() ends it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/loop/driver.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {

class SimStage final : public Stage {
 public:
  class Player;
  using PlayerPtr = std::shared_ptr<Player>;  // shared: with the thread, which may be late to end

  // The calling thread is the first, and has the turn. `patience_ns`, of real time: how long another one may have it
  // without giving it away, before this one takes it for lost.
  // `interrupted`: asked on that thread while it waits, some times in a second; true: it waits no longer, and the
  // simulation is given up.
  SimStage(SimWorld& world, NodeId process, int64_t patience_ns, std::function<bool()> interrupted);

  // Who has the turn: another thread, which the caller starts, is one of the players from now on.
  PlayerPtr enlist(NodeId process, std::string name);
  // That thread, before anything else: waits for its first turn. False: it has been released meanwhile, and is to end.
  bool enter(const PlayerPtr& player);
  // It ends, and gives the turn to another.
  void leave();

  // kInterrupted, or is_released(): the thread is to end, and takes back nothing that it waits for.
  WaitResult wait(bool (*ready)(const void*), const void* context, int64_t deadline_ns, int64_t max_sleep_ns) override;
  // The process of the calling thread has died: it stands here until it is released.
  void stand();

  // Is the calling thread one of the players?
  bool is_player() const;
  // It is to end now: its process died, or the simulation is over.
  bool is_released() const;
  // Ends the wait that the first thread is in, or the next: kInterrupted. What for, is up to who looks.
  void interrupt() { to_interrupt_ = true; }
  bool take_interrupt() { return std::exchange(to_interrupt_, false); }
  // Nothing runs of that process until then.
  void pause(NodeId process, int64_t until_ns);
  // Nothing runs of that process any more.
  void kill(NodeId process);
  // The first thread, at the end: every other one has the turn once more, one after the other, and is to end.
  void release_all();

  // ---- How the first thread learns that it waits in vain ----
  enum class Broken {
    kNo,
    kNothingLeft,  // nothing is left to happen, or nothing for it within the longest wait
    kInterrupted,  // see the constructor
    kStuck,        // a thread, also the first, has had the turn for longer than the patience lasts: it waits for something
                   // real
  };
  Broken broken() const { return broken_; }
  // A thread has the turn, and is not expected to give it away any more.
  bool is_held() const { return held_; }
  const std::string& culprit() const { return culprit_; }  // of kStuck: the name of the thread

  // ---- Any thread: whether something happens, in real time ----
  // It changes with all that happens here: waits, turns, events.
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  bool script_has_turn();
  // The first thread, which has the turn and is not in here: kStuck, if nothing was broken before.
  void give_up_script();

 private:
  void note_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  Player* next_player();
  bool is_paused(const Player& player);
  [[noreturn]] void hold();
  void give_turn(Player& to);
  bool take_turn(Player& self, std::unique_lock<std::mutex>& lock);

  SimWorld& world_;
  const int64_t patience_ns_;
  const std::function<bool()> interrupted_;
  std::map<NodeId, int64_t> paused_until_;
  std::mutex mutex_;
  std::vector<PlayerPtr> players_;  // in the order of enlist(); the first is the script
  Player* running_ = nullptr;
  uint64_t turns_ = 0;
  std::atomic<uint64_t> progress_{0};
  bool releasing_ = false;
  bool to_interrupt_ = false;
  std::atomic<Broken> broken_{Broken::kNo};
  std::string culprit_;
  std::atomic<bool> held_{false};
};

}  // namespace monarch::testing
