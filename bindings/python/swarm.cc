#include "swarm.h"

#include "codec.h"
#include "gil.h"
#include "monarch/base/clock.h"
#include "simulation.h"
#include "state.h"

namespace monarch {

namespace {
constexpr int kTurnMax = 64;            // messages of one actor before the next has its turn
constexpr int64_t kHoldNs = 1'000'000;  // of the GIL, then others may have it
}  // namespace

Swarm::Swarm(Node& node, ActorIndex first, uint32_t count, MessagePtr spawn)
    : node_(node),
      first_(first),
      count_(count),
      spawn_(std::move(spawn)),
      inflow_(std::make_shared<Inflow>(node, first)),
      loop_wake_(node.driver()),
      live_(count) {}

void Swarm::add_cells() {
  const uint32_t first_rank = spawn_->header.rank * count_;
  for (uint32_t i = 0; i < count_; ++i) {
    cells_.push_back(std::make_shared<PyCell>(node_, first_ + i, first_rank + i, shared_from_this()));
    python_factory().add_live(cells_.back());
  }
  for (const auto& cell : cells_) node_.deliver_early(cell->index(), cell);
}

void Swarm::ready(std::shared_ptr<PyCell> cell) {
  if (cell->scheduled_.exchange(true, std::memory_order_seq_cst)) return;
  {
    std::lock_guard lock(mutex_);
    ready_.push_back(std::move(cell));
    ready_count_.fetch_add(1, std::memory_order_release);
  }
  node_.driver().notify(waiter_);
  loop_wake_.wake();
}

std::shared_ptr<PyCell> Swarm::next() {
  std::lock_guard lock(mutex_);
  if (ready_.empty()) return nullptr;
  std::shared_ptr<PyCell> cell = std::move(ready_.front());
  ready_.pop_front();
  ready_count_.fetch_sub(1, std::memory_order_relaxed);
  return cell;
}

bool Swarm::construct_all() {
  wait_for_release();
  for (const auto& cell : cells_) {
    cell->enter();
    Ref self = Ref::steal(new_cell_object(cell));
    // Each has its own copy of the arguments; arrays would share the memory of the message.
    MessagePtr copy;
    if (!spawn_->parts.empty()) {
      std::vector<ByteSpan> parts;
      for (const Part& part : spawn_->parts) parts.push_back({part.data, part.size});
      copy = Message::copy_of(Outgoing{spawn_->header, spawn_->body, parts}, spawn_->from);
    }
    Ref value = Ref::steal(decode_value(copy ? *copy : *spawn_));
    Ref error;
    bool is_async = false;
    if (cell->construct(self.get(), value.get(), &is_async, &error)) {
      is_async_ |= is_async;
      continue;
    }
    cell->gone_ = true;
    cell->end_life(self.get(), error.get());
    python_factory().forget(cell.get());
    --live_;
  }
  spawn_.reset();
  return live_ > 0;
}

void Swarm::run() {
  const std::shared_ptr<Swarm> kept = shared_from_this();
  if (construct_all()) {
    if (is_async_) {
      Ref self = Ref::steal(new_swarm_object(kept));
      Ref ran = Ref::steal(PyObject_CallOneArg(state().run_swarm.get(), self.get()));
      if (!ran && !is_simulation_over()) fail_rest();
      PyErr_Clear();
    } else {
      serve();
    }
  }
  loop_wake_.close();
  cells_.clear();
  current_actor = {};
}

void Swarm::never_begins(const std::string& why) {
  for (const auto& cell : cells_) {
    cell->never_begins(why);
    python_factory().forget(cell.get());
  }
  cells_.clear();
  spawn_.reset();
}

void Swarm::fail_rest() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  const Ref held_type = Ref::steal(type), error = Ref::steal(value), held_traceback = Ref::steal(traceback);
  for (const auto& cell : cells_) {
    if (cell->over_) continue;  // written on this thread
    cell->end("the event loop of its swarm ended: " + cell->describe_exception(error.get()), /*failure=*/true);
    end(cell);
  }
}

PyCell::Step Swarm::step(std::shared_ptr<PyCell>* cell, Ref* coroutine, PyCell::Ticket* ticket) {
  const int64_t until_ns = clock_ns() + kHoldNs;
  while (live_ > 0) {
    *cell = next();
    if (!*cell) {
      node_.driver().poll_once();
      if (!has_message()) return PyCell::Step::kIdle;
      continue;
    }
    PyCell& current = **cell;
    if (current.gone_) continue;
    const bool busy = current.busy_;
    if (busy && !current.is_to_supervise()) {
      current.scheduled_.store(false, std::memory_order_seq_cst);  // resume() looks for messages
      continue;
    }
    current.enter();
    PyCell::Step outcome = PyCell::Step::kDone;
    const int turns = busy ? 1 : kTurnMax;  // of one that is, only its hook for failures
    for (int i = 0; i < turns && outcome == PyCell::Step::kDone; ++i) outcome = current.step(coroutine, ticket);
    if (outcome == PyCell::Step::kDone && current.ending()) outcome = PyCell::Step::kEnd;
    if (outcome == PyCell::Step::kEnd) {
      current.gone_ = true;
      if (is_async_) {
        *coroutine = Ref();
        return PyCell::Step::kCoroutine;
      }
      end(*cell);
      continue;
    }
    current.scheduled_.store(false, std::memory_order_seq_cst);
    current.busy_ = busy || (outcome == PyCell::Step::kCoroutine && !ticket->concurrent);
    if (!current.busy_) go_on(*cell);
    if (outcome == PyCell::Step::kCoroutine) return outcome;
    if (clock_ns() > until_ns) return PyCell::Step::kDone;
  }
  return PyCell::Step::kEnd;
}

bool Swarm::resume(const std::shared_ptr<PyCell>& cell) {
  if (cell->ending()) return !std::exchange(cell->gone_, true);
  cell->busy_ = false;
  go_on(cell);
  return false;
}

void Swarm::go_on(const std::shared_ptr<PyCell>& cell) {
  if (cell->has_work()) ready(cell);
}

void Swarm::end(const std::shared_ptr<PyCell>& cell) {
  Ref self = Ref::steal(new_cell_object(cell));
  cell->enter();
  cell->end_life(self.get(), nullptr);
  python_factory().forget(cell.get());
  --live_;
}

void Swarm::serve() {
  std::shared_ptr<PyCell> cell;
  Ref coroutine;
  PyCell::Ticket ticket;
  for (;;) {
    const PyCell::Step outcome = step(&cell, &coroutine, &ticket);
    cell.reset();
    if (outcome == PyCell::Step::kEnd) return;
    GilRelease release;
    if (outcome == PyCell::Step::kIdle) {
      node_.driver().wait(waiter_, &Swarm::has_work, this, kNoDeadline);
      if (is_simulation_over()) return;
    }
  }
}

bool Swarm::poll_briefly() {
  if (has_message()) return true;
  GilRelease release;
  return node_.driver().poll_briefly(&Swarm::has_work, this);
}

}  // namespace monarch
