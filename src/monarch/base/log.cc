#include "monarch/base/log.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/log_writer.h"

namespace monarch {

namespace {

std::atomic<LogWriter*> writer_made{nullptr};
std::atomic<bool> has_times{false};

// Of this process. Never destroyed: threads that outlive main() may log. Not a static of the function: a fork() in the
// middle of its making would leave a child that waits for it for ever.
LogWriter& writer() {
  LogWriter* there = writer_made.load();
  if (there != nullptr) return *there;
  auto made = std::make_unique<LogWriter>(STDERR_FILENO);
  if (!writer_made.compare_exchange_strong(there, made.get())) return *there;
  pthread_atfork(nullptr, nullptr, [] {
    if (!in_fork_to_exec()) writer_made.load()->after_fork_in_child();
  });
  std::atexit([] {
    flush_log();
    writer().close();
  });
  return *made.release();
}

}  // namespace

void begin_lines_with_times() { has_times = true; }

std::string line_time() {
  return has_times.load(std::memory_order_relaxed) ? utc_text(wall_ns()) + " " : std::string();
}

void log_line(std::string_view line) { writer().add(line); }

void log_line_limited(const char* kind, std::string_view line) { writer().add_limited(kind, line); }

bool flush_log(int64_t limit_ns) {
  LogWriter* const made = writer_made;
  return made == nullptr || made->flush(limit_ns);
}

}  // namespace monarch
