#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "actor_cell.h"
#include "actor_thread.h"
#include "gil.h"
#include "monarch/base/system.h"
#include "monarch/host/stacks/crash_handler.h"
#include "simulation.h"
#include "state.h"
#include "swarm.h"

namespace monarch {

namespace {
// So many threads wait for actors to come for as long as it takes, others for a while.
constexpr int kParkedMax = 64;
constexpr std::chrono::seconds kParkedFor(3);

thread_local bool runs_actors = false;

FrameHeader stop_frame() {
  FrameHeader header;
  header.kind = FrameKind::kStopActor;
  return header;
}

std::string no_thread_text() {
  const std::string what = "start a thread for this actor in process " + std::to_string(getpid());
  return sys::shortage_error(what.c_str()).message;
}
}  // namespace

std::shared_ptr<Cell> PyCellFactory::make(Node& node, ActorIndex index, MessagePtr spawn) {
  if (const uint32_t count = spawn->header.method >> kSwarmShift; count != 0) {
    auto swarm = std::make_shared<Swarm>(node, index, count, std::move(spawn));
    swarm->add_cells();
    if (!start(simulated_state_of(node.id()), [swarm] { swarm->run(); })) swarm->never_begins(no_thread_text());
    return nullptr;
  }
  auto cell = std::make_shared<PyCell>(node, index, std::move(spawn));
  add_live(cell);
  const bool started = start(cell->simulated(), [this, cell] {
    cell->run();
    forget(cell.get());
  });
  if (!started) {
    cell->never_begins(no_thread_text());
    forget(cell.get());
  }
  return cell;
}

bool PyCellFactory::start(State* simulated, Work work) {
  if (simulated != nullptr) {
    start_simulated_thread(*simulated, "an actor", std::move(work));
    return true;
  }
  {
    std::lock_guard lock(mutex_);
    if (parked_ > static_cast<int>(handed_.size())) {
      handed_.push_back(std::move(work));
      work_.notify_one();
      return true;
    }
  }
  // A new thread has the name of the one that starts it.
  return start_actor_thread([this, named = runs_actors, work = std::move(work)]() mutable {
    if (!named) pthread_setname_np(pthread_self(), "monarch-actor");
    park_loop(std::move(work));
  });
}

bool on_actor_thread() { return runs_actors; }

void PyCellFactory::park_loop(Work work) {
  runs_actors = true;
  // Not blocked as in our other threads: what actors start inherits the mask, and must end on SIGTERM. The kernel gives
  // a process's signals to its main thread first.
  pthread_sigmask(SIG_SETMASK, &state().users_signal_mask, nullptr);
  const CrashStack crash_stack;
  gil_take_turns();
  GilThread python;
  for (;;) {
    // A context of its own: what an actor sets in context variables is not for the next one on this thread.
    run_in_new_context([](void* given) { (*static_cast<Work*>(given))(); }, &work);
    python.forget_thread_locals();  // nor what it has in `threading.local`
    GilRelease release;
    work = nullptr;
    if (!wait_for_work(&work)) break;
  }
  gil_leave_turns();
}

bool PyCellFactory::wait_for_work(Work* work) {
  std::unique_lock lock(mutex_);
  ++parked_;
  const auto there = [this] { return !handed_.empty(); };
  const bool found = parked_ <= kParkedMax || work_.wait_for(lock, kParkedFor, there) || parked_ <= kParkedMax;
  if (found) work_.wait(lock, there);
  --parked_;
  if (!found) return false;
  *work = std::move(handed_.back());
  handed_.pop_back();
  return true;
}

void PyCellFactory::add_live(std::shared_ptr<PyCell> cell) {
  std::lock_guard lock(mutex_);
  live_.emplace(cell.get(), std::move(cell));
}

void PyCellFactory::forget(PyCell* cell) {
  std::shared_ptr<PyCell> last;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto found = live_.find(cell);
  if (found == live_.end()) return;
  last = std::move(found->second);
  live_.erase(found);
  if (live_.empty()) all_ended_.notify_all();
}

std::vector<RunningActor> PyCellFactory::running() {
  std::vector<std::shared_ptr<PyCell>> cells;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [raw, cell] : live_) cells.push_back(cell);
  }
  std::vector<RunningActor> found;
  for (const auto& cell : cells) {
    RunningActor actor;
    if (cell->describe(&actor)) found.push_back(std::move(actor));
  }
  return found;
}

// In the order in which they were made, so that it is the same each time.
std::vector<std::shared_ptr<PyCell>> PyCellFactory::cells_here() {
  State* const here = simulated_state;
  std::vector<std::shared_ptr<PyCell>> cells;
  std::unique_lock lock(mutex_);
  for (const auto& [raw, cell] : live_) {
    if (cell->simulated() == here) cells.push_back(cell);
  }
  lock.unlock();
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return a->index() < b->index(); });
  return cells;
}

void PyCellFactory::forget_simulated() {
  std::vector<std::shared_ptr<PyCell>> last;
  std::lock_guard lock(mutex_);
  std::erase_if(live_, [&](const auto& entry) {
    if (entry.second->simulated() == nullptr) return false;
    last.push_back(entry.second);
    return true;
  });
}

bool PyCellFactory::has_actors() {
  std::lock_guard lock(mutex_);
  return !live_.empty();
}

void PyCellFactory::stop_all(int64_t limit_ns, const std::string& reason) {
  for (auto& cell : cells_here()) cell->deliver(Message::make(stop_frame(), reason));
  if (simulated_state != nullptr) {
    const auto ended = [](const void* factory) {
      return static_cast<PyCellFactory*>(const_cast<void*>(factory))->cells_here().empty();
    };
    simulated_wait(ended, this, clock_ns() + limit_ns);
    return;
  }
  std::unique_lock lock(mutex_);
  all_ended_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return live_.empty(); });
}

PyCellFactory& python_factory() {
  static auto* factory = new PyCellFactory;  // never destroyed: parked threads wait in it
  return *factory;
}

}  // namespace monarch
