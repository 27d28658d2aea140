// A file that gets the lines of one process. When it is full it is put aside as PATH.1, in place of the one before, and
// begun anew: so a process has kLogFileMax to twice that on disk, and its last lines are there. For one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

inline constexpr int64_t kLogFileMax = int64_t{64} << 20;  // bytes; lines are never parted

class LogFile {
 public:
  LogFile() = default;
  // A new file, which only its user may read, in a folder, made if need be, that is its user's. The error: why not.
  static Result<LogFile> make(const std::string& path);

  explicit operator bool() const { return static_cast<bool>(fd_); }
  // Whole lines. What cannot be written is lost.
  void write(std::string_view lines);
  // Nothing more of this process.
  void close() { fd_.reset(); }

 private:
  bool open();

  std::string path_;
  UniqueFd fd_;
  int64_t size_ = 0;
};

}  // namespace monarch
