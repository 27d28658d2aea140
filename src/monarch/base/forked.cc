#include "monarch/base/forked.h"

#include <pthread.h>

#include <mutex>
#include <vector>

#include "monarch/base/check.h"

namespace monarch {

namespace internal {
constinit std::atomic<bool> forked_child{false};
}

namespace {

// Never destroyed: forks come at any time.
struct Watchers {
  std::mutex mutex;  // held over a fork; never given back in the child, where nobody asks any more
  std::vector<ForkWatcher*> all;
};
Watchers& watchers() {
  static auto* made = new Watchers;
  return *made;
}

thread_local bool to_exec = false;

// A child that forks in its turn: all is dead already.
void before() {
  if (in_forked_child() || to_exec) return;
  watchers().mutex.lock();
  for (ForkWatcher* each : watchers().all) each->before_fork();
}
void in_parent() {
  if (in_forked_child() || to_exec) return;
  for (ForkWatcher* each : watchers().all) each->after_fork_in_parent();
  watchers().mutex.unlock();
}
void in_child() {
  if (in_forked_child() || to_exec) return;
  if (watchers().all.empty()) return watchers().mutex.unlock();
  note_forked_child();
  for (ForkWatcher* each : watchers().all) each->after_fork_in_child();
}

}  // namespace

void watch_forks(ForkWatcher& watcher) {
  static const bool watched = pthread_atfork(before, in_parent, in_child) == 0;
  MONARCH_CHECK(watched);
  std::lock_guard lock(watchers().mutex);
  watchers().all.push_back(&watcher);
}

void unwatch_forks(ForkWatcher& watcher) {
  if (in_forked_child()) return;
  std::lock_guard lock(watchers().mutex);
  std::erase(watchers().all, &watcher);
}

ForkToExec::ForkToExec() { to_exec = true; }
ForkToExec::~ForkToExec() { to_exec = false; }
bool in_fork_to_exec() { return to_exec; }

}  // namespace monarch
