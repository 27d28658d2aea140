#include "monarch/wire/reduce.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "monarch/wire/failure.h"
#include "monarch/wire/frame.h"

namespace monarch {

namespace {

using Kind = ReduceProblem::Kind;

constexpr uint32_t kHowEncoded = kFlagPickle | kFlagArrays | kFlagBodyPart;
constexpr size_t kShownMax = 200;  // bytes of a value in a text

// ---- Values as text, much as Python shows them ----

std::string text_of(double real) {
  char digits[32];
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, real).ptr);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

bool show(ValueReader& reader, std::string& out);

bool show_items(ValueReader& reader, uint32_t count, bool are_pairs, std::string& out) {
  for (uint32_t i = 0; i < count && out.size() <= kShownMax; ++i) {
    if (i > 0) out += ", ";
    if (!show(reader, out)) return false;
    if (!are_pairs) continue;
    out += ": ";
    if (!show(reader, out)) return false;
  }
  return true;
}

// Stops when there is enough.
bool show(ValueReader& reader, std::string& out) {
  int64_t whole;
  double real;
  bool truth;
  std::string_view text;
  ByteSpan raw;
  uint32_t count;
  switch (reader.peek()) {
    case ValueTag::kNone: return out += "None", reader.none();
    case ValueTag::kFalse:
    case ValueTag::kTrue: return reader.boolean(truth) && (out += truth ? "True" : "False", true);
    case ValueTag::kInt64:
    case ValueTag::kInt8: return reader.integer(whole) && (out += std::to_string(whole), true);
    case ValueTag::kFloat64: return reader.number(real) && (out += text_of(real), true);
    case ValueTag::kStr: return reader.str(text) && (out.append("'").append(shortened(text, kShownMax)).append("'"), true);
    case ValueTag::kBytes: return reader.bytes(raw) && (out += std::to_string(raw.size()) + " bytes", true);
    case ValueTag::kTuple:
      out += "(";
      if (!reader.begin_tuple(count) || !show_items(reader, count, false, out)) return false;
      return out += count == 1 ? ",)" : ")", true;
    case ValueTag::kList:
      out += "[";
      return reader.begin_list(count) && show_items(reader, count, false, out) && (out += "]", true);
    case ValueTag::kDict:
      out += "{";
      return reader.begin_dict(count) && show_items(reader, count, true, out) && (out += "}", true);
    case ValueTag::kInvalid: break;
  }
  return false;
}

// "a list of 3", "an array"; in full: "3".
std::string described(const ReduceInput& input, bool in_full) {
  if ((input.flags & kFlagArrays) != 0) return "an array";
  ValueReader reader(input.body);
  uint32_t count = 0;
  if (!in_full) {
    if (reader.begin_tuple(count)) return "a tuple of " + std::to_string(count);
    ValueReader list(input.body), dict(input.body);
    if (list.begin_list(count)) return "a list of " + std::to_string(count);
    if (dict.begin_dict(count)) return "a dict of " + std::to_string(count);
    return "a number";
  }
  std::string text;
  show(reader, text);  // a text that is cut off is one all the same
  return shortened(text, kShownMax);
}

// ---- Numbers ----

template <typename T>
T least_or_greatest(bool least, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return (least ? b < a : a < b) ? b : a;
}

// False: a sum does not fit.
template <Reducer kReducer, typename T>
bool fold_one(T& into, T next) {
  if constexpr (kReducer != Reducer::kSum) {
    into = least_or_greatest(kReducer == Reducer::kMin, into, next);
  } else if constexpr (std::is_floating_point_v<T>) {
    into += next;
  } else {
    return !__builtin_add_overflow(into, next, &into);
  }
  return true;
}

// Nothing is aligned.
template <Reducer kReducer, typename T, size_t kBlock>
bool fold_block(const std::byte* a, const std::byte* b, std::byte* out) {
  T left[kBlock], right[kBlock];
  std::memcpy(left, a, sizeof left);
  std::memcpy(right, b, sizeof right);
  bool fits = true;
  for (size_t i = 0; i < kBlock; ++i) fits &= fold_one<kReducer>(left[i], right[i]);
  std::memcpy(out, left, sizeof left);
  return fits;
}

// In blocks of which the compiler makes one vector instruction: three times as fast as larger ones.
template <Reducer kReducer, typename T>
bool fold_blocks(const std::byte* a, const std::byte* b, std::byte* out, size_t size) {
  constexpr size_t kBytes = 16;
  bool fits = true;
  size_t at = 0;
  for (; at + kBytes <= size; at += kBytes) fits &= fold_block<kReducer, T, kBytes / sizeof(T)>(a + at, b + at, out + at);
  for (; at < size; at += sizeof(T)) fits &= fold_block<kReducer, T, 1>(a + at, b + at, out + at);
  return fits;
}

template <typename T>
bool fold_elements(Reducer reducer, const std::byte* a, const std::byte* b, std::byte* out, size_t size) {
  if (reducer == Reducer::kSum) return fold_blocks<Reducer::kSum, T>(a, b, out, size);
  if (reducer == Reducer::kMin) return fold_blocks<Reducer::kMin, T>(a, b, out, size);
  return fold_blocks<Reducer::kMax, T>(a, b, out, size);
}

using FoldElements = bool (*)(Reducer, const std::byte*, const std::byte*, std::byte*, size_t);

struct Dtype {
  std::string_view name;  // as NumPy writes it
  size_t size;
  FoldElements fold;
};
constexpr Dtype kDtypes[] = {
    {"<f8", 8, fold_elements<double>},   {"<f4", 4, fold_elements<float>},    {"<i8", 8, fold_elements<int64_t>},
    {"<i4", 4, fold_elements<int32_t>},  {"<i2", 2, fold_elements<int16_t>},  {"|i1", 1, fold_elements<int8_t>},
    {"<u8", 8, fold_elements<uint64_t>}, {"<u4", 4, fold_elements<uint32_t>}, {"<u2", 2, fold_elements<uint16_t>},
    {"|u1", 1, fold_elements<uint8_t>},
};

// Of a message that is one array (bindings/python/codec.cc).
std::string_view dtype_of(ByteSpan body) {
  ValueReader reader(body);
  uint32_t count;
  int64_t index;
  std::string_view name;
  const bool found = reader.begin_tuple(count) && count == 2 && reader.begin_tuple(count) && count == 1 &&
                     reader.begin_tuple(count) && count == 3 && reader.integer(index) && index == 0 && reader.str(name);
  return found ? name : std::string_view();
}

const Dtype* find_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == std::end(kDtypes) ? nullptr : found;
}

bool same_bytes(ByteSpan a, ByteSpan b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

bool same_parts(std::span<const Part> a, std::span<const Part> b) {
  return std::ranges::equal(a, b, [](const Part& one, const Part& other) {
    return same_bytes({one.data, one.size}, {other.data, other.size});
  });
}

constexpr const char* kTakesNumbers = "takes numbers";
constexpr const char* kTakesOneShape = "takes values of one shape";

}  // namespace

std::string_view name_of(Reducer reducer) {
  constexpr std::string_view kNames[] = {"none", "sum", "min", "max", "count", "all_equal", "concat"};
  return kNames[static_cast<uint8_t>(reducer)];
}

std::string ReduceProblem::text(std::string_view endpoint) const {
  std::string text = "reduce='" + std::string(name_of(reducer)) + "' " + wants;
  if (rank < 0) return text + " (" + std::string(endpoint) + ")";
  const std::string of = " of " + std::string(endpoint) + " returned ";
  if (other < 0) return text + ", and rank " + std::to_string(rank) + of + found;
  return text + ": rank " + std::to_string(other) + of + other_found + ", and rank " + std::to_string(rank) + " returned " +
         found;
}

bool Reduction::refuse(Kind kind, std::string wants, const ReduceInput& of, std::string found) {
  problem_.kind = kind;
  problem_.reducer = reducer_;
  problem_.is_foreign = (of.flags & kFlagPickle) != 0;
  problem_.wants = std::move(wants);
  problem_.rank = of.rank;
  problem_.found = std::move(found);
  return false;
}

// What it has is another value than that of the ranks before, or one of another shape.
bool Reduction::refuse_other(Kind kind, std::string wants, const ReduceInput& of) {
  const bool in_full = kind == Kind::kUnequal;
  std::string before = described(*first_, in_full);
  std::string found = described(of, in_full);
  if (found == before) found = "one that differs from it";
  problem_.other = first_->rank;
  problem_.other_found = std::move(before);
  return refuse(kind, std::move(wants), of, std::move(found));
}

// ---- Combining ----

bool Reduction::Value::is_container() const {
  return tag == ValueTag::kTuple || tag == ValueTag::kList || tag == ValueTag::kDict;
}

bool Reduction::is_array() const { return (first_->flags & kFlagArrays) != 0; }

bool Reduction::add(const ReduceInput& input) {
  const bool is_first = !first_;
  if ((input.flags & kFlagPickle) != 0) {
    return refuse(Kind::kType, reducer_ == Reducer::kAllEqual ? "takes what needs no pickle" : kTakesNumbers, input,
                  "another object of Python");
  }
  if (reducer_ == Reducer::kAllEqual) {
    if (is_first) return first_ = input, true;
    const bool same = ((input.flags ^ first_->flags) & kHowEncoded) == 0 && same_bytes(input.body, first_->body) &&
                      same_parts(input.parts, first_->parts);
    return same || refuse_other(Kind::kUnequal, "takes equal values", input);
  }
  if ((input.flags & kFlagArrays) != 0) {
    if (input.parts.size() != 1) return refuse(Kind::kType, kTakesNumbers, input, "a malformed array");
    if (is_first || !is_array()) {
      const std::string_view dtype = dtype_of(input.body);
      if (find_dtype(dtype) == nullptr) {
        return refuse(Kind::kType, kTakesNumbers, input, "an array of dtype '" + std::string(dtype) + "'");
      }
    }
    if (!is_first) return fold_array(input);
    array_ = input.parts.front();
    return first_ = input, true;
  }
  Value next;
  if (!parse(input, next)) return false;
  if (is_first) {
    value_ = std::move(next);
    return first_ = input, true;
  }
  return (!is_array() && fold(value_, next)) || refuse_other(Kind::kType, kTakesOneShape, input);
}

bool Reduction::merge(const Reduction& other) {
  if (reducer_ == Reducer::kAllEqual) return add(*other.first_);
  if (other.is_array()) {
    ReduceInput next = *other.first_;
    next.parts = {&other.array_, 1};
    return fold_array(next);
  }
  return (!is_array() && fold(value_, other.value_)) || refuse_other(Kind::kType, kTakesOneShape, *other.first_);
}

bool Reduction::is_free_of_order(const Reduction& other) const {
  if (reducer_ == Reducer::kAllEqual) return true;
  if (is_array() != other.is_array()) return false;
  if (!is_array()) return is_free_of_order(value_, other.value_);
  const std::string_view dtype = dtype_of(first_->body);
  const bool is_whole = dtype.size() == 3 && (dtype[1] == 'i' || dtype[1] == 'u');
  return reducer_ != Reducer::kSum && is_whole && same_bytes(first_->body, other.first_->body);
}

// A sum of ints has room enough, but for one that does not fit at the end.
bool Reduction::is_free_of_order(const Value& value, const Value& other) const {
  if (value.tag != other.tag || value.items.size() != other.items.size() || !same_bytes(value.key, other.key)) return false;
  if (value.tag == ValueTag::kFloat64) {
    const auto is_like_no_other = [](double real) { return real < 0 || real > 0; };
    return reducer_ != Reducer::kSum && is_like_no_other(value.real) && is_like_no_other(other.real);
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (!is_free_of_order(value.items[i], other.items[i])) return false;
  }
  return true;
}

void Reduction::end_host(Value& value) {
  if (value.tag == ValueTag::kFloat64) {
    value.real = value.sum();
    value.whole = 0;
    value.has_whole = false;
  }
  for (Value& item : value.items) end_host(item);
}

bool Reduction::parse(const ReduceInput& input, Value& out) {
  ValueReader reader(input.body);
  if (read(reader, input.body, nullptr, out) && reader.done()) return true;
  if (problem_.found.empty()) problem_.found = "a malformed value";
  return refuse(Kind::kType, kTakesNumbers, input, std::move(problem_.found));
}

// False: problem_.found says what it is, if anything is.
bool Reduction::read(ValueReader& reader, ByteSpan body, const char* within, Value& out) {
  const auto stop = [&](const char* found) {
    problem_.found = found + (within == nullptr ? std::string() : std::string(", in a ") + within);
    return false;
  };
  bool truth;
  int64_t whole;
  uint32_t count;
  out.tag = reader.peek();
  switch (out.tag) {
    case ValueTag::kFalse:
    case ValueTag::kTrue:
      if (!reader.boolean(truth)) return stop("a malformed value");
      out.tag = reducer_ == Reducer::kSum ? ValueTag::kInt64 : ValueTag::kFalse;
      out.whole = truth;
      return true;
    case ValueTag::kInt8:
    case ValueTag::kInt64:
      if (!reader.integer(whole)) return stop("a malformed value");
      out.tag = ValueTag::kInt64;
      out.whole = whole;
      return true;
    case ValueTag::kFloat64: return reader.number(out.real) || stop("a malformed value");
    case ValueTag::kNone: return stop("None");
    case ValueTag::kStr: return stop("a str");
    case ValueTag::kBytes: return stop("bytes");
    case ValueTag::kInvalid: return stop("a malformed value");
    case ValueTag::kTuple:
    case ValueTag::kList:
    case ValueTag::kDict: break;
  }
  const bool is_dict = out.tag == ValueTag::kDict;
  const char* const name = is_dict ? "dict" : out.tag == ValueTag::kList ? "list" : "tuple";
  const bool begun = is_dict                         ? reader.begin_dict(count)
                     : out.tag == ValueTag::kList ? reader.begin_list(count)
                                                     : reader.begin_tuple(count);
  if (!begun) return stop("a malformed value");
  out.items.resize(count);
  for (Value& item : out.items) {
    if (is_dict) {
      const size_t at = body.size() - reader.remaining();
      if (!reader.skip()) return stop("a malformed value");
      item.key = body.subspan(at, body.size() - reader.remaining() - at);
    }
    if (!read(reader, body, name, item)) return false;
  }
  reader.end();
  return true;
}

// False: they are not of one shape.
bool Reduction::fold(Value& into, const Value& next) const {
  if (!into.is_container() || !next.is_container()) {
    if (into.is_container() || next.is_container()) return false;
    return fold_number(into, next), true;
  }
  if (into.tag != next.tag || into.items.size() != next.items.size()) return false;
  const size_t count = into.items.size();
  size_t at = 0;  // in `next`: where the search for the next key begins, which mostly ends there
  for (size_t i = 0; i < count; ++i, ++at) {
    if (into.tag == ValueTag::kDict) {
      const auto is_it = [&](const Value& item) { return same_bytes(item.key, into.items[i].key); };
      const auto from = next.items.begin() + static_cast<ptrdiff_t>(at % count);
      auto found = std::find_if(from, next.items.end(), is_it);
      if (found == next.items.end()) found = std::find_if(next.items.begin(), from, is_it);
      if (found == next.items.end() || !is_it(*found)) return false;
      at = static_cast<size_t>(found - next.items.begin());
    }
    if (!fold(into.items[i], next.items[at])) return false;
  }
  return true;
}

// Of equal numbers, so that it does not matter which comes first.
static int precedence(ValueTag tag) { return tag == ValueTag::kInt64 ? 0 : tag == ValueTag::kFloat64 ? 1 : 2; }

void Reduction::fold_number(Value& into, const Value& next) const {
  if (reducer_ == Reducer::kSum) {
    const bool is_first_real = into.tag != ValueTag::kFloat64 && next.tag == ValueTag::kFloat64;
    into.real = is_first_real ? next.real : into.real + next.real;
    into.has_whole = into.has_whole || next.has_whole || into.tag != ValueTag::kFloat64 || next.tag != ValueTag::kFloat64;
    if (next.tag == ValueTag::kFloat64) into.tag = ValueTag::kFloat64;
    into.whole += next.whole;
    return;
  }
  // Each 64-bit int and each double is a long double.
  const auto a = into.as<long double>(), b = next.as<long double>();
  const bool is_same = a == b && precedence(next.tag) < precedence(into.tag);
  const bool takes = std::isnan(b) ? !std::isnan(a) : reducer_ == Reducer::kMin ? b < a : a < b;
  if (!takes && !is_same) return;
  into.tag = next.tag;
  into.whole = next.whole;
  into.real = next.real;
}

bool Reduction::fold_array(const ReduceInput& next) {
  const Part& part = next.parts.front();
  const Dtype* dtype = is_array() ? find_dtype(dtype_of(next.body)) : nullptr;
  if (dtype == nullptr || !same_bytes(next.body, first_->body) || part.size != array_.size ||
      part.size % dtype->size != 0) {
    return refuse_other(Kind::kType, "takes values of one dtype and shape", next);
  }
  Part out = array_;
  if (!owns_array_) {
    const std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(part.size);
    out = {memory.get(), part.size, memory};
  }
  const bool fits = dtype->fold(reducer_, array_.data, part.data, out.data, part.size);
  array_ = std::move(out);
  owns_array_ = true;
  if (fits) return true;
  refuse(Kind::kRange, "does not fit in dtype '" + std::string(dtype->name) + "'", next, {});
  problem_.rank = -1;
  return false;
}

bool Reduction::put(ValueWriter& writer, const Value& value) const {
  const auto count = static_cast<uint32_t>(value.items.size());
  switch (value.tag) {
    case ValueTag::kFalse: return writer.boolean(value.whole != 0), true;
    case ValueTag::kInt64:
      if (value.whole != static_cast<int64_t>(value.whole)) return false;
      return writer.integer(static_cast<int64_t>(value.whole)), true;
    case ValueTag::kFloat64: return writer.number(value.sum()), true;
    case ValueTag::kTuple: writer.begin_tuple(count); break;
    case ValueTag::kList: writer.begin_list(count); break;
    default: writer.begin_dict(count); break;
  }
  return std::ranges::all_of(value.items, [&](const Value& item) {
    if (value.tag == ValueTag::kDict) writer.encoded(item.key);
    return put(writer, item);
  });
}

bool Reduction::write(ReducedValue& out) {
  out.flags = first_->flags & kHowEncoded;
  if (reducer_ == Reducer::kAllEqual || is_array()) {
    out.body.assign(first_->body.begin(), first_->body.end());
    is_array() && reducer_ != Reducer::kAllEqual ? out.parts.assign(1, array_)
                                                 : out.parts.assign(first_->parts.begin(), first_->parts.end());
    return true;
  }
  ValueWriter writer;
  if (!put(writer, value_)) {
    refuse(Kind::kRange, "of ints does not fit in 64 bits", *first_, {});
    problem_.rank = -1;
    return false;
  }
  out.body.assign(writer.written().begin(), writer.written().end());
  return true;
}

}  // namespace monarch
