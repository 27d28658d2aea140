// Cuts what comes out of a pipe into lines, and folds what progress bars rewrite.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "monarch/host/output/rewritten_line.h"

namespace monarch {

// A line ends with a newline. Carriage returns inside of it, as progress bars write them, begin it anew: it is what stands
// behind the last one. One right before the newline is part of the line. A newline that comes after a way up (bars below
// one another go back to the first one) is a way down, and begins the line anew. Belongs to one thread.
class LineSplitter {
 public:
  static constexpr size_t kLineBytesMax = 1 << 20;

  // Calls on_line(text) for each line that `bytes` completes, without its newline; `text` is valid during the call. A
  // line of more than kLineBytesMax comes in pieces of that size. What is no whole line yet waits for the next call.
  template <typename OnLine>
  void feed(std::string_view bytes, OnLine&& on_line) {
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.find('\n'), bytes.size());
      add(bytes.substr(0, size), size != bytes.size(), on_line);
      bytes.remove_prefix(std::min(size + 1, bytes.size()));
    }
  }

  // Nothing more comes: what has no newline is a line too.
  template <typename OnLine>
  void finish(OnLine&& on_line) {
    if (rewritten_ ? has_state() : !rest_.empty()) on_line(state());
    begin_line();
  }

  // Of a line without its end that has been rewritten: there is something to show that was not shown yet.
  bool has_state() const {
    const std::string_view text = state();
    return rewritten_ && text != shown_ && text.find_first_not_of(' ') != text.npos;
  }
  // Calls on_line(text) with that, if there is something. If the line ends as it is now, it is not given again.
  template <typename OnLine>
  void show_state(OnLine&& on_line) {
    if (!has_state()) return;
    shown_ = state();
    on_line(std::string_view(shown_));
  }

  std::string_view rest() const { return rest_; }

 private:
  static constexpr size_t kKeptBytesMax = 64 << 10;
  static constexpr std::string_view kUp = "\x1b[A";

  // A piece without a newline, which is the end of its line or not.
  template <typename OnLine>
  void add(std::string_view piece, bool ends, OnLine&& on_line) {
    const bool rewrites = piece.find('\r') != piece.npos || rest_.ends_with('\r');
    if (ends && rest_.empty() && !rewrites && !rewritten_ && piece.size() <= kLineBytesMax) return on_line(piece);
    rest_.append(piece);
    if (rewrites) {
      rewritten_ = true;
      rest_.erase(0, rest_.size() - last_state(rest_).size());
    }
    for (; rest_.size() > kLineBytesMax; rest_.erase(0, kLineBytesMax)) {
      on_line(std::string_view(rest_).substr(0, kLineBytesMax));
    }
    if (!ends || (rewritten_ && comes_down())) return;
    if (shown_.empty() || state() != shown_) on_line(std::string_view(rest_));
    begin_line();
  }

  // Whether a newline at the end of what there is leads back down only.
  bool comes_down() {
    const std::string_view text = without_returns(rest_);
    if (!text.ends_with(kUp)) return false;
    rest_.resize(text.size() - kUp.size());
    rest_.push_back('\r');
    return true;
  }

  // What the line says now.
  std::string_view state() const {
    std::string_view text = without_returns(rest_);
    while (rewritten_ && text.ends_with(kUp)) text.remove_suffix(kUp.size());
    return text;
  }

  void begin_line() {
    rest_.clear();
    shown_.clear();
    rewritten_ = false;
    if (rest_.capacity() > kKeptBytesMax) rest_.shrink_to_fit();
  }

  std::string rest_;        // carriage returns only at its end
  std::string shown_;       // what show_state() gave of this line
  bool rewritten_ = false;  // this line
};

}  // namespace monarch
