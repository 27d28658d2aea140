// The pump between pipes: the test is the processes that print, the host objects that announce them, and the reader.
#include "monarch/host/output/output_pump.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr int kLimitMs = 20'000;

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void put(const UniqueFd& fd, const std::string& text) {
  ASSERT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

class Screen {  // the script's stdout or stderr, and who reads it
 public:
  Screen() { std::tie(read_end, write_end) = make_pipe(); }

  // Reads until `lines` more lines have come.
  std::string lines(int lines) {
    std::string text;
    for (char c; lines > 0; lines -= c == '\n') {
      pollfd fd{read_end.get(), POLLIN, 0};
      if (poll(&fd, 1, kLimitMs) != 1 || read(read_end.get(), &c, 1) != 1) return text + "(no more)";
      text += c;
    }
    return text;
  }
  // What is there, without waiting.
  std::string now() {
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    std::string text(1 << 20, '\0');
    const ssize_t count = read(read_end.get(), text.data(), text.size());
    fcntl(read_end.get(), F_SETFL, 0);
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return text;
  }
  // Until the end of a pump that still has much to write.
  std::string rest_of(OutputPump& pump) {
    std::string text;
    std::jthread ending([&] {
      pump.finish();
      write_end.reset();
    });
    std::vector<char> buffer(1 << 16);
    ssize_t count;
    while ((count = read(read_end.get(), buffer.data(), buffer.size())) > 0) {
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    return text;
  }

  UniqueFd read_end, write_end;
};

class OutputPumpTest : public ::testing::Test {
 protected:
  OutputPumpTest() : pump(*OutputPump::make(clock, screen.write_end.get(), errors.write_end.get())) {
    route = std::make_unique<OutputRoute>(pump->route_socket(), [this] { return pump->start(); });
  }

  OutputRoute::Ends open(NodeId node, const std::string& mesh, int64_t rank, NodeId parent = 1) {
    uint64_t id = 0;
    for (char c : mesh) id = id * 131 + static_cast<uint64_t>(c) + parent;
    return route->open(node, parent, id, {mesh, rank, true, ""}).value();
  }
  // Changes options and waits until that is done.
  void set(const std::vector<NodeId>& nodes, const OutputOptions& options) {
    UniqueFd event(eventfd(0, EFD_CLOEXEC));
    auto sent = route->set_options(nodes, options, event.get());
    ASSERT_TRUE(sent.ok());
    for (eventfd_t done, all = 0; all < static_cast<eventfd_t>(*sent); all += done) {
      pollfd fd{event.get(), POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, kLimitMs), 1);
      ASSERT_EQ(eventfd_read(event.get(), &done), 0);
    }
  }

  SystemClock clock;
  Screen screen, errors;
  std::unique_ptr<OutputPump> pump;
  std::unique_ptr<OutputRoute> route;
};

TEST_F(OutputPumpTest, ShowsEachStreamWithTheRank) {
  auto zero = open(10, "trainer", 0), three = open(13, "trainer", 3);
  put(three.out, "hel");
  put(zero.out, "from zero\n");
  EXPECT_EQ(screen.lines(1), "[0] from zero\n");
  put(three.out, "lo\nagain\n");
  EXPECT_EQ(screen.lines(2), "[3] hello\n[3] again\n");
  put(three.err, "oops\n");
  EXPECT_EQ(errors.lines(1), "[3] oops\n");
}

TEST_F(OutputPumpTest, NamesTheMeshesThatPrintAfterTheFirstAndChangesNoPrefix) {
  auto a = open(10, "trainer", 0), b = open(20, "generator", 1), alone = open(30, "evaluator", -1);
  put(a.out, "1\n");
  EXPECT_EQ(screen.lines(1), "[0] 1\n");
  put(b.out, "2\n");
  EXPECT_EQ(screen.lines(1), "[generator 1] 2\n");
  put(a.out, "3\n");
  EXPECT_EQ(screen.lines(1), "[0] 3\n");
  put(a.err, "4\n");
  EXPECT_EQ(errors.lines(1), "[0] 4\n");
  put(b.out, "5\n");
  EXPECT_EQ(screen.lines(1), "[generator 1] 5\n");
  put(alone.out, "6\n");
  EXPECT_EQ(screen.lines(1), "[evaluator] 6\n");
  set({10, 20}, {.long_prefix = true, .window_ns = 3'600'000'000'000, .drop = false});
  put(a.out, "7\n");
  put(b.out, "8\n");
  set({10, 20}, {});
  EXPECT_EQ(screen.now(), "[0] 7\n[generator 1] 8\n");
}

TEST_F(OutputPumpTest, TellsMeshesOfTheSameNameApart) {
  auto a = route->open(10, 1, 100, {"procs", 0, true, ""}).value();
  auto b = route->open(20, 1, 200, {"procs", 0, true, ""}).value();
  put(a.out, "1\n");
  EXPECT_EQ(screen.lines(1), "[0] 1\n");
  put(b.out, "2\n");
  EXPECT_EQ(screen.lines(1), "[procs#2 0] 2\n");
}

TEST_F(OutputPumpTest, ShowsThePathOfAWorkersWorkers) {
  auto worker = open(10, "trainer", 3);
  auto nested = open(11, "helpers", 0, 10);
  auto deep = open(12, "leaf", -1, 11);
  put(nested.out, "only I print\n");
  EXPECT_EQ(screen.lines(1), "[3/0] only I print\n");
  put(deep.out, "deep\n");
  EXPECT_EQ(screen.lines(1), "[trainer 3/helpers 0/leaf] deep\n");
  put(worker.out, "I\n");
  EXPECT_EQ(screen.lines(1), "[trainer 3] I\n");
  put(nested.out, "as before\n");
  EXPECT_EQ(screen.lines(1), "[3/0] as before\n");
}

TEST_F(OutputPumpTest, ShowsAProgressBarNowAndThenAndItsEnd) {
  auto bar = open(10, "p", 0), other = open(11, "p", 1);
  const int64_t begin_ns = monotonic_ns();
  put(bar.err, "before\n\r 10%\r 20%");
  put(bar.err, "\r 30%\r 40%");
  EXPECT_EQ(errors.lines(2), "[0] before\n[0]  40%\n");  // still without its end
  EXPECT_GE(monotonic_ns() - begin_ns, 1'000'000'000);
  put(bar.err, "\r 50%\r100%\nafter\n");
  EXPECT_EQ(errors.lines(2), "[0] 100%\n[0] after\n");
  put(bar.err, "\r 1%\r 2%");
  bar = {};
  EXPECT_EQ(errors.lines(1), "[0]  2%\n");
  put(other.err, "\r 7%");
  pump->finish();
  EXPECT_EQ(errors.now(), "[1]  7%\n");
}

TEST_F(OutputPumpTest, ShowsWhatADeadProcessLeftAndItsUnfinishedLine) {
  auto ends = open(10, "p", 0);
  put(ends.out, "one\ntwo, unfinished");
  ends = {};
  EXPECT_EQ(screen.lines(2), "[0] one\n[0] two, unfinished\n");
}

TEST_F(OutputPumpTest, ShowsEverythingBeforeItEndsThoughAPipeStaysOpen) {
  auto ends = open(10, "p", 0);
  std::string expected;
  for (int i = 0; i < 500; ++i) {
    put(ends.out, "line " + std::to_string(i) + "\n");
    expected += "[0] line " + std::to_string(i) + "\n";
  }
  put(ends.out, "no end");
  pump->finish();
  EXPECT_EQ(screen.now(), expected + "[0] no end\n");
  pump->catch_up();  // afterwards nobody waits
}

TEST_F(OutputPumpTest, EndsThoughSomebodyPrintsForEver) {
  auto ends = open(10, "p", 0);
  const int ours = fcntl(ends.out.get(), F_DUPFD_CLOEXEC, 3);
  signal(SIGPIPE, SIG_IGN);
  std::thread printer([ours] {
    while (write(ours, "for ever\n", 9) == 9) {
    }
    close(ours);
  });
  EXPECT_EQ(screen.lines(1), "[0] for ever\n");
  const std::string rest = screen.rest_of(*pump);
  EXPECT_TRUE(rest.ends_with("[0] for ever\n")) << rest.substr(rest.size() - 50);
  pump.reset();  // closes the pipe
  printer.join();
}

TEST_F(OutputPumpTest, IsCaughtUpWithWhatWasPrintedBefore) {
  auto ends = open(10, "p", 0);
  put(ends.out, "first\n");
  EXPECT_EQ(screen.lines(1), "[0] first\n");
  int late = 0;
  for (int i = 0; i < 2000; ++i) {
    put(ends.out, "line\n");
    if (pump->is_behind_after(0)) pump->catch_up();
    if (std::string now = screen.now(); now.empty()) {
      EXPECT_EQ(screen.lines(1), "[0] line\n") << i;
      ++late;
    } else {
      ASSERT_EQ(now, "[0] line\n") << i;
    }
  }
  EXPECT_LE(late, 20) << "nobody waits without end: on a busy machine it may be too late";
}

TEST_F(OutputPumpTest, LooksAfterAWaitInWhichSomebodyCanHavePrinted) {
  auto ends = open(10, "p", 0);
  put(ends.out, "first\n");
  if (pump->is_behind_after(1'000'000)) pump->catch_up();
  EXPECT_EQ(screen.now(), "[0] first\n");
}

TEST_F(OutputPumpTest, MakesWritersWaitForASlowReader) {
  auto ends = open(10, "p", 0);
  fcntl(ends.out.get(), F_SETFL, O_NONBLOCK);
  const std::string line(1000, 'x');
  size_t written = 0;
  // Until the pump stays behind: then what is under way is bounded by the two pipes and what the pump holds.
  for (int64_t full_since_ns = 0; full_since_ns == 0 || monotonic_ns() - full_since_ns < 200'000'000;) {
    const ssize_t count = write(ends.out.get(), (line + "\n").data(), 1001);
    if (count > 0) {
      ASSERT_EQ(count, 1001);  // a page at most is written whole
      written += 1001;
      full_since_ns = 0;
    } else if (full_since_ns == 0) {
      full_since_ns = monotonic_ns();
    }
    ASSERT_LT(written, 2u << 20);
  }
  put(ends.err, "errors come through\n");
  EXPECT_EQ(errors.lines(1), "[0] errors come through\n");
  pump->catch_up();  // does not wait for the reader
  ends = {};
  const std::string rest = screen.rest_of(*pump);
  EXPECT_EQ(rest.size(), written / 1001 * 1005);
}

TEST_F(OutputPumpTest, DropsWholeLinesOnRequestAndSaysSo) {
  auto ends = open(10, "p", 0);
  set({10}, {.long_prefix = false, .window_ns = 0, .drop = true});
  constexpr uint64_t kLines = 200'000;  // more than fits anywhere, and nobody reads: the writer never waits
  for (uint64_t i = 0; i < kLines; ++i) put(ends.out, "line " + std::to_string(i) + "\n");
  std::string text;
  while (!text.ends_with("too slow\n") && !text.ends_with("(no more)")) text += screen.lines(1);
  ends = {};
  text += screen.rest_of(*pump);
  uint64_t shown = 0, dropped = 0, next = 0;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    uint64_t number;
    if (std::sscanf(line.c_str(), "[0] line %lu", &number) == 1) {
      EXPECT_GE(number, next);
      next = number + 1;
      ++shown;
    } else {
      ASSERT_EQ(std::sscanf(line.c_str(), "[0] monarch: %lu lines were dropped", &number), 1) << line;
      dropped += number;
    }
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(shown + dropped, kLines);
}

TEST_F(OutputPumpTest, FoldsLinesOfAMeshUntilTheOptionsChange) {
  std::vector<OutputRoute::Ends> all;
  std::vector<NodeId> nodes;
  for (int64_t rank = 0; rank < 8; ++rank) {
    all.push_back(open(static_cast<NodeId>(10 + rank), "p", rank));
    nodes.push_back(static_cast<NodeId>(10 + rank));
  }
  put(all[5].out, "before\n");
  set(nodes, {.long_prefix = true, .window_ns = 3'600'000'000'000, .drop = false});
  EXPECT_EQ(screen.now(), "[5] before\n");
  for (const auto& each : all) put(each.out, "10%\rloading the weights\n");
  put(all[2].out, "mine alone\n");
  put(all[2].err, "oops\noops\n");
  set(nodes, {});
  EXPECT_EQ(screen.now(), "[8 similar log lines] [ranks 0-7] loading the weights\n[2] mine alone\n");
  EXPECT_EQ(errors.now(), "[2 similar log lines] [2] oops\n");
  put(all[1].out, "after\n");
  EXPECT_EQ(screen.lines(1), "[1] after\n");
}

TEST_F(OutputPumpTest, ShowsFoldedLinesAtTheEndOfTheirWindow) {
  auto zero = open(10, "p", 0);
  set({10}, {.long_prefix = true, .window_ns = 50'000'000, .drop = false});
  const int64_t begin_ns = monotonic_ns();
  for (int i = 0; i < 3; ++i) put(zero.out, "again\n");
  EXPECT_EQ(screen.lines(1), "[3 similar log lines] [0] again\n");
  EXPECT_GE(monotonic_ns() - begin_ns, 50'000'000);
  put(zero.out, "left over\n");  // its process and the pump end before its window
  zero = {};
  EXPECT_EQ(screen.rest_of(*pump), "[0] left over\n");
}

TEST_F(OutputPumpTest, HasALongPrefix) {
  auto ends = open(0xabc, "p", 2), alone = open(0xdef, "q", -1);
  set({0xabc, 0xdef}, {.long_prefix = true, .window_ns = 0, .drop = false});
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  put(ends.out, "x\n");
  EXPECT_EQ(screen.lines(1), "[" + std::string(host) + " 0000000000000abc] [2] x\n");
  put(alone.out, "y\n");
  EXPECT_EQ(screen.lines(1), "[" + std::string(host) + " 0000000000000def] [0] y\n");
}

TEST_F(OutputPumpTest, KeepsTheLastLinesOfTheDead) {
  auto ends = open(10, "p", 0);
  for (int i = 0; i < 2000; ++i) put(ends.err, "line " + std::to_string(i) + "\n");
  put(ends.err, "unfinished");
  ends = {};
  auto answer = route->tail(10, OutputStream::kStderr, 3);
  ASSERT_TRUE(answer.ok());
  pollfd fd{answer->get(), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, kLimitMs), 1);
  char text[1000];
  const ssize_t count = read(answer->get(), text, sizeof text);
  ASSERT_GT(count, 0);
  EXPECT_EQ(std::string_view(text, static_cast<size_t>(count)), "line 1998\nline 1999\nunfinished");
}

TEST_F(OutputPumpTest, KnowsAtOnceWhoHasPrintedNothing) {
  const auto knows = [this](NodeId node) { return pump->knows_silent(node, OutputStream::kStderr); };
  EXPECT_FALSE(knows(10)) << "of whom it has not heard";
  std::vector<OutputRoute::Ends> printed;
  for (NodeId node = 10; node < 200; ++node) {
    printed.push_back(open(node, "p", static_cast<int64_t>(node)));
    put(printed.back().out, "to the other stream\n");
    screen.lines(1);
    pump->catch_up();
    const int64_t deadline_ns = clock.now_ns() + int64_t{kLimitMs} * 1'000'000;
    while (!knows(node) && clock.now_ns() < deadline_ns) {  // the pump may be in a turn
    }
    EXPECT_TRUE(knows(node));
    put(printed.back().err, "x\n");
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(knows(node)) << "wherever the pump is with it";
    errors.lines(1);
    pump->catch_up();
    EXPECT_FALSE(knows(node));
  }
}

TEST_F(OutputPumpTest, WritesLogFilesForTheirOwnerOnly) {
  char folder[] = "/tmp/monarch-output-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/user/p_0.log";
  auto ends = route->open(10, 1, 5, {"p", 0, true, path}).value();
  EXPECT_EQ(errors.lines(1), "monarch: what workers print is also written to files in " + std::string(folder) +
                                 "/user; of the first one: " + path + "\n");
  put(ends.out, "to both\n");
  EXPECT_EQ(screen.lines(1), "[0] to both\n");
  put(ends.err, "10%\rhalf");
  ends = {};
  EXPECT_EQ(errors.lines(1), "[0] half\n");
  pump->finish();
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[100];
  const ssize_t count = read(file.get(), text, sizeof text);
  EXPECT_EQ(std::string_view(text, count > 0 ? static_cast<size_t>(count) : 0), "to both\nhalf\n");
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((std::string(folder) + "/user").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  std::filesystem::remove_all(folder);
}

TEST(LogFileTest, IsPutAsideWhenItIsFullAndHasTheLastLines) {
  char folder[] = "/tmp/monarch-output-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/p_0.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  const auto size_of = [](const std::string& at) {
    std::error_code error;
    const auto size = std::filesystem::file_size(at, error);
    return error ? -1 : static_cast<int64_t>(size);
  };
  const std::string piece(1 << 20, 'x');
  const int64_t pieces = kLogFileMax / static_cast<int64_t>(piece.size());
  for (int64_t i = 0; i < pieces; ++i) file->write(piece);
  EXPECT_EQ(size_of(path), kLogFileMax);
  EXPECT_EQ(size_of(path + ".1"), -1);
  file->write("first of the second\n");
  EXPECT_EQ(size_of(path + ".1"), kLogFileMax);
  EXPECT_EQ(size_of(path), 20);
  for (int64_t i = 0; i < pieces; ++i) file->write(piece);
  EXPECT_EQ(size_of(path + ".1"), 20 + kLogFileMax - (1 << 20)) << "in place of the one before";
  EXPECT_EQ(size_of(path), 1 << 20);
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  // Where it cannot be put aside, it goes on.
  for (int64_t i = 1; i < pieces; ++i) file->write(piece);
  std::filesystem::remove_all(folder);
  file->write("lost, as the file is\n");
  EXPECT_TRUE(*file);
}

TEST_F(OutputPumpTest, SurvivesARequestThatIsNone) {
  UniqueFd socket = pump->route_socket();
  ASSERT_TRUE(pump->start().ok());
  ASSERT_EQ(write(socket.get(), "nonsense", 8), 8);
  auto ends = open(10, "p", 0);
  put(ends.out, "on\n");
  EXPECT_EQ(screen.lines(1), "[0] on\n");
}

// The calls of an announcement: its socket, two pipes, sending; then what is looked for: the descriptors arrive, and
// the pump watches two pipes.
TEST_F(OutputPumpTest, WhatFindsNoDescriptorsWaitsAndLosesNothing) {
  ASSERT_TRUE(pump->start().ok());
  sys::fail_nth(5);
  auto ends = open(10, "p", 0);
  put(ends.out, "late, and here\n");
  EXPECT_EQ(screen.lines(1), "[0] late, and here\n");
  const std::string told = errors.lines(1);
  EXPECT_EQ(told.rfind("monarch: cannot show yet what some workers print: out of file descriptors: ", 0), 0u) << told;
  sys::fail_nth(0);
}

TEST_F(OutputPumpTest, APipeThatCannotBeWatchedYetIsReadAllTheSame) {
  ASSERT_TRUE(pump->start().ok());
  sys::fail_nth(6);
  auto ends = open(10, "p", 0);
  put(ends.out, "late, and here\n");
  EXPECT_EQ(screen.lines(1), "[0] late, and here\n");
  const std::string told = errors.lines(1);
  EXPECT_EQ(told.rfind("monarch: cannot show yet what some workers print: No space left on device", 0), 0u) << told;
  sys::fail_nth(0);
  put(ends.out, "and on\n");
  EXPECT_EQ(screen.lines(1), "[0] and on\n");
}

TEST_F(OutputPumpTest, NoThreadForItIsToldToWhoWantsOne) {
  sys::fail_nth(1);
  const Status started = pump->start();
  sys::fail_nth(0);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().message.rfind("cannot start a thread that shows what workers print: ", 0), 0u);
  auto ends = open(10, "p", 0);
  put(ends.out, "later\n");
  EXPECT_EQ(screen.lines(1), "[0] later\n");
}

TEST(OutputRoute, LeadsToOurOwnStreamsWithoutAPump) {
  OutputRoute route;
  auto ends = route.open(10, 1, 5, {"p", 0, true, ""}).value();
  struct stat theirs, ours;
  ASSERT_EQ(fstat(ends.out.get(), &theirs), 0);
  ASSERT_EQ(fstat(1, &ours), 0);
  EXPECT_EQ(theirs.st_ino, ours.st_ino);
  EXPECT_FALSE(route.set_options({10}, {}, 1).ok());
  EXPECT_FALSE(route.tail(10, OutputStream::kStderr, 1).ok());
}

}  // namespace
}  // namespace monarch
