// What is done to lines without pipes and threads: cutting, keeping, folding, and the writing of whole ones.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "monarch/base/unique_fd.h"
#include "monarch/host/output/line_folder.h"
#include "monarch/host/output/line_splitter.h"
#include "monarch/host/output/line_tail.h"
#include "monarch/host/output/line_writer.h"

namespace monarch {
namespace {

using Lines = std::vector<std::string>;

struct Collected {
  Lines lines;
  void operator()(std::string_view line) { lines.emplace_back(line); }
};

// ---- LineSplitter ----

TEST(LineSplitter, GivesTheSameLinesHoweverTheBytesAreCut) {
  std::mt19937 random(7);
  const std::string text = "one\n\ntwo two\n" + std::string(5000, 'x') + "\nend";
  for (int round = 0; round < 200; ++round) {
    LineSplitter splitter;
    Collected found;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(1 + random() % (round % 2 == 0 ? 5 : 3000), text.size() - at);
      splitter.feed(std::string_view(text).substr(at, size), found);
      at += size;
    }
    EXPECT_EQ(found.lines, (Lines{"one", "", "two two", std::string(5000, 'x')}));
    EXPECT_EQ(splitter.rest(), "end");
    splitter.finish(found);
    EXPECT_EQ(found.lines.back(), "end");
    splitter.finish(found);
    EXPECT_EQ(found.lines.size(), 5u);
  }
}

TEST(LineSplitter, SplitsALineOnlyAboveTheLimit) {
  constexpr size_t kMax = LineSplitter::kLineBytesMax;
  LineSplitter splitter;
  Collected found;
  splitter.feed(std::string(kMax, 'a') + "\nb\n", found);
  EXPECT_EQ(found.lines, (Lines{std::string(kMax, 'a'), "b"}));
  found.lines.clear();
  for (int i = 0; i < 5; ++i) splitter.feed(std::string(kMax / 2, 'c'), found);
  splitter.feed("\n", found);
  EXPECT_EQ(found.lines, (Lines{std::string(kMax, 'c'), std::string(kMax, 'c'), std::string(kMax / 2, 'c')}));
}

TEST(LineSplitter, GivesOfARewrittenLineWhatItSaysAtLast) {
  const std::string text = "\r 10%\r 20%\r100%\nwindows\r\n\r\n\r\r\rx\r\ngone\r    \rdone\n1%\r2%\r\nlast\rvery last\r";
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    LineSplitter splitter;
    Collected found;
    for (size_t at = 0; at < text.size(); at += cut) splitter.feed(std::string_view(text).substr(at, cut), found);
    EXPECT_EQ(found.lines, (Lines{"100%", "windows\r", "\r", "x\r", "done", "2%\r"}));
    splitter.finish(found);
    EXPECT_EQ(found.lines.back(), "very last");
  }
}

TEST(LineSplitter, ShowsTheStateOfARewrittenLineOnceAndNotAgainAtItsEnd) {
  LineSplitter splitter;
  Collected found;
  splitter.feed("plain", found);
  EXPECT_FALSE(splitter.has_state());
  splitter.feed("\r 10%\r 20%", found);
  EXPECT_TRUE(splitter.has_state());
  splitter.show_state(found);
  splitter.show_state(found);
  EXPECT_EQ(found.lines, (Lines{" 20%"}));
  splitter.feed("\r 20%\r", found);  // says the same
  EXPECT_FALSE(splitter.has_state());
  splitter.feed("\r100%", found);
  splitter.show_state(found);
  splitter.feed("\nnext\n", found);
  EXPECT_EQ(found.lines, (Lines{" 20%", "100%", "next"}));
}

TEST(LineSplitter, TakesBarsBelowOneAnotherForOneLine) {
  const std::string up = "\x1b[A";
  std::string text = "\router 0%";
  for (int i = 0; i < 10; ++i) text += "\n\rmiddle " + std::to_string(i) + up;
  for (int i = 0; i < 10; ++i) text += "\n\n\rinner " + std::to_string(i) + up + up;
  const std::string seen = text;
  text += "\n\n\r        " + up + up + "\n\r     " + up + "\router 100%\nplain" + up + "\n";
  for (size_t cut : {size_t{1}, size_t{2}, size_t{7}, text.size()}) {
    LineSplitter splitter;
    Collected found;
    for (size_t at = 0; at < text.size(); at += cut) {
      if (at <= seen.size() && seen.size() < at + cut) {
        splitter.feed(text.substr(at, seen.size() - at), found);
        splitter.show_state(found);
        splitter.feed(text.substr(seen.size(), at + cut - seen.size()), found);
      } else {
        splitter.feed(text.substr(at, cut), found);
      }
    }
    EXPECT_EQ(found.lines, (Lines{"outer 0%", "middle 9\r", "inner 9", "outer 100%", "plain" + up}));
  }
}

TEST(LineSplitter, ShowsNoBarThatWasWipedOut) {
  LineSplitter splitter;
  Collected found;
  splitter.feed("\r 10%\r     \r", found);
  EXPECT_FALSE(splitter.has_state());
  splitter.finish(found);
  EXPECT_EQ(found.lines, Lines{});
}

TEST(LineSplitter, HoldsOneStateOfALineHoweverOftenItIsRewritten) {
  LineSplitter splitter;
  Collected found;
  const std::string bar(100'000, '#');
  for (int i = 0; i < 100; ++i) splitter.feed("\r" + bar, found);
  EXPECT_EQ(splitter.rest(), bar);
  splitter.feed(std::string(LineSplitter::kLineBytesMax, 'x') + "\n", found);
  EXPECT_EQ(found.lines, (Lines{bar + std::string(LineSplitter::kLineBytesMax - bar.size(), 'x'),
                                std::string(bar.size(), 'x')}));
}

// ---- LineTail ----

TEST(LineTail, KeepsTheLastThousandLines) {
  LineTail tail;
  for (int i = 0; i < 100'000; ++i) tail.add("line " + std::to_string(i) + "\n");
  EXPECT_EQ(tail.last(2), "line 99998\nline 99999");
  const std::string_view all = tail.last(5000);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 999);
  EXPECT_TRUE(all.starts_with("line 99000\n"));
}

TEST(LineTail, CountsAnUnfinishedLineAndNoLines) {
  LineTail tail;
  EXPECT_EQ(tail.last(3), "");
  tail.add("a\nb\nhalf");
  EXPECT_EQ(tail.last(2), "b\nhalf");
  EXPECT_EQ(tail.last(0), "");
  tail.add(" and half\n\n");
  EXPECT_EQ(tail.last(2), "half and half\n");
}

TEST(LineTail, IsBoundedInBytesToo) {
  LineTail tail;
  for (int i = 0; i < 10; ++i) tail.add(std::string(LineTail::kBytesMax / 2, 'a' + static_cast<char>(i)) + "\n");
  EXPECT_LE(tail.last(10).size(), LineTail::kBytesMax);
  EXPECT_TRUE(tail.last(10).ends_with("jjj"));
}

TEST(LineTail, KeepsOfARewrittenLineWhatItSaidLast) {
  const std::string text = "before\n\r 10%\r 20%\rover\nwindows\r\nnow\r 1%\r 2%\r";
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    LineTail tail;
    for (size_t at = 0; at < text.size(); at += cut) tail.add(std::string_view(text).substr(at, cut));
    EXPECT_EQ(tail.last(10), "before\nover\nwindows\r\n 2%");
  }
  LineTail tail;
  tail.add("before\n");
  for (int i = 0; i < 100'000; ++i) tail.add("\rstep " + std::to_string(i) + std::string(50, '#'));
  EXPECT_EQ(tail.last(2), "before\nstep 99999" + std::string(50, '#'));
}

// ---- LineFolder ----

size_t slow_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      table[i][j] = i == 0 || j == 0
                        ? i + j
                        : std::min({table[i - 1][j] + 1, table[i][j - 1] + 1,
                                    table[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
    }
  }
  return table[a.size()][b.size()];
}

TEST(LineFolder, FindsSimilarWhatDiffersInLessThanThreeTwentieths) {
  EXPECT_TRUE(similar_lines("", ""));
  EXPECT_FALSE(similar_lines("", "a"));
  EXPECT_TRUE(similar_lines("step 10 of training", "step 12 of training"));
  EXPECT_FALSE(similar_lines(std::string(20, 'a') , std::string(17, 'a') + "bbb"));  // exactly 0.15
  EXPECT_TRUE(similar_lines(std::string(20, 'a') , std::string(18, 'a') + "bb"));
  std::mt19937 random(11);
  int similar = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string a, b;
    for (size_t size = random() % 60; size > 0; --size) a += static_cast<char>('a' + random() % 3);
    b = a;
    for (size_t edits = random() % 12; edits > 0 && !b.empty(); --edits) {
      const size_t at = random() % b.size();
      if (random() % 3 == 0) b.erase(at, 1);
      else if (random() % 2 == 0) b.insert(at, 1, static_cast<char>('a' + random() % 3));
      else b[at] = static_cast<char>('a' + random() % 3);
    }
    const bool expected = a == b || 100 * slow_distance(a, b) < 15 * std::max(a.size(), b.size());
    ASSERT_EQ(similar_lines(a, b), expected) << a << " / " << b;
    similar += expected;
  }
  EXPECT_GT(similar, 1000);
  EXPECT_LT(similar, 19'000);
}

TEST(LineFolder, FoldsAndKeepsWhoSaidIt) {
  LineFolder folder;
  for (int64_t rank : {0, 1, 2, 3, 7}) folder.add(rank, "loading the model");
  folder.add(2, "something else entirely");
  folder.add(3, "loading the models");
  auto groups = folder.take();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].text, "loading the model");
  EXPECT_EQ(groups[0].count, 6u);
  EXPECT_EQ(ranks_text(groups[0].ranks), "0-3,7");
  EXPECT_EQ(groups[1].text, "something else entirely");
  EXPECT_EQ(ranks_text(groups[1].ranks), "2");
  EXPECT_TRUE(folder.empty());
}

TEST(LineFolder, IsFullBeforeItIsLarge) {
  LineFolder folder;
  std::mt19937 random(3);
  int lines = 0;
  for (; !folder.full(); ++lines) {
    std::string line;
    for (int i = 0; i < 100; ++i) line += static_cast<char>(' ' + random() % 90);
    folder.add(0, line);
  }
  EXPECT_GT(lines, 500);
  EXPECT_LT(lines, 10'000);
  LineFolder of_long_ones;
  for (lines = 0; !of_long_ones.full(); ++lines) of_long_ones.add(0, std::string(100'000, 'a') + std::to_string(lines));
  EXPECT_LE(lines, 11);
}

// ---- LineWriter ----

struct Pipe {
  UniqueFd read_end, write_end;
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string take(size_t most = 1 << 20) {
    std::string text(most, '\0');
    const ssize_t count = read(read_end.get(), text.data(), text.size());
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return text;
  }
};

TEST(LineWriter, NeverBlocksAndLosesNothing) {
  for (bool blocking : {false, true}) {
    Pipe pipe;
    if (blocking) fcntl(pipe.write_end.get(), F_SETFL, 0);
    LineWriter writer(pipe.write_end.get());
    std::string expected, found;
    for (int i = 0; i < 5000; ++i) {
      writer.add("[1] ", std::to_string(i));
      expected += "[1] " + std::to_string(i) + "\n";
    }
    writer.add("", std::string(200'000, 'x'));
    expected += std::string(200'000, 'x') + "\n";
    EXPECT_FALSE(writer.flush());
    EXPECT_GT(writer.waiting_bytes(), 0u);
    for (bool all = false; !all; all = writer.flush()) found += pipe.take(10'000);
    found += pipe.take();
    EXPECT_TRUE(found == expected);
  }
}

TEST(LineWriter, WritesLinesWhole) {
  Pipe pipe;
  LineWriter writer(pipe.write_end.get());
  while (writer.flush()) writer.add("[12] ", "a line of moderate length");
  // Another writer comes between any two of its writes: what lies in the pipe must end with a line.
  const std::string text = pipe.take();
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text.size() % std::string_view("[12] a line of moderate length\n").size(), 0u);
}

TEST(LineWriter, DropsWhatCannotBeWritten) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  LineWriter to_full(full.get());
  to_full.add("", "lost");
  EXPECT_TRUE(to_full.flush());
  EXPECT_EQ(to_full.failure(), ENOSPC);
  LineWriter to_closed(987'654);
  to_closed.add("", "lost");
  EXPECT_TRUE(to_closed.flush());
  EXPECT_EQ(to_closed.failure(), EBADF);
  LineWriter nowhere(-1);
  nowhere.add("", "lost");
  EXPECT_TRUE(nowhere.flush());
  EXPECT_EQ(nowhere.failure(), 0);
}

}  // namespace
}  // namespace monarch
