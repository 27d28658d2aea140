#include "monarch/loop/reactor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr int64_t kRetryNs = 20'000'000;

epoll_event event_of(int fd, uint32_t events, uint32_t generation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{generation} << 32 | static_cast<uint32_t>(fd);
  return event;
}

}  // namespace

struct Reactor::Tables {
  struct Watched {
    uint32_t generation;                   // tells a descriptor from an earlier one of the same number
    std::shared_ptr<FdCallback> callback;  // shared: it may remove itself while it runs
    uint32_t events;
    bool waits;  // the kernel has not taken it
  };
  // With the lock held. Tries those that wait, if it is time.
  void watch_waiting(int epoll);

  int64_t retry_ns = kNoDeadline;  // when that is
  std::unordered_map<int, Watched> callbacks;
  std::vector<std::function<void()>> posted;
  std::vector<std::weak_ptr<Pulsed>> pulsed;
  std::multimap<int64_t, std::pair<TimerId, std::function<void()>>> timers;  // by due time
  TimerId next_timer = 1;
  uint32_t next_generation = 1;
};

void Reactor::Tables::watch_waiting(int epoll) {
  const int64_t now_ns = monotonic_ns();
  if (now_ns < retry_ns) return;
  retry_ns = kNoDeadline;
  for (auto& [fd, watched] : callbacks) {
    if (!watched.waits) continue;
    epoll_event event = event_of(fd, watched.events, watched.generation);
    watched.waits = sys::epoll_add(epoll, fd, &event) != 0;
    if (watched.waits) retry_ns = now_ns + kRetryNs;
  }
}

Result<std::unique_ptr<Reactor>> Reactor::make() {
  UniqueFd epoll = sys::make_epoll();
  if (!epoll) return sys::shortage_error("start the reactor");
  std::unique_ptr<Reactor> made(new Reactor(std::move(epoll)));
  if (!made->watch_wake()) return sys::shortage_error("start the reactor");
  return made;
}

Reactor::Reactor() : Reactor(sys::make_epoll()) {
  if (!epoll_ || !watch_wake()) sys::end_for_shortage("start the reactor");
}

Reactor::Reactor(UniqueFd epoll) : epoll_(std::move(epoll)), tables_(std::make_unique<Tables>()) {}

// A pipe and no eventfd: the kernel takes who writes into a pipe for somebody who is about to sleep (it wakes readers with
// WF_SYNC), and where no core is idle it starts the reactor on this one, not where it ran last. There the kernel may be
// freeing the memory of the process whose death is to be told, for a millisecond that it gives to nobody else.
bool Reactor::watch_wake() {
  if (!sys::make_pipe(wake_, O_NONBLOCK)) return false;
  epoll_event event = event_of(wake_[0].get(), EPOLLIN, 0);
  return sys::epoll_add(epoll_.get(), wake_[0].get(), &event) == 0;
}

Reactor::~Reactor() { stop(); }

bool Reactor::start() {
  pthread_t thread{};
  const auto run = [](void* self) -> void* {
    static_cast<Reactor*>(self)->loop();
    return nullptr;
  };
  // Signals stay with the main thread, which is Python's.
  if (!sys::start_thread(&thread, run, this)) return false;
  thread_ = thread;
  running_ = true;
  return true;
}

void Reactor::stop() {
  if (in_forked_child() || !running()) return;
  MONARCH_CHECK(!on_reactor_thread());
  stopping_ = true;
  wake();
  pthread_join(thread_, nullptr);
  running_ = false;
}

void Reactor::wake() {
  const char byte = 0;
  static_cast<void>(!write(wake_[1].get(), &byte, 1));  // a full pipe wakes it too
}

bool Reactor::add(int fd, uint32_t events, FdCallback callback) {
  if (in_forked_child()) return false;
  auto shared = std::make_shared<FdCallback>(std::move(callback));
  std::unique_lock lock(mutex_);
  const uint32_t generation = tables_->next_generation++;
  epoll_event event = event_of(fd, events, generation);
  // An event may come at once; the reactor looks it up under this lock.
  const int error = sys::epoll_add(epoll_.get(), fd, &event) == 0 ? 0 : errno;
  // Anything else is a mistake of the caller's, or of a program that closes what is not its own.
  MONARCH_CHECK(error == 0 || error == ENOSPC || error == ENOMEM || !has_its_descriptors());
  tables_->callbacks[fd] = Tables::Watched{generation, std::move(shared), events, error != 0};
  if (error == 0) return true;
  tables_->retry_ns = std::min(tables_->retry_ns, monotonic_ns() + kRetryNs);
  lock.unlock();
  wake();
  errno = error;
  log_line_limited("a descriptor has to wait", sys::shortage_error("watch a descriptor yet").message);
  errno = error;
  return false;
}

void Reactor::modify(int fd, uint32_t events) {
  if (in_forked_child()) return;
  std::lock_guard lock(mutex_);
  auto found = tables_->callbacks.find(fd);
  MONARCH_CHECK(found != tables_->callbacks.end());
  found->second.events = events;
  if (found->second.waits) return;
  epoll_event event = event_of(fd, events, found->second.generation);
  const bool modified = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
  MONARCH_CHECK(modified || !has_its_descriptors());
}

bool Reactor::has_its_descriptors() const {
  constexpr std::string_view kEpoll = "anon_inode:[eventpoll]";
  char target[64];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(epoll_.get())).c_str(), target, sizeof target);
  return size < 0 ? errno != ENOENT : std::string_view(target, static_cast<size_t>(size)) == kEpoll;
}

void Reactor::remove(int fd) {
  if (in_forked_child()) return;
  std::shared_ptr<FdCallback> callback;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto found = tables_->callbacks.find(fd);
  if (found == tables_->callbacks.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  callback = std::move(found->second.callback);
  tables_->callbacks.erase(found);
}

void Reactor::post(std::function<void()> task) {
  if (in_forked_child()) return;
  {
    std::lock_guard lock(mutex_);
    if (lost_) return;  // not even wake(): the descriptor is somebody else's
    tables_->posted.push_back(std::move(task));
  }
  if (!on_reactor_thread()) wake();  // which looks at them before it sleeps
}

void Reactor::post_and_wait(std::function<void()> task) {
  if (in_forked_child()) return;
  MONARCH_CHECK(!on_reactor_thread() && running());
  if (!has_its_descriptors()) return;  // a loop that sleeps cannot be told
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
  // When the task has run, or is dropped. Shared: a std::function must be copyable.
  std::shared_ptr<void> over(nullptr, [&](void*) {
    std::lock_guard lock(mutex);
    done = true;
    condition.notify_one();
  });
  post([&task, over = std::move(over)]() mutable {
    task();
    over.reset();
  });
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return done; });
}

int64_t Reactor::now_ns() { return monotonic_ns(); }

Timers::TimerId Reactor::after(int64_t delay_ns, std::function<void()> task) {
  if (in_forked_child()) return 0;
  TimerId id;
  bool first;
  {
    std::lock_guard lock(mutex_);
    id = tables_->next_timer++;
    const int64_t now_ns = monotonic_ns();
    const int64_t due_ns = delay_ns < INT64_MAX - now_ns ? now_ns + delay_ns : INT64_MAX;
    // In two steps: of "emplace() == begin()" either may be evaluated first, and an old begin() is never the new one.
    const auto added = tables_->timers.emplace(due_ns, std::make_pair(id, std::move(task)));
    first = added == tables_->timers.begin();
  }
  if (first && !on_reactor_thread()) wake();
  return id;
}

void Reactor::cancel(TimerId id) {
  if (in_forked_child()) return;
  std::function<void()> task;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto& timers = tables_->timers;
  const auto found =
      std::find_if(timers.begin(), timers.end(), [id](const auto& entry) { return entry.second.first == id; });
  if (found == timers.end()) return;
  task = std::move(found->second.second);
  timers.erase(found);
}

void Reactor::add_pulsed(std::weak_ptr<Pulsed> pulsed) {
  if (in_forked_child()) return;
  std::lock_guard lock(mutex_);
  std::erase_if(tables_->pulsed, [](const auto& each) { return each.expired(); });
  tables_->pulsed.push_back(std::move(pulsed));
}

void Reactor::pulse() {
  if (!on_reactor_thread()) return;
  std::vector<std::shared_ptr<Pulsed>> pulsed;
  {
    std::lock_guard lock(mutex_);
    for (const auto& each : tables_->pulsed) {
      if (auto kept = each.lock()) pulsed.push_back(std::move(kept));
    }
  }
  for (const auto& each : pulsed) each->on_pulse();
}

void Reactor::after_fork_in_child() {
  for (auto& [fd, watched] : tables_->callbacks) ::close(fd);
  mutex_.unlock();
}

int Reactor::next_timeout_ms() {
  std::lock_guard lock(mutex_);
  if (!tables_->posted.empty()) return 0;
  const int64_t due_ns = tables_->timers.empty() ? kNoDeadline : tables_->timers.begin()->first;
  const int64_t next_ns = std::min(due_ns, tables_->retry_ns);
  if (next_ns == kNoDeadline) return -1;
  const int64_t left_ns = std::min(next_ns - monotonic_ns(), int64_t{60'000'000'000});
  return static_cast<int>(std::clamp<int64_t>((left_ns + 999'999) / 1'000'000, 0, 60'000));
}

void Reactor::run_posted() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tables_->posted);
    tables_->watch_waiting(epoll_.get());
  }
  for (auto& task : tasks) task();
}

// Those that are due now: one that arms itself again and again must not keep the reactor from its descriptors.
void Reactor::run_due_timers() {
  const int64_t now_ns = monotonic_ns();
  for (;;) {
    std::function<void()> task;
    {
      std::lock_guard lock(mutex_);
      auto& timers = tables_->timers;
      if (timers.empty() || timers.begin()->first > now_ns) return;
      task = std::move(timers.begin()->second.second);
      timers.erase(timers.begin());
    }
    task();
  }
}

// What is posted runs no more, and nobody waits for it.
void Reactor::note_lost() {
  std::vector<std::function<void()>> dropped;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  lost_ = true;
  dropped.swap(tables_->posted);
}

void Reactor::loop() {
  thread_ = pthread_self();
  running_ = true;
  pthread_setname_np(pthread_self(), "monarch-reactor");
  epoll_event events[64];
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events, 64, next_timeout_ms());
    if (count < 0 && errno != EINTR) {
      MONARCH_CHECK(!has_its_descriptors());
      return note_lost();
    }
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
      if (fd == wake_[0].get()) {
        char ignored[256];
        static_cast<void>(!read(wake_[0].get(), ignored, sizeof ignored));
        continue;
      }
      std::shared_ptr<FdCallback> callback;
      {
        std::lock_guard lock(mutex_);
        auto found = tables_->callbacks.find(fd);
        // Not this one: removed, perhaps closed and opened again, by an earlier callback of this batch.
        if (found == tables_->callbacks.end() || found->second.generation != events[i].data.u64 >> 32) continue;
        callback = found->second.callback;
      }
      (*callback)(events[i].events);
    }
    run_posted();
    run_due_timers();
  }
  run_posted();  // what was posted before stop() is not lost
}

}  // namespace monarch
