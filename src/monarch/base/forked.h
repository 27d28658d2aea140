// A child of a user's fork() has copies of everything that belongs to its parent: links, rings in shared memory, ports,
// futures, leases of slabs, and locks that threads held which it has not. The one rule for all of them: in such a child
// they are dead. Whoever would take a lock of ours there, touch a shared page or write to a descriptor of ours asks
// in_forked_child() first, and leaves everything as it is; destructors leak. Such a child has no runtime, and gets none.
//
// (Our own fork server forks before there is anything of this kind, and does not count.)
#pragma once

#include <atomic>

namespace monarch {

namespace internal {
extern std::atomic<bool> forked_child;  // not inline: extensions hide their symbols, and would have one of their own
}  // namespace internal

// Whether this process is a child that fork() made of a process with a runtime. One relaxed load.
inline bool in_forked_child() { return internal::forked_child.load(std::memory_order_relaxed); }

// In the child, first thing: there is one thread, and it must take no lock.
inline void note_forked_child() { internal::forked_child.store(true, std::memory_order_relaxed); }

// What is to be done around a fork() of its process, by a runtime. `before_fork` takes the locks without which the
// child could not close what it must not hold open; the others, on the same thread, give them back. That of the child
// comes when it is noted as one.
class ForkWatcher {
 public:
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  virtual void after_fork_in_child() = 0;

 protected:
  ~ForkWatcher() = default;
};

// While somebody watches, every fork() of this process is noted, that of a C library too (pthread_atfork: in the
// child before Python's own hooks, some of which drop objects of threads that are no more). Any thread; waits for a
// fork that is under way. In a forked child the second does nothing.
void watch_forks(ForkWatcher& watcher);
void unwatch_forks(ForkWatcher& watcher);

// While one lives, what its thread forks only becomes another program, and none of our hooks is for it. vfork() runs none
// anyway, but under TSan, which makes a fork() of it: its child could then wait for a lock of the allocator that a thread
// had which it has not.
class ForkToExec {
 public:
  ForkToExec();
  ~ForkToExec();
  ForkToExec(const ForkToExec&) = delete;
  ForkToExec& operator=(const ForkToExec&) = delete;
};
// What each hook of pthread_atfork asks first.
bool in_fork_to_exec();

}  // namespace monarch
