// A file that gets the lines of all processes of a host, in the order in which they were read, each with that time and who
// has printed it:
//
//   2026-01-31T12:00:00.123Z [trainers 3] loss 0.25
//
// When it is full it is put aside as PATH.1, in place of the one before, and begun anew: so a host has kLogFileMax to twice
// that on disk. Who has printed nothing since then, quiet or dead, still has its last lines: they stand at the beginning of
// the new one, marked, "2026-01-31T11:00:00.000Z kept [trainers 2] out of memory". For one thread.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

inline constexpr int64_t kLogFileMax = int64_t{64} << 20;  // bytes; lines are never parted

class LogFile {
 public:
  // One of those whose lines these are. The file's, until end().
  struct Voice {
    std::string begin;       // what stands between the time and the line: " [trainers 3] "
    std::string last;        // lines, as they were written
    uint64_t last_file = 0;  // which of the files, one after the other, has them
  };
  static constexpr size_t kLastLines = 10;
  static constexpr size_t kLastBytesMax = 4 << 10;
  static constexpr size_t kEndedMax = 256;  // of so many that have ended the last lines are kept

  // A file that only its user may read, in a folder, made if need be, that is its user's. One that is there already is gone
  // on with. The error: why not.
  static Result<LogFile> make(const std::string& path);

  const std::string& path() const { return path_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  // `who`: such as "trainers 3", without brackets.
  Voice& add(const std::string& who);
  // It says nothing more.
  void end(Voice& voice);

  // Adds a line to `text`, for write(). `time`: utc_text().
  static void format(std::string& text, std::string_view time, const Voice& voice, std::string_view line) {
    text.append(time).append(voice.begin).append(line).push_back('\n');
  }
  // Whole lines of `voice`, by format(). What cannot be written is lost.
  void write(Voice& voice, std::string_view lines);
  // Why something could not be written, once until all is again; else empty.
  std::string take_trouble();
  // Nothing more of this process.
  void close() { fd_.reset(); }

 private:
  bool open();
  void rotate();
  void keep_last_lines();
  void put(std::string_view lines);
  void fail(int error);

  std::string path_;
  UniqueFd fd_;
  int64_t size_ = 0;
  uint64_t number_ = 0;  // of this file, among those that have had this path
  bool torn_ = false;    // the last line is not whole
  int trouble_ = 0;      // errno of what could not be written last
  bool is_news_ = false;
  std::list<Voice> voices_, ended_;  // lists: others refer to a voice
};

}  // namespace monarch
