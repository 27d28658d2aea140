#include "monarch/host/output/line_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace monarch {

namespace {
constexpr size_t kFilePiece = 256 << 10;
constexpr size_t kKeptBytesMax = 1 << 20;

// Whether a write can take long: then it must fit into the room that POLLOUT promises.
bool is_stream(int fd) {
  struct stat status;
  return fstat(fd, &status) != 0 || !S_ISREG(status.st_mode);
}
}  // namespace

size_t LineWriter::next_piece(bool atomic_pieces) const {
  const size_t left = waiting_bytes();
  if (!atomic_pieces) return std::min(left, kFilePiece);
  if (left <= PIPE_BUF) return left;
  const char* start = buffer_.data() + written_;
  const void* newline = ::memrchr(start, '\n', PIPE_BUF);
  return newline == nullptr ? PIPE_BUF : static_cast<size_t>(static_cast<const char*>(newline) - start) + 1;
}

bool LineWriter::flush() {
  if (waiting_bytes() == 0) return true;
  if (fd_ < 0) return buffer_.clear(), true;
  const bool stream = is_stream(fd_);
  while (waiting_bytes() != 0) {
    if (stream) {
      pollfd room{fd_, POLLOUT, 0};
      const int ready = poll(&room, 1, 0);
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) break;
    }
    const ssize_t count = ::write(fd_, buffer_.data() + written_, next_piece(stream));
    if (count >= 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      failure_ = errno;
      written_ = buffer_.size();
    }
  }
  const bool empty = waiting_bytes() == 0;
  if (empty || written_ >= buffer_.size() / 2) {
    buffer_.erase(0, written_);
    written_ = 0;
    if (buffer_.capacity() > kKeptBytesMax) buffer_.shrink_to_fit();
  }
  return empty;
}

}  // namespace monarch
