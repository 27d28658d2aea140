// ValueMesh<T>: one value for each member of a mesh, in the order of ranks. A plain value.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "monarch/mesh/point.h"

namespace monarch {

template <typename T>
class ValueMesh {
 public:
  using value_type = T;

  ValueMesh() : values_(1) {}
  ValueMesh(Extent extent, std::vector<T> values) : extent_(std::move(extent)), values_(std::move(values)) {
    MONARCH_CHECK(static_cast<int64_t>(values_.size()) == extent_.element_count());
  }

  const Extent& extent() const { return extent_; }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  Point point(int64_t rank) const { return Point(rank, extent_); }

  typename std::vector<T>::const_reference operator[](int64_t rank) const {
    MONARCH_CHECK(rank >= 0 && rank < size());
    return values_[static_cast<size_t>(rank)];
  }
  // By coordinates, one for each dimension; throws std::out_of_range.
  typename std::vector<T>::const_reference at(const std::vector<int64_t>& coordinates) const {
    if (coordinates.size() != extent_.dim_count()) throw std::out_of_range("one coordinate for each dimension, please");
    int64_t rank = 0;
    for (size_t i = 0; i < coordinates.size(); ++i) {
      if (coordinates[i] < 0 || coordinates[i] >= extent_.sizes()[i]) {
        throw std::out_of_range("no coordinate " + std::to_string(coordinates[i]) + " in dimension '" +
                                extent_.labels()[i] + "' of size " + std::to_string(extent_.sizes()[i]));
      }
      rank = rank * extent_.sizes()[i] + coordinates[i];
    }
    return values_[static_cast<size_t>(rank)];
  }

  const std::vector<T>& values() const { return values_; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  Extent extent_;
  std::vector<T> values_;
};

}  // namespace monarch
