#include "monarch/base/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Pipe {
  Pipe() {
    UniqueFd ends[2];
    EXPECT_TRUE(sys::make_pipe(ends));
    reader = std::move(ends[0]);
    writer = std::move(ends[1]);
  }
  // Until nobody can write without waiting.
  void fill() {
    fcntl(writer.get(), F_SETFL, O_NONBLOCK);
    const std::string page(4096, '.');
    while (::write(writer.get(), page.data(), page.size()) > 0) {
    }
    fcntl(writer.get(), F_SETFL, 0);
  }
  // All that comes until `last` has come, or the pipe is empty, without what fill() wrote.
  std::string read_until(std::string_view last, int patience_ms = 10'000) {
    std::string text;
    const int64_t deadline_ns = monotonic_ns() + 10 * kSecond;
    while (text.find(last) == std::string::npos && monotonic_ns() < deadline_ns) {
      pollfd wait{reader.get(), POLLIN, 0};
      if (::poll(&wait, 1, patience_ms) != 1) break;
      char bytes[65536];
      const ssize_t count = ::read(reader.get(), bytes, sizeof bytes);
      if (count <= 0) break;
      for (char byte : std::string_view(bytes, static_cast<size_t>(count))) {
        if (byte != '.') text.push_back(byte);
      }
    }
    return text;
  }
  UniqueFd reader, writer;
};

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

TEST(Log, PrintsLinesInOrder) {
  Pipe pipe;
  LogWriter log(pipe.writer.get());
  for (int i = 0; i < 100; ++i) log.add(std::to_string(i));
  EXPECT_TRUE(log.flush(10 * kSecond));
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "monarch: " + std::to_string(i) + "\n";
  EXPECT_EQ(pipe.read_until("99\n"), expected);
}

TEST(Log, NobodyWaitsForAReaderThatHasStoppedAndWhatWasNotPrintedIsCounted) {
  Pipe pipe;
  pipe.fill();
  LogWriter log(pipe.writer.get());
  const int64_t start_ns = monotonic_ns();
  for (int i = 0; i < 34'000; ++i) log.add("refused");
  EXPECT_LT(monotonic_ns() - start_ns, kSecond);
  EXPECT_FALSE(log.flush(1'000'000));
  const std::string text = pipe.read_until("stderr\n");
  const size_t printed = count_of(text, "monarch: refused\n");
  EXPECT_GE(printed, LogWriter::kLinesMax);
  EXPECT_LE(printed, LogWriter::kLinesMax + 1);  // and the one that the thread had in its hand
  EXPECT_TRUE(text.ends_with("monarch: " + std::to_string(34'000 - printed) +
                             " lines were not printed: nobody reads stderr\n"))
      << text.substr(text.size() - 200);
  log.add("later");  // the gap is told, lines are printed again
  EXPECT_EQ(pipe.read_until("later\n"), "monarch: later\n");
}

TEST(Log, FewLongLinesFillTheQueueToo) {
  Pipe pipe;
  pipe.fill();
  LogWriter log(pipe.writer.get());
  const std::string longest(1 << 20, 'x');
  for (int i = 0; i < 20; ++i) log.add(longest);
  const std::string text = pipe.read_until("stderr\n");
  EXPECT_GE(count_of(text, " more bytes)\n"), 3u);
  EXPECT_LT(text.size(), LogWriter::kBytesMax + 2 * LogWriter::kLineBytesMax);
}

// Ctrl-S in a terminal.
TEST(Log, NobodyWaitsForATerminalThatIsPaused) {
  UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!master || grantpt(master.get()) != 0 || unlockpt(master.get()) != 0) GTEST_SKIP() << "no terminals here";
  UniqueFd terminal(::open(ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  ASSERT_EQ(tcflow(terminal.get(), TCOOFF), 0);
  LogWriter log(terminal.get());
  const int64_t start_ns = monotonic_ns();
  for (int i = 0; i < 5'000; ++i) log.add("line");
  EXPECT_LT(monotonic_ns() - start_ns, kSecond);
  EXPECT_FALSE(log.flush(1'000'000));
  ASSERT_EQ(tcflow(terminal.get(), TCOON), 0);
  std::string text;
  char bytes[4096];
  for (pollfd wait{master.get(), POLLIN, 0}; text.find("nobody reads") == std::string::npos;) {
    ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
    text.append(bytes, static_cast<size_t>(std::max<ssize_t>(0, ::read(master.get(), bytes, sizeof bytes))));
  }
  EXPECT_TRUE(text.starts_with("monarch: line\r\n"));
}

TEST(Log, ADescriptorThatSomebodyMadeNonBlockingLosesNothing) {
  Pipe pipe;
  pipe.fill();
  fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK);
  LogWriter log(pipe.writer.get());
  for (int i = 0; i < 500; ++i) log.add(std::string(100, 'x'));
  log.add("last");
  EXPECT_EQ(count_of(pipe.read_until("last\n"), "monarch: "), 501u);
}

TEST(Log, AClosedReaderEndsNothing) {
  Pipe pipe;
  LogWriter log(pipe.writer.get());
  pipe.reader.reset();
  for (int i = 0; i < 100; ++i) log.add("line");
  EXPECT_TRUE(log.flush(10 * kSecond));
}

TEST(Log, WithoutAThreadItPrintsAtOnceOrNotAtAll) {
  Pipe pipe;
  LogWriter log(pipe.writer.get());
  sys::fail_nth(1);
  log.add("one");
  EXPECT_EQ(pipe.read_until("one\n"), "monarch: one\n");
  pipe.fill();
  sys::fail_nth(1);
  log.add("two");
  sys::fail_nth(0);
  EXPECT_EQ(pipe.read_until("two\n", 0), "");
}

// The thread is not in the child, and may have held anything.
TEST(Log, AChildOfForkPrintsWithoutTheThreadAndDoesNotHang) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start one";
#endif
  Pipe pipe;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      dup2(pipe.writer.get(), STDERR_FILENO);
      // A child that is one of ours (the fork server's) has a thread again; one of a user's fork() prints itself.
      if (round % 2 == 1) note_forked_child();
      log_line("of the child");
      _exit(flush_log(5 * kSecond) ? 0 : 1);
    }
    log_line("of the parent");  // so that the next child is forked while the thread is busy
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(pipe.read_until("child\n"), "monarch: of the child\n");
  }
}

TEST(Log, AnExitPrintsWhatIsQueuedAndWaitsForNobody) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer has its own to do in a child that exits: it looks for its parent's threads, and prints that";
#endif
  for (const bool stalled : {false, true}) {
    Pipe pipe;
    if (stalled) pipe.fill();
    const int64_t start_ns = monotonic_ns();
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      dup2(pipe.writer.get(), STDERR_FILENO);
      for (int i = 0; i < 100; ++i) log_line("before the end");
      exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_LT(monotonic_ns() - start_ns, 5 * kSecond);
    pipe.writer.reset();
    const size_t printed = count_of(pipe.read_until("\n\n"), "before the end\n");
    EXPECT_EQ(printed, stalled ? 0u : 100u);
  }
}

TEST(Log, ALineBeginsWithItsTimeWhereThatIsWanted) {
  EXPECT_EQ(line_time(), "");
  Pipe pipe;
  const pid_t child = fork();
  if (child == 0) {  // it is for a whole process
    begin_lines_with_times();
    LogWriter log(pipe.writer.get());
    log.add("first");
    log.flush(10 * kSecond);
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const std::string text = pipe.read_until("first\n");
  // The pipe's reader leaves dots out.
  EXPECT_EQ(text.size(), std::string_view("2026-01-31T12:00:00123Z monarch: first\n").size()) << text;
  EXPECT_TRUE(text.starts_with("20") && text.ends_with("Z monarch: first\n")) << text;
}

TEST(LogLimit, AdmitsTenOfAKindInASecondAndTellsTheOthersOnce) {
  LogLimit limit("refused a connection");
  int admitted = 0;
  for (int64_t now_ns = 5; now_ns < kSecond; now_ns += kSecond / 34) admitted += limit.admits(now_ns);
  EXPECT_EQ(admitted, 10);
  EXPECT_EQ(limit.due_ns(), kSecond + 5);
  EXPECT_FALSE(limit.take_notice(kSecond));
  EXPECT_EQ(limit.take_notice(kSecond + 5), "refused a connection: 25 more times within a second");
  EXPECT_EQ(limit.due_ns(), kNoDeadline);
  EXPECT_FALSE(limit.take_notice(9 * kSecond));
  EXPECT_TRUE(limit.admits(9 * kSecond));
}

TEST(Log, LinesOfOneKindAreLimitedAndTheirNumberIsToldThoughNoOtherComes) {
  Pipe pipe;
  LogWriter log(pipe.writer.get());
  for (int i = 0; i < 1'000; ++i) log.add_limited("refused a connection", "refused a connection: no hello");
  log.add_limited("something else", "something else");
  const std::string text = pipe.read_until("within a second\n");
  const size_t printed = count_of(text, "no hello\n");
  EXPECT_GE(printed, 10u);
  EXPECT_LE(printed, 20u);  // if a second ended in between
  EXPECT_EQ(count_of(text, "something else\n"), 1u);
  EXPECT_EQ(count_of(text, "refused a connection: "), printed + 1);
}

TEST(Log, TheEndTellsNumbersOfASecondThatIsNotOver) {
  Pipe pipe;
  LogWriter log(pipe.writer.get());
  for (int i = 0; i < 15; ++i) log.add_limited("kind", "line");
  EXPECT_TRUE(log.flush(10 * kSecond));
  EXPECT_TRUE(pipe.read_until("second\n").find("kind: 5 more times within a second\n") != std::string::npos);
}

}  // namespace
}  // namespace monarch
