// The pump between pipes: the test is the processes that print, the host objects that announce them, and the reader.
#include "monarch/host/output/output_pump.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
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

// ---- Log files ----

// A folder, and what is in a file there.
class LogFolder {
 public:
  LogFolder() { EXPECT_NE(mkdtemp(path_), nullptr); }
  ~LogFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + ("/" + name); }

  static std::string text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Of the one file whose path begins so.
  static std::string path_of(const std::string& begin) {
    std::string found;
    for (const auto& each : std::filesystem::directory_iterator(begin.substr(0, begin.rfind('/')))) {
      if (!each.path().string().starts_with(begin)) continue;
      EXPECT_EQ(found, "");
      found = each.path();
    }
    return found;
  }
  // Without the times, which are all there.
  static std::string untimed(const std::string& text) {
    std::string left;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line); left += line.substr(25) + "\n") {
      EXPECT_TRUE(std::regex_match(line.substr(0, 25), std::regex(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )"))) << line;
    }
    return left;
  }

 private:
  char path_[32] = "/tmp/monarch-output-XXXXXX";
};

mode_t mode_of(const std::string& path) {
  struct stat status;
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST_F(OutputPumpTest, WritesAFileForEachHostForItsUserOnly) {
  LogFolder folder;
  const std::string one = folder / "user/one", other = folder / "user/other";
  auto zero = route->open(10, 1, 5, {"p", 0, true, one}).value();
  const std::string said = errors.lines(1);
  const std::string path = folder.path_of(one);
  EXPECT_TRUE(std::regex_match(path.substr(one.size()), std::regex(R"(_20\d{6}-\d{6}-\d+\.log)"))) << path;
  EXPECT_EQ(said, "monarch: what workers print is also written to files in " + (folder / "user") +
                      ", one for each host; the first one: " + path + "\n");
  auto first = route->open(11, 1, 5, {"p", 1, true, one}).value();
  auto elsewhere = route->open(12, 1, 5, {"p", 2, true, other}).value();
  auto alone = route->open(13, 1, 6, {"the [odd]/\none", -1, true, one}).value();
  auto nested = route->open(14, 12, 7, {"helper", 0, true, "+" + one}).value();
  auto orphan = route->open(15, 9, 8, {"p", 0, true, "+" + one}).value();
  const auto say = [&](OutputRoute::Ends& ends, const std::string& text) {
    put(ends.out, text + "\n");
    EXPECT_NE(screen.lines(1).find(text), std::string::npos);
  };
  say(zero, "a");
  say(elsewhere, "b");
  say(first, "[p 0] c");
  say(nested, "d");
  say(orphan, "e");
  put(alone.out, "\n");
  screen.lines(2);  // its name has two
  put(zero.err, "10%\rhalf");
  zero = {};
  EXPECT_EQ(errors.lines(1), "[0] half\n");
  say(first, std::string("\xff\0\r", 3));
  pump->finish();
  EXPECT_EQ(folder.untimed(folder.text(path)), "[p 0] a\n[p 1] [p 0] c\n[p#2 0] e\n[the _odd___one 0] \n[p 0] half\n" +
                                                   std::string("[p 1] \xff\0\r\n", 10));
  EXPECT_EQ(folder.untimed(folder.text(folder.path_of(other))), "[p 2] b\n[p 2/helper 0] d\n");
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_EQ(mode_of(folder / "user"), 0700u);
}

TEST_F(OutputPumpTest, WritesWhenALineWasRead) {
  LogFolder folder;
  auto ends = route->open(10, 1, 5, {"p", 0, true, folder / "user/p"}).value();
  put(ends.out, "not yet ");
  const std::string before = utc_text(wall_ns());
  put(ends.out, "whole\n" + std::string((1 << 20) + 1, 'x') + "\n");
  EXPECT_EQ(screen.lines(1), "[0] not yet whole\n");
  const std::string after = utc_text(wall_ns());
  ends = {};
  screen.lines(2);
  pump->finish();
  const std::string text = folder.text(folder.path_of(folder / "user/p"));
  EXPECT_LE(before, text.substr(0, before.size()));
  EXPECT_GE(after, text.substr(0, before.size()));
  EXPECT_EQ(folder.untimed(text), "[p 0] not yet whole\n[p 0] " + std::string(1 << 20, 'x') + "\n[p 0] x\n");
}

TEST_F(OutputPumpTest, NotesStandInTheFileBehindAllThatItsProcessHasPrinted) {
  LogFolder folder;
  const std::string file = folder / "user/p";
  pump->note(10, "nobody writes to files");
  auto lives = route->open(10, 1, 5, {"p", 0, true, file}).value();
  auto ended = route->open(11, 1, 5, {"p", 1, true, file}).value();
  auto without = route->open(12, 1, 6, {"q", 0, true, ""}).value();
  put(ended.err, "last");
  ended = {};
  screen.lines(1);
  errors.lines(1);
  pump->note(11, "it failed");
  put(lives.out, "a\n");
  put(lives.err, "b, and no end");  // the end of which may come behind the word of the death
  pump->note(10, "it failed too,\nand why");
  pump->note(12, "it has no file");
  pump->note(13, "it is not known");
  pump->finish();
  EXPECT_EQ(folder.untimed(folder.text(folder.path_of(file))),
            "[p 1] last\n[p 1] it failed\n[p 0] a\n[p 0] b, and no end\n[p 0] it failed too,\n[p 0] and why\n");
}

TEST_F(OutputPumpTest, ANoteWaitsForNobodyWhoPrintsForEver) {
  LogFolder folder;
  auto ends = route->open(10, 1, 5, {"p", 0, true, folder / "user/p"}).value();
  const int ours = fcntl(ends.out.get(), F_DUPFD_CLOEXEC, 3);
  signal(SIGPIPE, SIG_IGN);
  std::thread printer([ours] {
    const std::string much(64 << 10, '\n');
    while (write(ours, much.data(), much.size()) > 0) {
    }
    close(ours);
  });
  screen.lines(1);
  pump->note(10, "it failed");
  const auto ends_with_note = [&] {
    std::ifstream file(folder.path_of(folder / "user/p"));
    for (std::string line; std::getline(file, line);) {
      if (line.ends_with("it failed")) return true;
    }
    return false;
  };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!ends_with_note() && std::chrono::steady_clock::now() < limit) screen.lines(1000);
  EXPECT_TRUE(ends_with_note());
  screen.rest_of(*pump);
  pump.reset();  // closes the pipe
  printer.join();
}

int64_t size_of(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(size);
}

constexpr std::string_view kTime = "2026-01-31T12:00:00.000Z";

// A line of `size` bytes, with all that belongs to it.
void write_line(LogFile& file, LogFile::Voice& voice, size_t size) {
  std::string text;
  LogFile::format(text, kTime, voice, std::string(size - kTime.size() - voice.begin.size() - 1, 'x'));
  file.write(voice, text);
}

TEST(LogFileTest, IsPutAsideWhenItIsFull) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  LogFile::Voice& voice = file->add("p 0");
  constexpr size_t kPiece = 1 << 20;
  constexpr int64_t kPieces = kLogFileMax / kPiece;
  for (int64_t i = 0; i < kPieces; ++i) write_line(*file, voice, kPiece);
  EXPECT_EQ(size_of(path), kLogFileMax);
  EXPECT_EQ(size_of(path + ".1"), -1);
  write_line(*file, voice, 100);
  EXPECT_EQ(size_of(path + ".1"), kLogFileMax);
  EXPECT_EQ(size_of(path), 100);
  for (int64_t i = 0; i < kPieces; ++i) write_line(*file, voice, kPiece);
  EXPECT_EQ(size_of(path + ".1"), 100 + kLogFileMax - (1 << 20)) << "in place of the one before";
  EXPECT_EQ(size_of(path), 1 << 20);
  EXPECT_EQ(mode_of(path), 0600u);
  // Who comes again goes on with it.
  auto again = LogFile::make(path);
  ASSERT_TRUE(again);
  write_line(*again, again->add("p 0"), 100);
  EXPECT_EQ(size_of(path), (1 << 20) + 100);
  // Where it cannot be put aside, it goes on.
  for (int64_t i = 1; i < kPieces; ++i) write_line(*file, voice, kPiece);
  std::filesystem::create_directory(path + ".1.old");
  std::filesystem::remove(path + ".1");
  std::filesystem::rename(path + ".1.old", path + ".1");
  write_line(*file, voice, 100);
  EXPECT_EQ(size_of(path), kLogFileMax + 100 + 100);
  EXPECT_TRUE(*file);
}

TEST(LogFileTest, IsBegunAnewWhereSomebodyHasPutItAsideHimself) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  LogFile::Voice& voice = file->add("p 0");
  write_line(*file, voice, 100);
  std::filesystem::rename(path, path + ".mine");
  for (int64_t i = 0; i < kLogFileMax; i += 1 << 20) write_line(*file, voice, 1 << 20);
  EXPECT_LE(size_of(path + ".mine"), kLogFileMax);
  EXPECT_EQ(size_of(path), 1 << 20);
}

TEST(LogFileTest, IsMadeAnewWithItsFolderOrItsLinesAreSaidToBeLost) {
  LogFolder folder;
  const std::string path = folder / "sub/p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  LogFile::Voice& voice = file->add("p 0");
  write_line(*file, voice, 100);
  std::filesystem::remove_all(folder / "sub");
  write_line(*file, voice, 100);
  EXPECT_EQ(size_of(path), 100);
  EXPECT_EQ(file->take_trouble(), "");
  std::filesystem::remove_all(folder / "sub");
  std::ofstream(folder / "sub") << "no folder";
  write_line(*file, voice, 100);
  write_line(*file, voice, 100);
  EXPECT_NE(file->take_trouble(), "");
  EXPECT_EQ(file->take_trouble(), "") << "once";
  std::filesystem::remove_all(folder / "sub");
  write_line(*file, voice, 100);
  EXPECT_EQ(size_of(path), 100);
}

TEST(LogFileTest, IsMadeAnewWhereSomebodyHasTakenItAway) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  LogFile::Voice& voice = file->add("p 0");
  write_line(*file, voice, 100);
  std::filesystem::remove(path);
  write_line(*file, voice, 100);
  EXPECT_EQ(size_of(path), 100);
  EXPECT_EQ(file->take_trouble(), "");
}

// The limit of a file's size stands for a full disk.
TEST(LogFileTest, SaysOnceThatLinesAreLost) {
  LogFolder folder;
  auto file = LogFile::make(folder / "p.log");
  ASSERT_TRUE(file);
  LogFile::Voice& voice = file->add("p 0");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{150, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &little);
  for (int i = 0; i < 3; ++i) write_line(*file, voice, 100);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_NE(file->take_trouble(), "");
  EXPECT_EQ(file->take_trouble(), "");
  write_line(*file, voice, 100);
  write_line(*file, voice, 100);
  EXPECT_EQ(file->take_trouble(), "");
}

TEST(LogFileTest, HasTheLastLinesOfWhoIsQuietOrDead) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  LogFile::Voice &loud = file->add("p 0"), &quiet = file->add("p 1"), &dead = file->add("p 2");
  file->add("p 3");  // says nothing
  const auto say = [&](LogFile::Voice& voice, int second, const std::string& line) {
    std::string text;
    LogFile::format(text, utc_text(int64_t{second} * 1'000'000'000), voice, line);
    file->write(voice, text);
  };
  say(dead, 1, "before");
  say(quiet, 2, std::string(LogFile::kLastBytesMax, 'y'));
  std::string many;
  for (int i = 0; i < 12; ++i) LogFile::format(many, utc_text(3'000'000'000), dead, std::to_string(i));
  file->write(dead, many);
  say(dead, 4, "killed");
  file->end(dead);
  const auto fill = [&] {
    while (size_of(path + ".1") == -1) write_line(*file, loud, 1 << 20);
  };
  fill();
  EXPECT_EQ(folder.text(path).find("kept"), std::string::npos) << "they are in the other one";
  EXPECT_NE(folder.text(path + ".1").find("killed"), std::string::npos);
  for (int times = 0; times < 2; ++times) {  // from one to the next, every second time
    std::filesystem::remove(path + ".1");
    fill();
    const std::string text = folder.text(times == 0 ? path : path + ".1");
    std::string kept = "1970-01-01T00:00:02.000Z kept [p 1] ";
    kept += std::string(LogFile::kLastBytesMax - (kept.size() - 5) - 1, 'y') + "\n";
    for (int i = 3; i < 12; ++i) kept += "1970-01-01T00:00:03.000Z kept [p 2] " + std::to_string(i) + "\n";
    kept += "1970-01-01T00:00:04.000Z kept [p 2] killed\n2026-";
    EXPECT_EQ(text.substr(0, kept.size()), kept);
    EXPECT_EQ(text.find("kept", kept.size()), std::string::npos);
  }
}

TEST(LogFileTest, KeepsThoseOfManyThatHaveEndedButNotOfAll) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  for (size_t i = 0; i < LogFile::kEndedMax + 2; ++i) {
    LogFile::Voice& voice = file->add("p " + std::to_string(i));
    write_line(*file, voice, 100);
    file->end(voice);
  }
  LogFile::Voice& loud = file->add("loud 0");
  for (int times = 0; times < 2; ++times) {
    std::filesystem::remove(path + ".1");
    while (size_of(path + ".1") == -1) write_line(*file, loud, 1 << 20);
  }
  const std::string text = folder.text(path);
  EXPECT_EQ(text.find("[p 1] "), std::string::npos);
  EXPECT_TRUE(text.starts_with(std::string(kTime) + " kept [p 2] "));
}

TEST(LogFileTest, TakesNoFileOfAnotherKind) {
  LogFolder folder;
  std::filesystem::create_symlink("/dev/null", folder / "link");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) EXPECT_FALSE(LogFile::make(folder / name).ok()) << name;
}

TEST(LogFileTest, BeginsALineAnewWhereOneWasTorn) {
  LogFolder folder;
  const std::string path = folder / "p.log";
  auto file = LogFile::make(path);
  ASSERT_TRUE(file);
  LogFile::Voice& voice = file->add("p 0");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit little{150, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  for (int i = 0; i < 3; ++i) write_line(*file, voice, 100);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  write_line(*file, voice, 100);
  const std::string text = folder.text(path);
  EXPECT_EQ(text.size(), 251u);
  EXPECT_EQ(text.substr(149, 1 + 1 + kTime.size()), "x\n" + std::string(kTime));
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
