// Region: the labelled dimensions of a mesh or of a view of one, over base ranks. Every operation makes a new
// region and keeps the base ranks, so that views of views still name the same members. A plain immutable value;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "monarch/mesh/extent.h"
#include "monarch/mesh/point.h"
#include "monarch/mesh/slice.h"

namespace monarch {

// Bounds as in a Python slice: negative ones count from the end, missing ones mean the end, too large ones are
// cut.
struct Range {
  std::optional<int64_t> start;
  std::optional<int64_t> stop;
  int64_t step = 1;  // positive
};

// One dimension becomes several, the first of them outermost.
struct DimSplit {
  std::string label;
  std::vector<std::string> into;
};
using SizeConstraint = std::pair<std::string, int64_t>;

class Region {
 public:
  Region() = default;  // no dimensions: the single rank 0

  static Result<Region> create(std::vector<std::string> labels, Slice slice);
  static Region row_major(const Extent& extent);

  const std::vector<std::string>& labels() const { return extent_.labels(); }
  const Slice& slice() const { return slice_; }
  const Extent& extent() const { return extent_; }
  int64_t size() const { return slice_.size(); }
  std::vector<int64_t> ranks() const { return {slice_.begin(), slice_.end()}; }

  Result<Region> at(std::string_view label, int64_t index) const;           // drops the dimension
  Result<Region> select(std::string_view label, const Range& range) const;  // keeps it
  Result<Region> flatten(std::string label) const;                          // only if dense
  // Splits some dimensions at once; of each, at most one new size may be left to be inferred. Every constraint
  // must be used. Renaming is a split into one.
  Result<Region> split(const std::vector<DimSplit>& splits, const std::vector<SizeConstraint>& sizes) const;
  Result<Region> rename(std::string_view label, std::string to) const;

  Result<Point> point_of_base_rank(int64_t rank) const;  // its place in this region

  std::string to_string() const;  // Region { labels: ["a", "b"], slice: Slice { ... } }
  std::string fields_to_string() const;
  size_t hash() const { return internal::hash_combine(extent_.hash(), slice_.hash()); }
  friend bool operator==(const Region&, const Region&) = default;

 private:
  Region(Extent extent, Slice slice) : extent_(std::move(extent)), slice_(std::move(slice)) {}
  Result<size_t> dim(std::string_view label) const;

  Extent extent_;  // its sizes are the slice's
  Slice slice_;
};

}  // namespace monarch

template <>
struct std::hash<monarch::Region> {
  size_t operator()(const monarch::Region& region) const noexcept { return region.hash(); }
};
