// The cell of a C++ actor: its inbox, its life from constructor to destructor, and the turns that the pool gives it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "monarch/actor/actor_pool.h"
#include "monarch/actor/cell.h"
#include "monarch/actor/inflow.h"
#include "monarch/actor/node.h"
#include "monarch/actor/registry.h"
#include "monarch/actor/turn.h"

namespace monarch {

struct LibraryRef;  // actor/libraries.h

// Inbox and readiness are one word: a list of messages, newest first, or kIdle. Who pushes onto kIdle makes the cell
// ready; who takes the last message of a turn puts kIdle back. So (invariant CELL-1) a cell with messages is ready,
// running, or suspended in a co_await, and never runs twice at a time.
class NativeCell final : public Cell, public Runnable, public internal::Turn,
                         public std::enable_shared_from_this<NativeCell> {
 public:
  NativeCell(Node& node, ActorIndex index, std::shared_ptr<ActorPool> pool);
  ~NativeCell() override;

  void deliver(MessagePtr message) override;
  void supervise(MeshFailure failure) override;
  void run_turn() override;

  // internal::Turn
  void resume_after(PendingCall& call, std::coroutine_handle<> frame) override;
  Waiter& begin_blocking() override {
    Waiter& waiter = pool_->begin_blocking();  // first: it may throw
    inflow_.begin_blocking();
    return waiter;
  }
  void end_blocking() override {
    pool_->end_blocking();
    inflow_.end_blocking();
  }
  bool stopping() const override { return pool_->stopping(); }

 private:
  static constexpr int kMessagesPerTurn = 256;
  // Of messages that were taken, inflow_ is told so together, since each time its line comes from the senders' caches. So
  // much too much it may think to be waiting, of kBytesMax.
  static constexpr uint64_t kTakenCostMax = 32 << 10;
  static constexpr size_t kCacheLine = 64;

  // A call of an endpoint that returns a Task, from its begin to its reply.
  struct Running {
    Running() {}  // not defaulted: clang would want the members' initialisers before the class is complete
    MessagePtr request;
    const ActorMethod* method = nullptr;
    ValueWriter result;
    Task<void> task;
  };

  bool refill();
  void slow_down_sender() const;
  void construct(const Message& message);
  const ActorClass* find_class(const LibraryRef& library, std::string* why);
  void stop_actor(const Message& request);
  void undeliverable(const Message& message);
  void ask_about_failure();

  // These return false if the actor has suspended: then the turn is no longer ours.
  bool handle(MessagePtr message);
  bool invoke(MessagePtr message);
  bool begin_task(MessagePtr message, const ActorMethod& method);
  bool drive(bool start);
  void finish();

  // The outcomes of an endpoint.
  void answer(const Message& request, const ValueWriter& result, const ActorMethod& method);
  void answer_error(const Message& request, const internal::ExceptionText& error);
  void threw(const Message& request, const ActorMethod& method);
  void reject(const Message& request, const std::string& why);

  // The actor is over: destroys it, and every message from now on is refused with `why`.
  void end(Failure::Kind kind, std::string why, std::string origin = {});
  void fail(std::string why) { end(Failure::Kind::kActor, std::move(why)); }
  void stopped(const std::string& reason) { end(Failure::Kind::kActorStopped, "stopped: " + reason); }
  void awaited();
  void enter_last_words();
  void note_doing(int64_t what) {
    if (last_words_ != nullptr) last_words_->doing.store(what, std::memory_order_relaxed);
  }

  Node& node_;
  const ActorIndex index_;
  const std::shared_ptr<ActorPool> pool_;

  // In lines of their own: what senders write, and the turn, and what both read.
  alignas(kCacheLine) Inflow inflow_;
  alignas(kCacheLine) std::atomic<Message*> inbox_;
  alignas(kCacheLine) std::atomic<bool> running_turn_{false};

  struct Failed {
    MeshFailure failure;
    bool told;
  };
  std::mutex failures_mutex_;  // a leaf; guards the queue
  std::deque<Failed> failures_;  // of what it owns; for each a kActorEnded from here is in the inbox

  // Of whoever has the turn.
  alignas(kCacheLine) MessageQueue queue_;
  uint64_t taken_cost_ = 0;  // of messages that were in queue_, and inflow_ counts still
  const ActorClass* class_ = nullptr;
  LastWords::Actor* last_words_ = nullptr;  // where it notes which endpoint it is in; null: nowhere
  std::unique_ptr<Actor> actor_;
  std::optional<Failure> epitaph_;
  std::optional<Running> running_;
  std::coroutine_handle<> resume_;
  std::atomic<int> awaiting_{0};  // of a suspension: the turn and the call, who must both have let go
};

// Makes C++ actors. Owned by whoever wires a process, who destroys it before the node and the driver.
class NativeFactory final : public CellFactory {
 public:
  // `threads`: 0 for the default.
  NativeFactory(Reactor& reactor, Driver& driver, uint32_t threads = 0)
      : pool_(std::make_shared<ActorPool>(reactor, driver, threads)) {}
  ~NativeFactory() override { pool_->stop(); }
  void rest(int64_t limit_ns) { pool_->rest(limit_ns); }  // as ActorPool::rest()
  // As ActorPool::stop(). False: an actor is still busy, and this, the node and the driver stay to the end of the process.
  bool stop(int64_t limit_ns) { return pool_->stop(limit_ns); }

  std::shared_ptr<Cell> make(Node& node, ActorIndex index, MessagePtr spawn) override;

 private:
  const std::shared_ptr<ActorPool> pool_;
};

}  // namespace monarch
