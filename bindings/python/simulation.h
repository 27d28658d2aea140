// Programs that run in simulated processes (monarch.testing.simulate): each has a State of its own, and its threads are
// players on one stage (monarch/testing/sim_stage.h). What waits, waits there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "monarch/base/ids.h"
#include "monarch/actor/members.h"
#include "state.h"

namespace monarch {

namespace testing {
class SimProcess;
}
class Simulation;

// Of the State of a simulated process.
struct Simulated {
  Simulation& simulation;
  testing::SimProcess& process;
  bool held = false;  // hold_actors()
  Ref locals;         // what Python keeps for the process
};

// While it exists, code on this thread runs as that process.
class StateScope {
 public:
  explicit StateScope(State* simulated) : before_(simulated_state) {
    if (simulated != nullptr) simulated_state = simulated;
  }
  ~StateScope() { simulated_state = before_; }
  StateScope(const StateScope&) = delete;
  StateScope& operator=(const StateScope&) = delete;

 private:
  State* const before_;
};

// That of a process of a simulation; null: it is none.
State* simulated_state_of(NodeId node);

// A thread of that process is to do this. No GIL needed; `work` has it.
void start_simulated_thread(State& of, std::string name, std::function<void()> work);

// Without the GIL: gives others their turn until `ready` or the deadline. False: that has passed, or is_simulation_over().
bool simulated_wait(bool (*ready)(const void*), const void* context, int64_t deadline_ns);

// GIL held. What a call, a get() or a spawn takes of the simulated time, so that others get their turn however often it is
// tried again. Nothing outside of a simulation. What has happened meanwhile, require_runtime() says.
void simulated_step();

// Whether this thread is to end, without another look at what it was at: its process is dead, or the simulation is over.
bool is_simulation_over();
// GIL held. False, with an exception set: it goes no further on this thread.
bool check_simulation();

// GIL held. False, with RuntimeError set: these are not where this thread is, but of a simulation that has ended, or of
// real processes, from inside of one.
bool check_reach(const Members& members);
bool check_home(const class Unseen& future);

bool add_simulation(PyObject* module);

}  // namespace monarch
