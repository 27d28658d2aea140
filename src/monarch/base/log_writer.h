// What stands behind log_line(): a bounded queue, and a thread that writes to a descriptor which may have no reader.
//
// Why a thread: nothing else writes to a descriptor that is shared with others without ever waiting. O_NONBLOCK belongs to
// the open file description, so it would be set for the user's shell too; and what poll() says of a pipe or a terminal is
// true only until another process writes there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace monarch {

// Which lines of one kind are printed. Pure: time is an argument. Not thread-safe.
class LogLimit {
 public:
  explicit LogLimit(const char* kind) : kind_(kind) {}

  bool admits(int64_t now_ns);
  // The line that tells how many were not admitted, once their second is over. Ask before admits().
  std::optional<std::string> take_notice(int64_t now_ns);
  // When take_notice() will have something; kNoDeadline: nothing.
  int64_t due_ns() const;

  const char* kind() const { return kind_; }

  static constexpr uint32_t kLinesMax = 10;
  static constexpr int64_t kPeriodNs = 1'000'000'000;

 private:
  const char* kind_;
  int64_t began_ns_ = INT64_MIN;
  uint32_t admitted_ = 0;
  uint64_t refused_ = 0;
};

class LogWriter {
 public:
  static constexpr size_t kLinesMax = 1'000;
  static constexpr size_t kBytesMax = size_t{256} << 10;
  static constexpr size_t kLineBytesMax = size_t{64} << 10;  // a longer line is cut
  static constexpr size_t kKindsMax = 16;

  // Writes to `fd`, which must stay open. The thread is made by the first line; it needs no other thread to go on.
  explicit LogWriter(int fd) : fd_(fd) {}
  ~LogWriter();  // waits for the thread, which may wait for a reader: there must be one, or none any more
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Any thread; never waits for a reader. Once a line has been dropped so are the others, until all before them are
  // written and the gap is told.
  void add(std::string_view line);
  void add_limited(const char* kind, std::string_view line);
  bool flush(int64_t limit_ns);

  // The process ends: from now on a line is written by who adds it, if there is room for it at once. So it is in a child
  // of a user's fork(), and where there is no thread to be had.
  void close();

  // In a child of fork(), before all else: it has no thread yet, and no lines, which are its parent's to print. Nothing is
  // locked before the fork, since other hooks lock what is held while somebody logs; so what is here is not looked at.
  void after_fork_in_child();

 private:
  // These with mutex_ held.
  [[nodiscard]] bool push(std::string& text);  // takes it; false: there is no thread, whoever adds it writes it
  bool start_thread();
  void take_notices(int64_t now_ns);
  int64_t next_notice_ns() const;
  LogLimit* limit_of(const char* kind);

  static void* run(void* self);
  void loop();

  const int fd_;
  std::mutex mutex_;  // guards what follows; nothing that can wait is called with it held
  std::condition_variable work_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;
  uint64_t dropped_ = 0;
  bool writing_ = false;
  bool started_ = false;
  bool closed_ = false;
  bool stopping_ = false;
  unsigned long thread_ = 0;  // a pthread_t
  std::optional<LogLimit> limits_[kKindsMax];
};

}  // namespace monarch
