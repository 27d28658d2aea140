#include "monarch/loop/reactor.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <condition_variable>

#include "monarch/base/check.h"
#include "monarch/base/clock.h"

namespace monarch {

namespace {
epoll_event event_of(int fd, uint32_t events, uint32_t generation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{generation} << 32 | static_cast<uint32_t>(fd);
  return event;
}
}  // namespace

Reactor::Reactor() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MONARCH_CHECK(epoll_ && wake_);
  epoll_event event = event_of(wake_.get(), EPOLLIN, 0);
  MONARCH_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0);
}

Reactor::~Reactor() { stop(); }

void Reactor::start() {
  // The new thread inherits the mask: signals stay with the main thread, which is Python's.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  thread_ = std::thread([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void Reactor::stop() {
  if (!thread_.joinable()) return;
  MONARCH_CHECK(!on_reactor_thread());
  stopping_ = true;
  wake();
  thread_.join();
}

void Reactor::wake() { eventfd_write(wake_.get(), 1); }

void Reactor::add(int fd, uint32_t events, FdCallback callback) {
  std::lock_guard lock(mutex_);
  const uint32_t generation = next_generation_++;
  callbacks_[fd] = Watched{generation, std::make_shared<FdCallback>(std::move(callback))};
  epoll_event event = event_of(fd, events, generation);
  MONARCH_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
}

void Reactor::modify(int fd, uint32_t events) {
  std::lock_guard lock(mutex_);
  auto found = callbacks_.find(fd);
  MONARCH_CHECK(found != callbacks_.end());
  epoll_event event = event_of(fd, events, found->second.generation);
  MONARCH_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Reactor::remove(int fd) {
  std::shared_ptr<FdCallback> callback;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto found = callbacks_.find(fd);
  if (found == callbacks_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  callback = std::move(found->second.callback);
  callbacks_.erase(found);
}

void Reactor::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  wake();
}

void Reactor::post_and_wait(std::function<void()> task) {
  MONARCH_CHECK(!on_reactor_thread() && running());
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
  post([&] {
    task();
    std::lock_guard lock(mutex);
    done = true;
    condition.notify_one();
  });
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return done; });
}

Reactor::TimerId Reactor::after(int64_t delay_ns, std::function<void()> task) {
  TimerId id;
  {
    std::lock_guard lock(mutex_);
    id = next_timer_++;
    timers_.emplace(monotonic_ns() + delay_ns, std::make_pair(id, std::move(task)));
  }
  wake();
  return id;
}

void Reactor::cancel(TimerId id) {
  std::lock_guard lock(mutex_);
  std::erase_if(timers_, [id](const auto& entry) { return entry.second.first == id; });
}

void Reactor::after_fork_in_child() {
  for (auto& [fd, watched] : callbacks_) ::close(fd);
  mutex_.unlock();
}

int Reactor::next_timeout_ms() {
  std::lock_guard lock(mutex_);
  if (!posted_.empty()) return 0;
  if (timers_.empty()) return -1;
  const int64_t left_ns = timers_.begin()->first - monotonic_ns();
  return static_cast<int>(std::clamp<int64_t>((left_ns + 999'999) / 1'000'000, 0, 60'000));
}

void Reactor::run_posted() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (auto& task : tasks) task();
}

void Reactor::run_due_timers() {
  for (;;) {
    std::function<void()> task;
    {
      std::lock_guard lock(mutex_);
      if (timers_.empty() || timers_.begin()->first > monotonic_ns()) return;
      task = std::move(timers_.begin()->second.second);
      timers_.erase(timers_.begin());
    }
    task();
  }
}

void Reactor::loop() {
  thread_id_ = std::this_thread::get_id();
  pthread_setname_np(pthread_self(), "monarch-reactor");
  epoll_event events[64];
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events, 64, next_timeout_ms());
    MONARCH_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
      if (fd == wake_.get()) {
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
        continue;
      }
      std::shared_ptr<FdCallback> callback;
      {
        std::lock_guard lock(mutex_);
        auto found = callbacks_.find(fd);
        // Not this one: removed, perhaps closed and opened again, by an earlier callback of this batch.
        if (found == callbacks_.end() || found->second.generation != events[i].data.u64 >> 32) continue;
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
