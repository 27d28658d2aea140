// Point: one place in an extent, as its row-major rank. Made for every message: a number and a shared extent,
// no more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "monarch/mesh/extent.h"

namespace monarch {

class Point {
 public:
  Point() = default;  // the only place of the extent without dimensions

  // For ranks that are known to be inside; CHECKs it.
  Point(int64_t rank, Extent extent) : rank_(rank), extent_(std::move(extent)) {
    MONARCH_CHECK(rank_ >= 0 && rank_ < extent_.element_count());
  }
  // For ranks from outside; fails when the extent does not contain the rank.
  static Result<Point> create(int64_t rank, Extent extent) {
    if (rank < 0 || rank >= extent.element_count()) {
      return Error{ErrorCode::kBug, "out of range: total ranks " + std::to_string(extent.element_count()) +
                                        "; does not contain rank " + std::to_string(rank)};
    }
    return Point(rank, std::move(extent));
  }

  int64_t rank() const { return rank_; }
  const Extent& extent() const { return extent_; }

  int64_t coordinate(size_t dim) const {
    int64_t stride = 1;
    const auto& sizes = extent_.sizes();
    MONARCH_CHECK(dim < sizes.size());
    for (size_t i = dim + 1; i < sizes.size(); ++i) stride *= sizes[i];
    return rank_ / stride % sizes[dim];
  }
  Result<int64_t> coordinate(std::string_view label) const {
    auto dim = extent_.dim(label);
    if (!dim) return dim.error();
    return coordinate(static_cast<size_t>(*dim));
  }

  std::vector<int64_t> coordinates() const {
    std::vector<int64_t> all;
    for (size_t i = 0; i < extent_.dim_count(); ++i) all.push_back(coordinate(i));
    return all;
  }

  std::string to_string() const {  // {'hosts': 1/2, 'gpus': 1/4}: index/size
    std::string out = "{";
    for (size_t i = 0; i < extent_.dim_count(); ++i) {
      out += (i ? ", '" : "'") + extent_.labels()[i] + "': " + std::to_string(coordinate(i)) + "/" +
             std::to_string(extent_.sizes()[i]);
    }
    return out + "}";
  }
  size_t hash() const { return internal::hash_combine(extent_.hash(), static_cast<size_t>(rank_)); }
  friend bool operator==(const Point& a, const Point& b) {
    return a.rank_ == b.rank_ && a.extent_ == b.extent_;
  }

 private:
  int64_t rank_ = 0;
  Extent extent_;
};

}  // namespace monarch

template <>
struct std::hash<monarch::Point> {
  size_t operator()(const monarch::Point& point) const noexcept { return point.hash(); }
};
