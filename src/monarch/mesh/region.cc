#include "monarch/mesh/region.h"

#include <algorithm>

namespace monarch {
namespace {

Error bug(std::string message) { return Error{ErrorCode::kBug, std::move(message)}; }

std::string range_text(int64_t start, int64_t stop, int64_t step) {
  return std::to_string(start) + ":" + std::to_string(stop) + ":" + std::to_string(step);
}

Error out_of_range(std::string range, std::string_view label, int64_t size) {
  return bug("out of range " + std::move(range) + " for dimension " + std::string(label) + " of size " +
             std::to_string(size));
}

int64_t clamp_bound(int64_t bound, int64_t size) {
  if (bound < 0) bound = bound < -size ? 0 : bound + size;
  return std::min(bound, size);
}

std::string tuple_text(const std::vector<std::string>& items) {  // (), (a,), (a, b)
  std::string out = "(";
  for (size_t i = 0; i < items.size(); ++i) out += (i ? ", " : "") + items[i];
  return out + (items.size() == 1 ? ",)" : ")");
}

std::string labels_text(const std::vector<std::string>& labels) {
  std::vector<std::string> quoted;
  for (const auto& label : labels) quoted.push_back("'" + label + "'");
  return tuple_text(quoted);
}

Error not_divided(const DimSplit& split, int64_t size, const std::vector<int64_t>& sizes) {
  std::vector<std::string> texts;
  for (int64_t known : sizes) texts.push_back(known ? std::to_string(known) : "'?'");
  return bug("Dimension '" + split.label + "' of size " + std::to_string(size) + " is not evenly divided by " +
             labels_text(split.into) + " with sizes " + tuple_text(texts));
}

// The constraints of a split's new dimensions, 0 where there is none; marks those it took.
Result<std::vector<int64_t>> constrained_sizes(const DimSplit& split,
                                               const std::vector<SizeConstraint>& constraints,
                                               std::vector<bool>& used) {
  std::vector<int64_t> sizes(split.into.size(), 0);
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t c = 0; c < constraints.size(); ++c) {
      if (constraints[c].first != split.into[i]) continue;
      if (constraints[c].second < 1) {
        return bug("the size of new dimension '" + split.into[i] + "' must be at least 1, got " +
                   std::to_string(constraints[c].second));
      }
      sizes[i] = constraints[c].second;
      used[c] = true;
    }
  }
  return sizes;
}

Result<std::vector<int64_t>> infer_sizes(const DimSplit& split, int64_t size, std::vector<int64_t> sizes) {
  int64_t known = 1;
  int unknown = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 && unknown >= 0) {
      const auto& later = split.into[i];
      return bug("Cannot infer size of " + labels_text(split.into) + " because both " + later + " and " +
                 split.into[unknown] + " have unknown size. Specify at least one as argument, e.g. " + later +
                 "=4");
    }
    if (sizes[i] == 0) {
      unknown = static_cast<int>(i);
    } else if (__builtin_mul_overflow(known, sizes[i], &known)) {
      return not_divided(split, size, sizes);
    }
  }
  if (unknown < 0 ? known != size : size % known != 0) return not_divided(split, size, sizes);
  if (unknown >= 0) sizes[unknown] = size / known;
  return sizes;
}

}  // namespace

Result<Region> Region::create(std::vector<std::string> labels, Slice slice) {
  if (labels.size() != slice.dim_count()) {
    return bug("label slice dimension mismatch: " + std::to_string(labels.size()) +
               " != " + std::to_string(slice.dim_count()));
  }
  auto extent = Extent::create(std::move(labels), slice.sizes());
  if (!extent) return extent.error();
  return Region(std::move(*extent), std::move(slice));
}

Region Region::row_major(const Extent& extent) {
  return Region(extent, Slice::row_major(extent.sizes()).value());  // an extent is always valid
}

Result<size_t> Region::dim(std::string_view label) const {
  int found = extent_.find(label);
  if (found < 0) return bug("invalid labels `" + internal::format_quoted({std::string(label)}) + "`");
  return static_cast<size_t>(found);
}

Result<Region> Region::at(std::string_view label, int64_t index) const {
  auto found = dim(label);
  if (!found) return found.error();
  auto sizes = slice_.sizes();
  auto strides = slice_.strides();
  if (index < 0 || index >= sizes[*found]) {
    int64_t past = index == INT64_MAX ? index : index + 1;
    return out_of_range(range_text(index, past, 1), label, sizes[*found]);
  }
  int64_t offset = slice_.offset() + index * strides[*found];
  auto names = labels();
  names.erase(names.begin() + *found);
  sizes.erase(sizes.begin() + *found);
  strides.erase(strides.begin() + *found);
  return create(std::move(names), Slice::create(offset, std::move(sizes), std::move(strides)).value());
}

Result<Region> Region::select(std::string_view label, const Range& range) const {
  auto found = dim(label);
  if (!found) return found.error();
  auto sizes = slice_.sizes();
  auto strides = slice_.strides();
  int64_t& size = sizes[*found];
  int64_t& stride = strides[*found];
  if (range.step == 0) return bug("slice step cannot be zero");
  if (range.step < 0) return bug("slice step must be positive, got " + std::to_string(range.step));
  int64_t start = clamp_bound(range.start.value_or(0), size);
  int64_t stop = clamp_bound(range.stop.value_or(size), size);
  if (start >= size) return out_of_range(range_text(start, stop, range.step), label, size);
  if (start >= stop) return bug("empty range " + range_text(start, stop, range.step));

  int64_t offset = slice_.offset() + start * stride;
  size = (stop - start - 1) / range.step + 1;
  if (size > 1) stride *= range.step;  // a dimension of one element keeps its stride: equal views compare equal
  return create(labels(), Slice::create(offset, std::move(sizes), std::move(strides)).value());
}

Result<Region> Region::flatten(std::string label) const {
  if (!slice_.is_dense()) {
    return bug("cannot flatten sparse mesh: ndslice.strides=" + internal::format_list(slice_.strides()) +
               " != dense_strides=" + internal::format_list(slice_.dense_strides()));
  }
  return create({std::move(label)}, Slice::row_major({size()}, slice_.offset()).value());
}

Result<Region> Region::split(const std::vector<DimSplit>& splits,
                             const std::vector<SizeConstraint>& constraints) const {
  std::vector<const DimSplit*> split_of(labels().size(), nullptr);
  for (const auto& split : splits) {
    int found = extent_.find(split.label);
    if (found < 0) {
      return bug("'" + split.label +
                 "' is not an existing dim. Expected an integer size constraint on a new dim.");
    }
    split_of[found] = &split;
  }

  std::vector<std::string> names;
  std::vector<int64_t> sizes, strides;
  std::vector<bool> used(constraints.size(), false);
  for (size_t i = 0; i < labels().size(); ++i) {
    DimSplit keep{labels()[i], {labels()[i]}};
    const DimSplit& split = split_of[i] ? *split_of[i] : keep;
    std::vector<int64_t> parts = {slice_.sizes()[i]};
    if (split_of[i]) {
      auto given = constrained_sizes(split, constraints, used);
      if (!given) return given.error();
      auto inferred = infer_sizes(split, slice_.sizes()[i], std::move(*given));
      if (!inferred) return inferred.error();
      parts = std::move(*inferred);
    }
    int64_t stride = slice_.strides()[i];
    std::vector<int64_t> part_strides(parts.size());
    for (size_t p = parts.size(); p-- > 0;) {
      part_strides[p] = stride;
      // Past the largest rank only in front of dimensions of size 1, whose stride does not matter.
      if (__builtin_mul_overflow(stride, parts[p], &stride)) stride = INT64_MAX;
    }
    names.insert(names.end(), split.into.begin(), split.into.end());
    sizes.insert(sizes.end(), parts.begin(), parts.end());
    strides.insert(strides.end(), part_strides.begin(), part_strides.end());
  }

  if (auto distinct = internal::check_labels_distinct(names); !distinct) return distinct.error();
  std::vector<std::string> unused;
  for (size_t c = 0; c < constraints.size(); ++c) {
    if (!used[c]) unused.push_back(constraints[c].first);
  }
  if (!unused.empty()) return bug("unused size constraints: " + labels_text(unused));
  auto slice = Slice::create(slice_.offset(), std::move(sizes), std::move(strides));
  if (!slice) return slice.error();  // too many dimensions
  return create(std::move(names), std::move(*slice));
}

Result<Region> Region::rename(std::string_view label, std::string to) const {
  return split({{std::string(label), {std::move(to)}}}, {});
}

Result<Point> Region::point_of_base_rank(int64_t rank) const {
  auto index = slice_.index_of(rank);
  if (!index) {
    auto text = std::to_string(rank);
    return bug("out of range base rank: this base rank " + text + " does not belong to this region: " + text);
  }
  return Point(*index, extent_);
}

std::string Region::fields_to_string() const {
  return "{ labels: " + internal::format_quoted(labels()) + ", slice: " + slice_.to_string() + " }";
}

std::string Region::to_string() const { return "Region " + fields_to_string(); }

}  // namespace monarch
