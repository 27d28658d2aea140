#include "monarch/host/output/line_tail.h"

#include <algorithm>
#include <cstring>

namespace monarch {

void LineTail::add(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() < trim_at_) return;
  text_.erase(0, start_of(kLines));
  trim_at_ = std::max(kTrimFrom, 2 * text_.size());
}

std::string_view LineTail::last(size_t lines) const {
  std::string_view found = std::string_view(text_).substr(start_of(std::min(lines, kLines)));
  if (found.ends_with('\n')) found.remove_suffix(1);
  return found;
}

// Where the last `lines` lines begin, of which the last one may have no newline yet.
size_t LineTail::start_of(size_t lines) const {
  const size_t oldest = text_.size() > kBytesMax ? text_.size() - kBytesMax : 0;
  size_t end = text_.size();
  if (end > 0 && text_[end - 1] == '\n') --end;
  if (lines == 0) return text_.size();
  for (; lines > 0; --lines) {
    const void* newline = ::memrchr(text_.data() + oldest, '\n', end - oldest);
    if (newline == nullptr) return oldest;
    end = static_cast<size_t>(static_cast<const char*>(newline) - text_.data());
  }
  return end + 1;
}

}  // namespace monarch
