// Extent: the named dimensions of a mesh, outermost first. Immutable; a copy costs one reference count, which
// is what makes a Point (one per message) cheap. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/result.h"

namespace monarch {

inline constexpr size_t kMaxDims = 16;

class Extent {
 public:
  Extent();  // no dimensions: one element

  // Fails when the numbers of labels and sizes differ, a label comes twice, a size is below 1, there are more
  // than kMaxDims dimensions, or the number of elements does not fit an int64_t.
  static Result<Extent> create(std::vector<std::string> labels, std::vector<int64_t> sizes);

  const std::vector<std::string>& labels() const { return dims_->labels; }
  const std::vector<int64_t>& sizes() const { return dims_->sizes; }
  int64_t element_count() const { return dims_->element_count; }
  size_t dim_count() const { return dims_->sizes.size(); }

  // Position of a dimension; -1: there is none of that name.
  int find(std::string_view label) const;
  Result<int> dim(std::string_view label) const;
  Result<int64_t> size(std::string_view label) const;

  std::string to_string() const;  // {hosts: 2, gpus: 4}
  size_t hash() const;
  friend bool operator==(const Extent& a, const Extent& b);

 private:
  struct Dims {
    std::vector<std::string> labels;
    std::vector<int64_t> sizes;
    int64_t element_count = 1;
  };
  explicit Extent(std::shared_ptr<const Dims> dims) : dims_(std::move(dims)) {}

  std::shared_ptr<const Dims> dims_;  // owned together by all copies of this extent and by the Points in it
};

namespace internal {

// Shared by the geometry types, so that every wrong size or label is reported in the same words.
Result<int64_t> checked_product(const std::vector<int64_t>& sizes);  // also checks each size and their number
Status check_labels_distinct(const std::vector<std::string>& labels);
size_t hash_combine(size_t seed, size_t value);
std::string format_list(const std::vector<int64_t>& values);        // [2, 4]
std::string format_quoted(const std::vector<std::string>& values);  // ["a", "b"]

}  // namespace internal
}  // namespace monarch

template <>
struct std::hash<monarch::Extent> {
  size_t operator()(const monarch::Extent& extent) const noexcept { return extent.hash(); }
};
