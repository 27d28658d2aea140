// The memory of a tensor, an array or a buffer, as bytes: of any shape and strides, in the order of its items.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace monarch {

// What an operation reads from or writes to in its own process. Owns nothing.
class Memory {
 public:
  struct Dim {
    uint64_t count = 0;
    int64_t stride = 0;  // bytes
  };

  Memory() = default;
  // `size` bytes at `data`.
  Memory(std::byte* data, uint64_t size) : data_(data), run_(size), size_(size) {}
  // Items of `item_size` bytes: `dims`, the outermost first; none: one item. `data` is where the first item is.
  Memory(std::byte* data, uint64_t item_size, std::vector<Dim> dims);

  uint64_t size() const { return size_; }
  // Whether its bytes lie one behind the other, at data().
  bool is_contiguous() const { return dims_.empty(); }
  std::byte* data() const { return data_; }
  // How many bytes at least lie one behind the other each time.
  uint64_t run() const { return run_; }
  // Whether some bytes come more than once: it can be read, but no more be written.
  bool overlaps() const;

  // visit(std::byte* data, uint64_t size) -> bool for the pieces of the bytes from `offset` on, in order, while it returns
  // true. They lie inside of size().
  template <typename Visit>
  bool for_each(uint64_t offset, uint64_t length, Visit&& visit) const {
    if (dims_.empty()) return length == 0 || visit(data_ + offset, length);
    uint64_t at = offset / run_, within = offset % run_;
    std::vector<uint64_t> place(dims_.size());
    std::byte* piece = data_;
    for (size_t dim = dims_.size(); dim-- > 0; at /= dims_[dim].count) {
      place[dim] = at % dims_[dim].count;
      piece += static_cast<int64_t>(place[dim]) * dims_[dim].stride;
    }
    while (length > 0) {
      const uint64_t size = std::min(length, run_ - within);
      if (!visit(piece + within, size)) return false;
      length -= size;
      within = 0;
      for (size_t dim = dims_.size(); dim-- > 0;) {
        piece += dims_[dim].stride;
        if (++place[dim] < dims_[dim].count) break;
        piece -= static_cast<int64_t>(dims_[dim].count) * dims_[dim].stride;
        place[dim] = 0;
      }
    }
    return true;
  }

  // Copies between these bytes and `flat`, as many as they are. The memory is there.
  void gather(uint64_t offset, uint64_t length, std::byte* flat) const;
  void scatter(uint64_t offset, uint64_t length, const std::byte* flat) const;

 private:
  std::byte* data_ = nullptr;
  uint64_t run_ = 0;
  uint64_t size_ = 0;
  std::vector<Dim> dims_;  // of runs
};

}  // namespace monarch
