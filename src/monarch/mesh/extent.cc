#include "monarch/mesh/extent.h"

#include <algorithm>
#include <functional>

namespace monarch {
namespace internal {

Result<int64_t> checked_product(const std::vector<int64_t>& sizes) {
  if (sizes.size() > kMaxDims) {
    return Error{ErrorCode::kBug, "a mesh can have at most " + std::to_string(kMaxDims) + " dimensions, got " +
                                      std::to_string(sizes.size()) + ": flatten some of them"};
  }
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size < 1) {
      return Error{ErrorCode::kBug, "invalid sizes " + format_list(sizes) +
                                        ": every dimension must have at least one " + "element, got " +
                                        std::to_string(size)};
    }
    if (__builtin_mul_overflow(product, size, &product)) {
      return Error{ErrorCode::kBug,
                   "invalid sizes " + format_list(sizes) + ": the number of elements does not fit 63 bits"};
    }
  }
  return product;
}

Status check_labels_distinct(const std::vector<std::string>& labels) {
  for (auto label = labels.begin(); label != labels.end(); ++label) {
    if (std::find(labels.begin(), label, *label) != label) {
      return Error{ErrorCode::kBug, "Duplicate dimension name '" + *label + "'"};
    }
  }
  return Ok{};
}

size_t hash_combine(size_t seed, size_t value) {
  return (seed ^ (value + 0x9E3779B97F4A7C15ull + (seed << 6) + (seed >> 2))) * 0xFF51AFD7ED558CCDull;
}

std::string format_list(const std::vector<int64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

static std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string format_quoted(const std::vector<std::string>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + quoted(values[i]);
  return out + "]";
}

static bool is_plain(std::string_view label) {
  return std::all_of(label.begin(), label.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace internal

Extent::Extent() {
  static const std::shared_ptr<const Dims> kNone = std::make_shared<const Dims>();
  dims_ = kNone;
}

Result<Extent> Extent::create(std::vector<std::string> labels, std::vector<int64_t> sizes) {
  if (labels.size() != sizes.size()) {
    return Error{ErrorCode::kBug, "label/sizes dimension mismatch: " + std::to_string(labels.size()) +
                                      " != " + std::to_string(sizes.size())};
  }
  if (auto distinct = internal::check_labels_distinct(labels); !distinct) return distinct.error();
  auto count = internal::checked_product(sizes);
  if (!count) return count.error();
  return Extent(std::make_shared<const Dims>(Dims{std::move(labels), std::move(sizes), *count}));
}

int Extent::find(std::string_view label) const {
  for (size_t i = 0; i < dims_->labels.size(); ++i) {
    if (dims_->labels[i] == label) return static_cast<int>(i);
  }
  return -1;
}

Result<int> Extent::dim(std::string_view label) const {
  int found = find(label);
  if (found < 0) return Error{ErrorCode::kBug, "Dimension '" + std::string(label) + "' not found"};
  return found;
}

Result<int64_t> Extent::size(std::string_view label) const {
  auto found = dim(label);
  if (!found) return found.error();
  return dims_->sizes[*found];
}

std::string Extent::to_string() const {
  std::string out = "{";
  for (size_t i = 0; i < dim_count(); ++i) {
    const std::string& label = labels()[i];
    out += (i ? ", " : "") + (internal::is_plain(label) ? label : internal::quoted(label)) + ": " +
           std::to_string(sizes()[i]);
  }
  return out + "}";
}

size_t Extent::hash() const {
  size_t seed = dim_count();
  for (const auto& label : labels()) seed = internal::hash_combine(seed, std::hash<std::string>{}(label));
  for (int64_t size : sizes()) seed = internal::hash_combine(seed, static_cast<size_t>(size));
  return seed;
}

bool operator==(const Extent& a, const Extent& b) {
  return a.dims_ == b.dims_ || (a.sizes() == b.sizes() && a.labels() == b.labels());
}

}  // namespace monarch
