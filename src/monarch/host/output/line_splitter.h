// Cuts what comes out of a pipe into lines.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace monarch {

// A line ends with a newline; a carriage return that is not followed by one, as progress bars write it, ends a line too,
// unless it is empty. Belongs to one thread.
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
    if (!rest_.empty()) give_rest(on_line);
  }

  std::string_view rest() const { return rest_; }

 private:
  static constexpr size_t kKeptBytesMax = 64 << 10;

  // A piece without a newline, which is the end of its line or not.
  template <typename OnLine>
  void add(std::string_view piece, bool ends, OnLine&& on_line) {
    if (rest_.size() + piece.size() > kLineBytesMax || rest_.ends_with('\r') || piece.find('\r') != piece.npos) {
      return add_slowly(piece, ends, on_line);
    }
    if (ends && rest_.empty()) return on_line(piece);
    rest_.append(piece);
    if (ends) give_rest(on_line);
  }

  template <typename OnLine>
  void add_slowly(std::string_view piece, bool ends, OnLine&& on_line) {
    for (const char c : piece) {
      if (rest_.ends_with('\r')) {  // something follows it: it was an end
        rest_.pop_back();
        finish(on_line);
      }
      if (rest_.size() == kLineBytesMax) give_rest(on_line);
      rest_.push_back(c);
    }
    if (ends) give_rest(on_line);
  }

  template <typename OnLine>
  void give_rest(OnLine&& on_line) {
    on_line(std::string_view(rest_));
    rest_.clear();
    if (rest_.capacity() > kKeptBytesMax) rest_.shrink_to_fit();
  }

  std::string rest_;
};

}  // namespace monarch
