// A swarm: many Python actors of one spawn in this process, on one thread. A cell that gets a message joins the ready
// ones; the thread gives each of them a turn, under one hold of the GIL.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "actor_cell.h"
#include "monarch/mesh/view.h"

namespace monarch {

class Swarm : public std::enable_shared_from_this<Swarm> {
 public:
  // `count` actors with indices from `first` on; `spawn` makes them all.
  Swarm(Node& node, ActorIndex first, uint32_t count, MessagePtr spawn);

  // Once, before run(): messages may come from then on.
  void add_cells();
  // The swarm's thread, GIL held: from the constructors to the end of the last actor.
  void run();
  // Instead of run(): there is no thread for it. Any thread, no GIL.
  void never_begins(const std::string& why);

  // Any thread: the cell has a message.
  void ready(std::shared_ptr<PyCell> cell);
  // Of the thread: while it waits for others, no actor of the swarm holds anybody back. shared: with theirs.
  const std::shared_ptr<Inflow>& inflow() const { return inflow_; }
  uint32_t spawn_epoch() const { return spawn_->header.epoch; }  // until run()
  OneThread thread() const { return {node_.id(), first_, count_}; }

  // ---- For the event loop of an async swarm (its thread, GIL held) ----
  // Gives turns until nothing is ready (kIdle), all have ended (kEnd), others should have the GIL (kDone), or
  // (kCoroutine, with its cell) a coroutine is to be awaited or, with none, the actor to be ended. A cell whose
  // coroutine is not concurrent has its next turn after resume().
  PyCell::Step step(std::shared_ptr<PyCell>* cell, Ref* coroutine, PyCell::Ticket* ticket);
  // True: the actor is to be ended.
  bool resume(const std::shared_ptr<PyCell>& cell);
  void end(const std::shared_ptr<PyCell>& cell);
  bool poll_briefly();
  LoopWake& loop_wake() { return loop_wake_; }
  bool has_message() const { return ready_count_.load(std::memory_order_acquire) != 0; }

 private:
  bool construct_all();
  void serve();
  // The event loop has ended with the exception that is set: nobody serves the actors that are left.
  void fail_rest();
  std::shared_ptr<PyCell> next();
  // Has it more messages, it is among the ready ones again.
  void go_on(const std::shared_ptr<PyCell>& cell);
  static bool has_work(const void* self) { return static_cast<const Swarm*>(self)->has_message(); }

  Node& node_;
  const ActorIndex first_;
  const uint32_t count_;
  MessagePtr spawn_;
  const std::shared_ptr<Inflow> inflow_;
  Waiter waiter_;
  LoopWake loop_wake_;

  std::mutex mutex_;
  std::deque<std::shared_ptr<PyCell>> ready_;
  std::atomic<uint32_t> ready_count_{0};

  // The swarm's thread.
  std::vector<std::shared_ptr<PyCell>> cells_;
  uint32_t live_;
  bool is_async_ = false;
};

PyObject* new_swarm_object(std::shared_ptr<Swarm> swarm);  // actor_types.cc

}  // namespace monarch
