// Writes whole lines to a descriptor that others write to as well: the script's own stdout or stderr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "monarch/base/log.h"

namespace monarch {

// A pipe, socket or terminal is written to in pieces of at most a page that end with a line, each only when there is
// room for it: so no line that fits a page is ever torn by another writer, and nobody blocks here. The descriptor is
// looked at each time, so it may be redirected (dup2) meanwhile. Belongs to one thread.
class LineWriter {
 public:
  // -1: whatever is written is dropped.
  explicit LineWriter(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  // Takes a line, to be written by flush(); with its time, where this process has those (base/log.h).
  void add(std::string_view prefix, std::string_view line) {
    buffer_.append(line_time()).append(prefix).append(line).push_back('\n');
  }

  // Writes what can be written without waiting. False: the rest waits until the descriptor has room (POLLOUT). What
  // cannot be written at all (the reader is gone, the disk is full) is dropped.
  bool flush();

  size_t waiting_bytes() const { return buffer_.size() - written_; }
  // Of the last time that lines were dropped: errno; 0: never.
  int failure() const { return failure_; }

 private:
  size_t next_piece(bool atomic_pieces) const;

  const int fd_;
  std::string buffer_;
  size_t written_ = 0;  // of buffer_
  int failure_ = 0;
};

}  // namespace monarch
