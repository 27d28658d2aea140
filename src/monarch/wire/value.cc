#include "monarch/wire/value.h"

#include <algorithm>
#include <string>

namespace monarch {
namespace {

// With its article, as error texts need it.
const char* name_of(ValueTag tag) {
  switch (tag) {
    case ValueTag::kNone: return "None";
    case ValueTag::kFalse:
    case ValueTag::kTrue: return "a bool";
    case ValueTag::kInt64:
    case ValueTag::kInt8: return "an int";
    case ValueTag::kFloat64: return "a float";
    case ValueTag::kStr: return "a str";
    case ValueTag::kBytes: return "bytes";
    case ValueTag::kTuple: return "a tuple";
    case ValueTag::kList: return "a list";
    case ValueTag::kDict: return "a dict";
    case ValueTag::kInvalid: break;
  }
  return "nothing";
}

// Well-formed byte sequences by their first byte (the Unicode standard, table 3-7). The second byte's bounds
// are what excludes overlong forms, surrogates and what lies above U+10FFFF.
struct Utf8Lead {
  uint8_t first, last;          // of the lead byte
  uint8_t second_min, second_max;
  uint8_t length;
};
constexpr Utf8Lead kUtf8Leads[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
    {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
    {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

// The length of the well-formed sequence at `at`, which has at most `left` bytes and is not ASCII; 0: there
// is none.
size_t utf8_sequence(const unsigned char* at, size_t left) {
  for (const Utf8Lead& lead : kUtf8Leads) {
    if (at[0] < lead.first || at[0] > lead.last) continue;
    if (left < lead.length || at[1] < lead.second_min || at[1] > lead.second_max) return 0;
    for (size_t i = 2; i < lead.length; ++i) {
      if ((at[i] & 0xC0) != 0x80) return 0;
    }
    return lead.length;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  auto at = reinterpret_cast<const unsigned char*>(text.data());
  size_t left = text.size();
  while (left > 0) {
    uint64_t eight;
    if (left >= sizeof eight) {
      std::memcpy(&eight, at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        left -= sizeof eight;
        continue;
      }
    }
    size_t length = *at < 0x80 ? 1 : utf8_sequence(at, left);
    if (length == 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

bool validate(std::span<const std::byte> bytes) {
  ValueReader reader(bytes);
  return reader.skip() && reader.done();
}

void ValueWriter::grow(size_t bytes) {
  size_t capacity = std::max(2 * capacity_, size_ + bytes);
  bool inside = data_ == inline_;
  auto data = static_cast<std::byte*>(std::realloc(inside ? nullptr : data_, capacity));
  MONARCH_CHECK(data != nullptr);
  if (inside) std::memcpy(data, inline_, size_);
  data_ = data;
  capacity_ = capacity;
}

void ValueWriter::release() {
  std::free(data_);  // only called with a capacity that the inline storage does not have
  data_ = inline_;
  capacity_ = kInlineBytes;
}

bool ValueReader::skip() {
  int64_t whole;
  double real;
  std::string_view text;
  std::span<const std::byte> raw;
  uint32_t count;
  uint64_t values;
  switch (peek()) {
    case ValueTag::kNone:
    case ValueTag::kFalse:
    case ValueTag::kTrue: return pass(1);
    case ValueTag::kInt64:
    case ValueTag::kInt8: return integer(whole);
    case ValueTag::kFloat64: return number(real);
    case ValueTag::kStr: return str(text);
    case ValueTag::kBytes: return bytes(raw);
    case ValueTag::kTuple:
      if (!begin_tuple(count)) return false;
      values = count;
      break;
    case ValueTag::kList:
      if (!begin_list(count)) return false;
      values = count;
      break;
    case ValueTag::kDict:
      if (!begin_dict(count)) return false;
      values = 2 * uint64_t{count};
      break;
    case ValueTag::kInvalid: return mismatch("a value");
  }
  for (; values > 0; --values) {
    if (!skip()) return false;
  }
  end();
  return true;
}

void ValueReader::note(Problem problem) {
  if (failed()) return;
  problem_ = problem;
  failed_at_ = static_cast<size_t>(next_ - start_);
  if (next_ != end_) found_tag_ = static_cast<uint8_t>(*next_);
  end_ = next_;
}

void ValueReader::note_mismatch(const char* expected) {
  if (failed()) return;
  if (next_ == end_) return note(Problem::kCutOff);
  if (peek() == ValueTag::kInvalid) return note(Problem::kUnknownTag);
  // A taker comes here for its own tag too, when the rest of the value is missing.
  if (std::string_view(name_of(peek())) == expected) return note(Problem::kCutOff);
  expected_ = expected;
  note(Problem::kMismatch);
}

void ValueReader::note_refusal(const char* why) {
  if (failed()) return;
  expected_ = why;
  note(Problem::kRefused);
}

void ValueReader::note_integer(const char* expected, int64_t found) {
  if (failed()) return;
  expected_ = expected;
  found_ = found;
  note(Problem::kInteger);
}

void ValueReader::note_count(uint32_t expected, uint32_t found) {
  if (failed()) return;
  expected_count_ = expected;
  found_ = found;
  note(Problem::kTupleSize);
}

Error ValueReader::error() const {
  auto malformed = [this](std::string what) {
    return Error{ErrorCode::kMalformed, "malformed value at byte " + std::to_string(failed_at_) + ": " + what};
  };
  auto expected = [](std::string what, std::string found) {
    return Error{ErrorCode::kBug, "expected " + what + ", got " + found};
  };
  switch (problem_) {
    case Problem::kCutOff: return malformed("it is cut off");
    case Problem::kUnknownTag: return malformed("no value has the tag " + std::to_string(found_tag_));
    case Problem::kCount: return malformed("more items announced than bytes follow");
    case Problem::kTooDeep: return malformed("nested more than " + std::to_string(kValueDepthMax) + " deep");
    case Problem::kNotShortest: return malformed("an int that is not in its shortest form");
    case Problem::kNotUtf8: return malformed("a str that is not UTF-8");
    case Problem::kTrailing: return malformed("something follows the value");
    case Problem::kMismatch: return expected(expected_, name_of(static_cast<ValueTag>(found_tag_)));
    case Problem::kInteger: return expected(expected_, std::to_string(found_));
    case Problem::kTupleSize:
      return expected("a tuple of " + std::to_string(expected_count_), "a tuple of " + std::to_string(found_));
    case Problem::kRefused: return Error{ErrorCode::kBug, expected_};
    case Problem::kNothing: break;
  }
  return Error{ErrorCode::kBug, "the value was refused"};  // a codec said no without saying why
}

}  // namespace monarch
