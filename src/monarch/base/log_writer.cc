#include "monarch/base/log_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

// Waits for the reader for as long as it takes. What is refused (nobody will ever read it) is lost.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // whoever shares the descriptor has made it non-blocking
      pollfd wait{fd, POLLOUT, 0};
      if (::poll(&wait, 1, -1) < 0 && errno != EINTR) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

// Without waiting, but for a moment if somebody else takes the room that there was.
void write_if_room(int fd, std::string_view text) {
  pollfd room{fd, POLLOUT, 0};
  // A pipe that nobody reads has room too, and SIGPIPE for who writes.
  if (::poll(&room, 1, 0) != 1 || (room.revents & (POLLOUT | POLLERR)) != POLLOUT) return;
  [[maybe_unused]] const ssize_t count = ::write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
}

std::string finished(std::string_view line) {
  std::string text = line_time() + "monarch: ";
  text.append(line.substr(0, LogWriter::kLineBytesMax));
  if (line.size() > LogWriter::kLineBytesMax) {
    text += "... (" + std::to_string(line.size() - LogWriter::kLineBytesMax) + " more bytes)";
  }
  text.push_back('\n');
  return text;
}

}  // namespace

bool LogLimit::admits(int64_t now_ns) {
  if (began_ns_ == INT64_MIN || now_ns - began_ns_ >= kPeriodNs) {
    began_ns_ = now_ns;
    admitted_ = 0;
  }
  if (admitted_ < kLinesMax) {
    ++admitted_;
    return true;
  }
  ++refused_;
  return false;
}

std::optional<std::string> LogLimit::take_notice(int64_t now_ns) {
  if (now_ns < due_ns()) return std::nullopt;
  std::string notice = std::string(kind_) + ": " + std::to_string(refused_) + " more times within a second";
  refused_ = 0;
  return notice;
}

int64_t LogLimit::due_ns() const { return refused_ == 0 ? kNoDeadline : began_ns_ + kPeriodNs; }

LogWriter::~LogWriter() {
  {
    std::lock_guard lock(mutex_);
    if (!started_) return;
    stopping_ = true;
    work_.notify_one();
  }
  pthread_join(thread_, nullptr);
}

void LogWriter::add(std::string_view line) {
  std::string text = finished(line);
  {
    std::lock_guard lock(mutex_);
    if (push(text)) return;
  }
  write_if_room(fd_, text);
}

void LogWriter::add_limited(const char* kind, std::string_view line) {
  const int64_t now_ns = monotonic_ns();
  std::string text = finished(line);
  {
    std::lock_guard lock(mutex_);
    take_notices(now_ns);
    LogLimit* limit = limit_of(kind);
    if (limit != nullptr && !limit->admits(now_ns)) return work_.notify_one();  // there will be a notice to print
    if (push(text)) return;
  }
  write_if_room(fd_, text);
}

LogLimit* LogWriter::limit_of(const char* kind) {
  for (auto& limit : limits_) {
    if (!limit) limit.emplace(kind);
    if (std::strcmp(limit->kind(), kind) == 0) return &*limit;
  }
  return nullptr;
}

void LogWriter::take_notices(int64_t now_ns) {
  for (auto& limit : limits_) {
    if (!limit) return;
    const auto notice = limit->take_notice(now_ns);
    if (!notice) continue;
    std::string text = finished(*notice);
    static_cast<void>(push(text));
  }
}

int64_t LogWriter::next_notice_ns() const {
  int64_t next_ns = kNoDeadline;
  for (const auto& limit : limits_) {
    if (!limit) break;
    next_ns = std::min(next_ns, limit->due_ns());
  }
  return next_ns;
}

bool LogWriter::push(std::string& text) {
  if (closed_ || in_forked_child() || !start_thread()) return false;
  if (dropped_ > 0 || lines_.size() >= kLinesMax || bytes_ + text.size() > kBytesMax) {
    ++dropped_;
    return true;
  }
  bytes_ += text.size();
  lines_.push_back(std::move(text));
  work_.notify_one();
  return true;
}

bool LogWriter::start_thread() {
  if (!started_) started_ = sys::start_thread(&thread_, &LogWriter::run, this);
  return started_;
}

void* LogWriter::run(void* self) {
  pthread_setname_np(pthread_self(), "monarch-log");
  static_cast<LogWriter*>(self)->loop();
  return nullptr;
}

void LogWriter::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    take_notices(monotonic_ns());
    std::string text;
    if (!lines_.empty()) {
      text = std::move(lines_.front());
      lines_.pop_front();
      bytes_ -= text.size();
    } else if (dropped_ > 0) {
      text = finished(std::to_string(dropped_) + " lines were not printed: nobody reads stderr");
      dropped_ = 0;
    } else if (stopping_) {
      return;
    } else if (const int64_t next_ns = next_notice_ns(); next_ns == kNoDeadline) {
      work_.wait(lock);
      continue;
    } else {
      work_.wait_for(lock, std::chrono::nanoseconds(next_ns - monotonic_ns()));
      continue;
    }
    writing_ = true;
    lock.unlock();
    write_all(fd_, text);
    lock.lock();
    writing_ = false;
  }
}

bool LogWriter::flush(int64_t limit_ns) {
  const int64_t deadline_ns = monotonic_ns() + limit_ns;
  for (bool first = true;; first = false) {
    // Not lock(): this may be the last thing that a process does whose other threads are gone.
    if (mutex_.try_lock()) {
      if (first && started_) take_notices(kNoDeadline - 1);
      const bool done = !started_ || (lines_.empty() && dropped_ == 0 && !writing_);
      mutex_.unlock();
      if (done) return true;
    }
    if (monotonic_ns() >= deadline_ns) return false;
    ::poll(nullptr, 0, 1);
  }
}

void LogWriter::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void LogWriter::after_fork_in_child() {
  // What it held may be in the middle of a change: nobody frees it. (Here a leak checker finds it.)
  alignas(LogWriter) static char of_the_parent[sizeof(LogWriter)];
  std::memcpy(of_the_parent, static_cast<const void*>(this), sizeof of_the_parent);
  const int fd = fd_;
  new (this) LogWriter(fd);
}

}  // namespace monarch
