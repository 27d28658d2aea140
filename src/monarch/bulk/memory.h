// The memory of a tensor, an array or a buffer, as bytes: of any shape and strides, in the order of its items. It may be of
// a CUDA device (cuda.h): then nothing but its driver reaches them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace monarch {

// Owns nothing; may be of another process, as long as nobody looks at its bytes here.
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
  // Whether its bytes lie one behind the other.
  bool in_one_piece() const { return dims_.empty(); }
  // The same, at data() for everybody: not on a device.
  bool is_contiguous() const { return dims_.empty() && device_ == kHost; }
  std::byte* data() const { return data_; }
  // The same addresses of a device, by its number in this process, or of the host.
  static constexpr int kHost = -1;
  Memory on(int device) const {
    Memory made = *this;
    made.device_ = device;
    return made;
  }
  int device() const { return device_; }
  // Of what lies in one piece.
  Memory piece(uint64_t offset, uint64_t length) const { return Memory(data_ + offset, length).on(device_); }
  bool is_on_device() const { return device_ != kHost; }
  // How many bytes at least lie one behind the other each time.
  uint64_t run() const { return run_; }
  // Whether some bytes come more than once: it can be read, but no more be written.
  bool overlaps() const;

  // Goes over its bytes, piece by piece.
  class Cursor {
   public:
    // From that byte on, of which there are more. The memory outlives it.
    Cursor(const Memory& memory, uint64_t offset);
    std::byte* at() const { return piece_ + within_; }
    uint64_t left() const { return memory_.run_ - within_; }  // bytes that lie one behind the other from here on
    void advance(uint64_t size) {                             // at most those
      within_ += size;
      if (within_ == memory_.run_ && !place_.empty()) next_piece();
    }
    bool in_one_piece() const { return place_.empty(); }
    // How many runs begin from here on, with stride() bytes between two of them: none within one. Not in one piece.
    uint64_t runs() const { return within_ != 0 ? 0 : memory_.dims_.back().count - place_.back(); }
    int64_t stride() const { return memory_.dims_.back().stride; }
    void skip_runs(uint64_t count) {  // at most those
      place_.back() += count - 1;
      piece_ += static_cast<int64_t>(count - 1) * stride();
      next_piece();
    }

   private:
    void next_piece();

    const Memory& memory_;
    std::byte* piece_;
    uint64_t within_;
    std::vector<uint64_t> place_;
  };

  // Between which addresses `length` of its bytes lie, from that one on; more than none.
  struct Span {
    std::byte* begin;
    std::byte* end;
    uint64_t size() const { return static_cast<uint64_t>(end - begin); }
  };
  Span span(uint64_t offset, uint64_t length) const;

  // Copies between these bytes and `flat`. The memory is there. False, of a device's only: it could not be copied.
  [[nodiscard]] bool gather(uint64_t offset, uint64_t length, std::byte* flat) const;
  [[nodiscard]] bool scatter(uint64_t offset, uint64_t length, const std::byte* flat) const;

 private:
  std::byte* data_ = nullptr;
  int device_ = kHost;
  uint64_t run_ = 0;
  uint64_t size_ = 0;
  std::vector<Dim> dims_;  // of runs
};

// Copies `length` bytes, which both have, and which do not overlap. The memory is there. False as above.
[[nodiscard]] bool copy_memory(const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset,
                               uint64_t length);

}  // namespace monarch
