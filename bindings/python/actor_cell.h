// Python actors: a cell with a thread of its own from the constructor to the end, taken from a pool of parked threads
// that keep their Python thread state.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "loop_wake.h"
#include "monarch/actor/cell.h"
#include "monarch/actor/inflow.h"
#include "monarch/actor/mailbox.h"
#include "monarch/actor/node.h"
#include "monarch/host/stacks/process_stacks.h"
#include "support.h"

namespace monarch {

// How an endpoint is run.
enum class MethodKind : int { kSync = 0, kAsync = 1, kConcurrent = 2 };
inline constexpr int kExplicitPort = 4;  // added to it: the method answers through a port

class Swarm;
struct State;

State* simulated_state_of(NodeId node);  // simulation.h

class PyCell final : public Cell, public std::enable_shared_from_this<PyCell> {
 public:
  PyCell(Node& node, ActorIndex index, MessagePtr spawn)
      : node_(node),
        simulated_(simulated_state_of(node.id())),
        index_(index),
        spawn_(std::move(spawn)),
        rank_(spawn_->header.rank),
        spawn_epoch_(spawn_->header.epoch),
        inflow_(std::make_shared<Inflow>(node, index)),
        loop_wake_(node.driver()) {}
  // One of a swarm, whose thread it shares.
  PyCell(Node& node, ActorIndex index, uint32_t rank, std::shared_ptr<Swarm> swarm);

  // Any thread, no GIL.
  void deliver(MessagePtr message) override;
  // Any thread, no GIL.
  std::optional<Occupied> occupied(NodeId caller, uint64_t token) override;
  // Any thread, no GIL. Its __supervise__ hook is asked; without one, whoever is told of the failure decides.
  void supervise(MeshFailure failure) override;

  // The actor's thread, GIL held: the whole life of the actor.
  void run();
  // Instead of run(), any thread, no GIL: there is no thread for it.
  void never_begins(const std::string& why);
  // Its parts, for a swarm. This thread's code runs as this actor from here on.
  void enter();
  // Makes the instance of `value` (class, args, kwargs, info). False: the constructor has failed, and `failure` says
  // so.
  bool construct(PyObject* self, PyObject* value, bool* is_async, Ref* failure);
  // Hooks run as the actor, without the deadline of the message before; GIL held, the actor's thread.
  void enter_hook();
  // Around a __supervise__ that may block the thread of an async actor. The actor's thread.
  void in_hook(bool begins);
  // Says on stderr that a hook has raised this.
  void report_hook(PyObject* exception);
  // It takes nothing more: who calls is told how it has ended, however long the rest of its end takes. After end().
  void close();
  // The end, after kEnd: refuses what waits, runs the hook. `failure`: what the constructor raised, or null.
  void end_life(PyObject* self, PyObject* failure);

  // ---- For the Python side of the actor (all on its thread, GIL held) ----
  struct Method {
    Ref function;
    MethodKind kind;
    bool explicit_port = false;
    std::string name = {};
  };
  using Methods = std::shared_ptr<const std::vector<Method>>;  // shared: by all actors of a class, and its table
  // `supervises`: its class has a hook for failures of what it owns.
  void set_up(PyObject* instance, PyObject* identity, PyObject* extent, Methods methods, bool supervises);
  // Handles one message. kIdle: none waits; kDone: handled; kEnd: the actor ends; kCoroutine: `*coroutine` is to be
  // awaited, then finish() or finish_error() called with `*ticket`.
  enum class Step { kError, kIdle, kDone, kEnd, kCoroutine };
  struct Ticket {
    FrameHeader header;
    NodeId from = 0;
    int64_t deadline_ns = 0;  // Message::deadline_ns
    bool concurrent = false;
    bool explicit_port = false;
    bool is_awaited = false;  // a coroutine of an endpoint
  };
  Step step(Ref* coroutine, Ticket* ticket);
  // Before finish() or finish_error(): its coroutine is over.
  void awaited(const Ticket& ticket);
  bool finish(const Ticket& ticket, PyObject* result);
  // Takes the exception that is set. False: it ends the actor.
  bool finish_error(const Ticket& ticket);
  bool poll_briefly();
  LoopWake& loop_wake() { return loop_wake_; }
  bool has_work() const {  // or is to end
    return !mailbox_.empty() || ending_.load(std::memory_order_seq_cst) || (is_to_supervise() && step_supervises());
  }
  // Failures wait for its hook, and nobody asks it.
  bool is_to_supervise() const { return failures_waiting_.load(std::memory_order_seq_cst) && !supervising_ && !ending_; }
  // step() sees to that; the event loop of an async actor is woken for it, and does so also while an endpoint awaits.
  bool step_supervises() const { return swarm_ || !has_loop_; }
  // The next of them, for who asks the hook. False: there is none, and nobody asks any more.
  bool next_failure(MeshFailure* failure);
  // A coroutine that asks the hook, if it is to be asked.
  Ref begin_supervising();

  // Any thread, no GIL. False: it is at nothing.
  bool describe(RunningActor* running);

  // Any thread. Has the actor ended, and if so, has it failed? `*why` is what its callers are told.
  enum class Ended { kNo, kStopped, kFailed };
  Ended ended(std::string* why);

  Swarm* swarm() const { return swarm_.get(); }
  PyObject* instance() const { return instance_ ? instance_.get() : Py_None; }  // borrowed
  PyObject* identity() const { return identity_ ? identity_.get() : Py_None; }
  bool ending() const { return ending_; }
  const std::string& end_reason() const { return end_reason_; }
  bool end_is_failure() const { return end_is_failure_; }
  // Ends the actor after the current message, as if by stop (failure false) or by an error. Any thread, GIL held.
  // `origin`: Failure::origin.
  void end(std::string reason, bool failure, std::string origin = {});

  ActorIndex index() const { return index_; }
  State* simulated() const { return simulated_; }
  // A port has been made that is to answer a call: until settle() the actor's end answers it. Any thread, GIL held.
  void owe(const Ticket& ticket);
  void settle(const Ticket& ticket);

 private:
  std::string name_of(int64_t method) const;  // epitaph_mutex_ held
  void run_sync();
  void vanish();
  void write_epitaph();
  void leave();
  void watch_stop();
  void check_stop(uint64_t steps_before);
  void abandon();
  void stop_owned();
  void stop_owned_later();
  bool end_call(const Ticket& ticket);
  void wake();
  void refuse(MessagePtr message);
  void refuse_rest();
  void fail_with_current_exception(const char* while_doing);
  bool fail_call(const Ticket& ticket, const char* while_doing);
  void set_context(const Message& message);
  void make_context_current();
  void set_deadline(uint64_t deadline_ns);
  Ref call_method(const Method& method, const Message& message, Ticket& ticket);
  PyObject* invoke(const Method& method, const struct CallArguments& call, PyObject* port);
  Failure end_failure() const;
  void answer_owed();
  void supervise_one();
  void handle_undeliverable(const Message& message, Ref* coroutine);
  void send_reply(const Ticket& ticket, FrameKind kind, class Encoded& encoded);
  std::string describe_exception(PyObject* exception) const;

  friend class Swarm;
  Node& node_;
  State* const simulated_;  // whose actor it is, in a simulated process; else null
  const ActorIndex index_;
  MessagePtr spawn_;
  const uint32_t rank_;  // in the mesh of actors that it was spawned in
  const uint32_t spawn_epoch_;
  const std::shared_ptr<Swarm> swarm_;  // shared: with its other cells; null: a thread of its own
  std::atomic<bool> scheduled_{false};  // the swarm has it among its ready ones
  bool busy_ = false;                   // in a swarm: a coroutine of it runs, which others wait for
  bool gone_ = false;                   // in a swarm: it has its end behind it, or somebody sees to it
  Mailbox mailbox_;
  const std::shared_ptr<Inflow> inflow_;  // shared: see CurrentActor
  Waiter waiter_;
  LoopWake loop_wake_;
  int64_t idle_since_ns_ = 0;  // 0: not known to be idle

  using enum LastWords::Doing;
  void enter_last_words();
  void note_doing(int64_t what);
  std::atomic<int64_t> doing_{kNothing};  // what its thread runs of it: the number of an endpoint, or one of those
  LastWords::Actor* last_words_ = nullptr;  // of its thread: the same for whoever has started this process, or null
  std::atomic<int64_t> awaiting_{kNothing};  // the endpoint that its event loop awaits before it takes the next message
  std::atomic<pid_t> thread_{0};
  std::atomic<bool> left_{false};  // its index may be another actor's by now, made anew

  // The actor's thread.
  Methods methods_;  // set under epitaph_mutex_
  Ref instance_;
  Ref identity_;  // context().actor_instance
  Ref extent_;    // of the whole mesh
  Ref scalar_extent_;
  Ref context_;   // the Context object that is current, and what it was made for:
  uint32_t context_rank_ = 0;
  uint32_t message_rank_ = 0;  // as Python sees it
  uint32_t context_epoch_ = 0;
  uint8_t context_flags_ = 0;
  std::vector<std::byte> context_view_;
  uint64_t deadline_ns_ = 0;  // of the message that set it last
  FrameHeader stop_request_;
  NodeId stop_from_ = 0;

  std::mutex calls_mutex_;  // guards the two below: of an actor that is stuck, another thread answers them
  std::vector<std::pair<NodeId, FrameHeader>> open_calls_;  // that are being handled
  std::map<std::pair<NodeId, uint64_t>, Ticket> owed_;      // by who waits and its token

  std::atomic<uint64_t> steps_{0};        // messages that it has begun with
  std::atomic<Timers::TimerId> stop_timer_{0};  // the last that looks whether it is stuck
  std::atomic<bool> stop_watched_{false};
  std::atomic<bool> stop_taken_{false};   // by the actor, or by abandon(): who is first sees to its end
  std::atomic<bool> ending_{false};
  bool end_is_failure_ = false;
  std::string end_reason_;
  std::string end_origin_;
  std::string end_name_;  // name_ and coordinates, as they are known then
  std::vector<int64_t> end_coordinates_;
  std::mutex failures_mutex_;  // guards the queue
  std::deque<MeshFailure> failures_;  // of what it owns
  std::atomic<bool> failures_waiting_{false};
  std::atomic<bool> supervises_{false};
  bool supervising_ = false;  // of its thread
  std::atomic<bool> has_loop_{false};
  std::mutex epitaph_mutex_;  // guards the five below, and end_... while they are set
  std::string name_;
  std::vector<int64_t> sizes_;  // of its mesh
  std::optional<Failure> epitaph_;
  bool over_ = false;
  MessageQueue late_stops_;
};

// How long an actor that is to stop may be busy with one message (or its constructor) before it is left behind. Any thread.
void set_stop_limit(int64_t limit_ns);

// Makes PyCells and gives them threads.
class PyCellFactory final : public CellFactory {
 public:
  std::shared_ptr<Cell> make(Node& node, ActorIndex index, MessagePtr spawn) override;
  void add_live(std::shared_ptr<PyCell> cell);
  // The worker ends: asks every actor to stop, waits at most `limit_ns` for them. GIL not held.
  void stop_all(int64_t limit_ns, const std::string& reason);
  void forget(PyCell* cell);
  bool has_actors();
  // Of a simulated process that is no more, or all simulated ones.
  void forget_simulated();
  // Any thread, no GIL.
  std::vector<RunningActor> running();

 private:
  using Work = std::function<void()>;  // an actor's whole life, GIL held
  bool start(State* simulated, Work work);  // false: no thread is to be had; errno says why
  void park_loop(Work first);
  std::vector<std::shared_ptr<PyCell>> cells_here();
  bool wait_for_work(Work* work);  // false: this thread is one too many

  std::mutex mutex_;
  std::condition_variable work_;       // for parked threads
  std::condition_variable all_ended_;
  std::unordered_map<PyCell*, std::shared_ptr<PyCell>> live_;
  std::vector<Work> handed_;  // to parked threads
  int parked_ = 0;
};

PyCellFactory& python_factory();

// From hold_actors() to release_actors() new actors wait: this process does not look like the script yet, as which it may
// import what they are made of. Any thread; who waits holds the GIL, and drops it meanwhile.
void hold_actors();
void release_actors();
void wait_for_release();

// Is the calling thread one that runs actors?
bool on_actor_thread();

// Answers a request, as the actor `sender`. Any thread, GIL held; dropped for a large answer.
void send_answer(const PyCell::Ticket& ticket, ActorIndex sender, FrameKind kind, const class Encoded& encoded);

// ---- actor_types.cc: new references, null with an exception set ----

bool add_actor_types(PyObject* module);
PyObject* new_context(const Ref& identity, const Ref& extent, uint32_t rank, ActorIndex actor, uint32_t epoch);
// Of the Context that is current on this thread; 0: there is none.
ActorIndex actor_of_context();
PyObject* new_cell_object(std::shared_ptr<PyCell> cell);

}  // namespace monarch
