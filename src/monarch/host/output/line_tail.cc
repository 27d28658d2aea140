#include "monarch/host/output/line_tail.h"

#include <algorithm>
#include <cstring>

#include "monarch/host/output/rewritten_line.h"

namespace monarch {

void LineTail::add(std::string_view bytes) {
  const bool rewrites = bytes.find('\r') != bytes.npos || text_.ends_with('\r');
  const size_t line = rewrites ? text_.rfind('\n') + 1 : 0;
  text_.append(bytes);
  if (rewrites) fold_rewritten(line);
  if (text_.size() < trim_at_) return;
  text_.erase(0, start_of(kLines));
  trim_at_ = std::max(kTrimFrom, 2 * text_.size());
}

std::string_view LineTail::last(size_t lines) const {
  std::string_view found = std::string_view(text_).substr(start_of(std::min(lines, kLines)));
  if (found.ends_with('\n')) found.remove_suffix(1);
  while (found.ends_with('\r')) found.remove_suffix(1);
  return found;
}

// Of the lines from `begin` on, which is the start of one.
void LineTail::fold_rewritten(size_t begin) {
  std::string folded;
  for (size_t at = begin, end; at < text_.size(); at = end + 1) {
    end = std::min(text_.find('\n', at), text_.size());
    folded.append(last_state(std::string_view(text_).substr(at, end - at)));
    if (end != text_.size()) folded.push_back('\n');
  }
  text_.replace(begin, text_.npos, folded);
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
