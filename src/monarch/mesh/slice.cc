#include "monarch/mesh/slice.h"

#include <algorithm>
#include <numeric>

namespace monarch {
namespace {

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

Error overlap_error(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  return Error{ErrorCode::kBug, "nonrectangular shape: with sizes " + internal::format_list(sizes) +
                                    " and strides " + internal::format_list(strides) +
                                    " the dimensions overlap"};
}

}  // namespace

Result<Slice> Slice::create(int64_t offset, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  if (sizes.size() != strides.size()) {
    return Error{ErrorCode::kBug, "invalid dims: expected " + std::to_string(sizes.size()) + ", got " +
                                      std::to_string(strides.size())};
  }
  if (offset < 0)
    return Error{ErrorCode::kBug, "the offset must not be negative, got " + std::to_string(offset)};
  auto size = internal::checked_product(sizes);
  if (!size) return size.error();

  Slice slice;
  slice.by_stride_.resize(sizes.size());
  std::iota(slice.by_stride_.begin(), slice.by_stride_.end(), uint8_t{0});
  std::stable_sort(slice.by_stride_.begin(), slice.by_stride_.end(),
                   [&](uint8_t a, uint8_t b) { return strides[a] > strides[b]; });
  // From the smallest stride up: a step of each dimension must jump over everything that the smaller ones
  // reach. Then a rank has one set of coordinates, found by division. A dimension of size 1 takes no step.
  int64_t last = offset;
  for (size_t i = sizes.size(); i-- > 0;) {
    size_t dim = slice.by_stride_[i];
    if (strides[dim] < 1) {
      return Error{ErrorCode::kBug, "invalid strides " + internal::format_list(strides) +
                                        ": every stride must be at " + "least 1, got " +
                                        std::to_string(strides[dim])};
    }
    if (sizes[dim] == 1) continue;
    if (strides[dim] <= last - offset) return overlap_error(sizes, strides);
    int64_t reach;
    if (__builtin_mul_overflow(sizes[dim] - 1, strides[dim], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return Error{ErrorCode::kBug, "the largest rank of offset " + std::to_string(offset) + ", sizes " +
                                        internal::format_list(sizes) + ", strides " +
                                        internal::format_list(strides) + " does not fit 63 bits"};
    }
  }
  slice.offset_ = offset;
  slice.sizes_ = std::move(sizes);
  slice.strides_ = std::move(strides);
  slice.size_ = *size;
  return slice;
}

Result<Slice> Slice::row_major(std::vector<int64_t> sizes, int64_t offset) {
  auto size = internal::checked_product(sizes);
  if (!size) return size.error();
  auto strides = row_major_strides(sizes);
  return create(offset, std::move(sizes), std::move(strides));
}

Result<std::vector<Slice>> Slice::from_list(std::vector<int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<Slice> slices;
  for (size_t start = 0, end; start < ranks.size(); start = end) {
    end = start + 1;
    int64_t stride = end < ranks.size() && ranks[start] >= 0 ? ranks[end] - ranks[start] : 0;
    if (stride > 0) {  // a rank given twice stands alone
      while (end < ranks.size() && ranks[end] - ranks[end - 1] == stride) ++end;
    }
    auto slice = create(ranks[start], {static_cast<int64_t>(end - start)}, {stride > 0 ? stride : 1});
    if (!slice) return slice.error();
    slices.push_back(std::move(*slice));
  }
  return slices;
}

int64_t Slice::rank_at(int64_t index) const {
  MONARCH_CHECK(index >= 0 && index < size_);
  int64_t rank = offset_;
  for (size_t i = sizes_.size(); i-- > 0;) {
    rank += index % sizes_[i] * strides_[i];
    index /= sizes_[i];
  }
  return rank;
}

Result<int64_t> Slice::get(int64_t index) const {
  if (index < 0 || index >= size_) {
    return Error{ErrorCode::kBug, "index " + std::to_string(index) + " out of range " + std::to_string(size_)};
  }
  return rank_at(index);
}

bool Slice::locate(int64_t rank, Coordinates& out) const {
  if (rank < offset_) return false;
  int64_t rest = rank - offset_;
  for (uint8_t dim : by_stride_) {
    out[dim] = sizes_[dim] == 1 ? 0 : std::min(rest / strides_[dim], sizes_[dim] - 1);
    rest -= out[dim] * strides_[dim];
  }
  return rest == 0;
}

int64_t Slice::find(int64_t rank) const {
  Coordinates found;
  if (!locate(rank, found)) return -1;
  int64_t index = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) index = index * sizes_[i] + found[i];
  return index;
}

Result<int64_t> Slice::index_of(int64_t rank) const {
  int64_t index = find(rank);
  if (index < 0) return Error{ErrorCode::kBug, "value " + std::to_string(rank) + " not in slice"};
  return index;
}

Result<std::vector<int64_t>> Slice::coordinates(int64_t rank) const {
  Coordinates found;
  if (!locate(rank, found)) return Error{ErrorCode::kBug, "value " + std::to_string(rank) + " not in slice"};
  return std::vector<int64_t>(found.begin(), found.begin() + sizes_.size());
}

Result<int64_t> Slice::rank_of(const std::vector<int64_t>& coordinates) const {
  if (coordinates.size() != sizes_.size()) {
    return Error{ErrorCode::kBug, "invalid dims: expected " + std::to_string(sizes_.size()) + ", got " +
                                      std::to_string(coordinates.size())};
  }
  int64_t rank = offset_;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= sizes_[i]) {
      return Error{ErrorCode::kBug, "index " + std::to_string(coordinates[i]) + " out of range for dimension " +
                                        std::to_string(i) + " of size " + std::to_string(sizes_[i])};
    }
    rank += coordinates[i] * strides_[i];
  }
  return rank;
}

std::vector<int64_t> Slice::dense_strides() const { return row_major_strides(sizes_); }

bool Slice::is_dense() const {
  auto dense = dense_strides();
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] > 1 && strides_[i] != dense[i]) return false;
  }
  return true;
}

std::string Slice::to_string() const {
  return "Slice { offset: " + std::to_string(offset_) + ", sizes: " + internal::format_list(sizes_) +
         ", strides: " + internal::format_list(strides_) + " }";
}

size_t Slice::hash() const {
  size_t seed = internal::hash_combine(sizes_.size(), static_cast<size_t>(offset_));
  for (int64_t size : sizes_) seed = internal::hash_combine(seed, static_cast<size_t>(size));
  for (int64_t stride : strides_) seed = internal::hash_combine(seed, static_cast<size_t>(stride));
  return seed;
}

}  // namespace monarch
