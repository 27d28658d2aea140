// Lines to stderr, for the person in front of it. Nobody who logs waits for a reader: lines go through a bounded queue to
// a thread of their own (base/log_writer.h), and what finds no room there is counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monarch {

// Prints "monarch: <line>\n", with one system call while it is short (4 KiB), so that lines of several threads and
// processes do not mix. Any thread; with any lock held.
void log_line(std::string_view line);

// For lines that others can bring about as often as they like: of each `kind`, a literal that says in a few words what
// happens ("refused a connection"), ten in a second are printed, then the number of the others: "refused a connection:
// 33990 more times within a second". Any thread.
void log_line_limited(const char* kind, std::string_view line);

// For a process that people see a file of: from now on its lines begin with their time, in UTC, as do those of its workers
// that it shows: "2026-01-31T12:00:00.123Z monarch: <line>". Also those of children that fork() makes. Any thread.
void begin_lines_with_times();
// What a line of this moment begins with: that, and a space; or nothing. Any thread.
std::string line_time();

// Waits until all is printed, at most `limit_ns`. false: something is not. exit() does so itself; who calls _exit() does it
// before. Any thread but the reactor.
bool flush_log(int64_t limit_ns = 200'000'000);

}  // namespace monarch
