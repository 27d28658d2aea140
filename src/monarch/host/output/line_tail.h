// The last lines of a stream, for the report of its process's death.
#pragma once

#include <string>
#include <string_view>

namespace monarch {

// Keeps the last kLines lines, or the last kBytesMax bytes where those are longer; of a line that carriage returns rewrite
// what it said last. Belongs to one thread.
class LineTail {
 public:
  static constexpr size_t kLines = 1000;
  static constexpr size_t kBytesMax = 1 << 20;

  // `bytes` as they came; they need not end with a line.
  void add(std::string_view bytes);
  // The last `lines` lines (at most kLines), without the last newline.
  std::string_view last(size_t lines) const;

 private:
  size_t start_of(size_t lines) const;
  void fold_rewritten(size_t begin);

  static constexpr size_t kTrimFrom = 64 << 10;
  std::string text_;
  size_t trim_at_ = kTrimFrom;  // size at which old lines go: at twice what was kept, so that each byte moves once
};

}  // namespace monarch
