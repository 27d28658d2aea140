// Reducers: the answers of many ranks, combined to one value (docs/design/036). Pure code, used at each hop and by the
// caller; values are those of the native codec (wire/value.h), and plain arrays beside them (kFlagArrays).
//
// What comes out does not depend on when the answers came: they are combined in the order of ranks, those of a host first,
// then the hosts in the order of their lowest ranks. For floats that is an order of rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/wire/reducer.h"
#include "monarch/wire/value.h"

namespace monarch {

std::string_view name_of(Reducer reducer);

// The answer of a rank, or what those of several were combined to, under the lowest of them. Refers to it.
struct ReduceInput {
  uint32_t rank = 0;
  uint32_t flags = 0;  // FrameFlags
  ByteSpan body;
  std::span<const Part> parts;
};

// Why there is no value, for people.
struct ReduceProblem {
  enum class Kind : uint8_t { kType, kRange, kUnequal };
  Kind kind = Kind::kType;
  Reducer reducer = Reducer::kNone;
  bool is_foreign = false;  // `rank` has answered with an object of Python: whoever can may say of what type in `found`
  std::string wants;        // "takes numbers"
  int64_t rank = -1;        // whose answer is to blame; -1: of all together
  std::string found;        // "a str"
  int64_t other = -1;       // a rank before it that has answered something else, if that is the problem
  std::string other_found;

  std::string text(std::string_view endpoint) const;
};

struct ReducedValue {
  uint32_t flags = 0;
  std::vector<std::byte> body;
  std::vector<Part> parts;
};

// Combines by kSum, kMin, kMax or kAllEqual. What is added stays as it is for as long as this is used. May throw
// std::bad_alloc. Belongs to one thread.
class Reduction {
 public:
  explicit Reduction(Reducer reducer) : reducer_(reducer) {}

  // The next of the ranks. False: problem(), and nothing comes of it any more.
  bool add(const ReduceInput& input);
  // All ranks of a host have been added: what is rounded there, if it combines them itself, is so here.
  void end_host() { end_host(value_); }
  // What the other one has combined, in the place of an answer. Each has been added to.
  bool merge(const Reduction& other);
  // Whether what comes of the two is the same, whatever others are merged before them, after or in between: as it is not
  // where something is rounded, may not fit on the way, or could be either of two that are equal and yet not the same.
  bool is_free_of_order(const Reduction& other) const;
  // False: problem(). It has been added to.
  bool write(ReducedValue& out);

  Reducer reducer() const { return reducer_; }
  const ReduceProblem& problem() const { return problem_; }

 private:
  __extension__ using Whole = __int128;  // no sum of 64-bit answers is too large for it
  struct Value {
    ValueTag tag = ValueTag::kNone;  // kFalse: a bool, kInt64: an int, kFloat64, or a container
    Whole whole = 0;  // of a sum that is kFloat64, of its ints, which are exact so wherever they stand
    bool has_whole = false;  // there have been such
    double real = 0;
    ByteSpan key;  // in a dict, encoded
    std::vector<Value> items;

    bool is_number() const { return items.empty() && !is_container(); }
    bool is_container() const;
    double sum() const { return has_whole ? real + static_cast<double>(whole) : real; }
    template <typename Real>
    Real as() const {
      return tag == ValueTag::kFloat64 ? static_cast<Real>(real) : static_cast<Real>(whole);
    }
  };

  bool is_array() const;
  bool parse(const ReduceInput& input, Value& out);
  bool read(ValueReader& reader, ByteSpan body, const char* within, Value& out);
  bool fold(Value& into, const Value& next) const;
  void fold_number(Value& into, const Value& next) const;
  bool fold_array(const ReduceInput& next);
  bool is_free_of_order(const Value& value, const Value& other) const;
  static void end_host(Value& value);
  bool put(ValueWriter& writer, const Value& value) const;
  bool refuse(ReduceProblem::Kind kind, std::string wants, const ReduceInput& of, std::string found);
  bool refuse_other(ReduceProblem::Kind kind, std::string wants, const ReduceInput& of);

  const Reducer reducer_;
  std::optional<ReduceInput> first_;
  Value value_;
  Part array_;             // first_'s, or our own
  bool owns_array_ = false;
  ReduceProblem problem_;
};

}  // namespace monarch
