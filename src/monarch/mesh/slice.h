// Slice: a strided, multi-dimensional selection of base ranks (the flat numbering of the mesh that everything
// came from). Row-major order: the last dimension varies fastest. A plain immutable value; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/mesh/extent.h"

namespace monarch {

class Slice {
 public:
  class Iterator;

  Slice() = default;  // no dimensions: the single rank 0

  // Fails when the numbers of sizes and strides differ, the offset is negative, a size or stride is below 1,
  // dimensions overlap (some rank could be reached in two ways), or a rank does not fit an int64_t.
  static Result<Slice> create(int64_t offset, std::vector<int64_t> sizes, std::vector<int64_t> strides);
  static Result<Slice> row_major(std::vector<int64_t> sizes, int64_t offset = 0);
  // The fewest-effort cover of a set of ranks: 1-D slices, in ascending order.
  static Result<std::vector<Slice>> from_list(std::vector<int64_t> ranks);

  int64_t offset() const { return offset_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<int64_t>& strides() const { return strides_; }
  size_t dim_count() const { return sizes_.size(); }
  int64_t size() const { return size_; }  // number of ranks, at least 1

  int64_t rank_at(int64_t index) const;  // CHECKs 0 <= index < size()
  Result<int64_t> get(int64_t index) const;
  Result<int64_t> index_of(int64_t rank) const;
  bool contains(int64_t rank) const { return find(rank) >= 0; }
  Result<std::vector<int64_t>> coordinates(int64_t rank) const;
  Result<int64_t> rank_of(const std::vector<int64_t>& coordinates) const;

  // Strides that a gap-free slice of the same sizes has.
  std::vector<int64_t> dense_strides() const;
  // Whether its ranks are offset, offset + 1, ... in order. Strides of dimensions of size 1 do not matter.
  bool is_dense() const;

  Iterator begin() const;
  Iterator end() const;

  std::string to_string() const;  // Slice { offset: 0, sizes: [2, 4], strides: [4, 1] }
  size_t hash() const;
  friend bool operator==(const Slice&, const Slice&) = default;

 private:
  using Coordinates = std::array<int64_t, kMaxDims>;
  bool locate(int64_t rank, Coordinates& out) const;
  int64_t find(int64_t rank) const;  // the index of a rank; -1: not here

  int64_t offset_ = 0;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  std::vector<uint8_t>
      by_stride_;  // dimensions, largest stride first: the order in which a rank is taken apart
  int64_t size_ = 1;
};

// Goes over the ranks of a slice, which must outlive it.
class Slice::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = int64_t;
  using difference_type = std::ptrdiff_t;
  using pointer = const int64_t*;
  using reference = int64_t;

  Iterator() = default;
  Iterator(const Slice* slice, int64_t index) : slice_(slice), index_(index) {}
  int64_t operator*() const { return slice_->rank_at(index_); }
  Iterator& operator++() {
    ++index_;
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++index_;
    return before;
  }
  friend bool operator==(const Iterator&, const Iterator&) = default;

 private:
  const Slice* slice_ = nullptr;
  int64_t index_ = 0;
};

inline Slice::Iterator Slice::begin() const { return {this, 0}; }
inline Slice::Iterator Slice::end() const { return {this, size_}; }

}  // namespace monarch

template <>
struct std::hash<monarch::Slice> {
  size_t operator()(const monarch::Slice& slice) const noexcept { return slice.hash(); }
};
