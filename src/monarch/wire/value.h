// The native value codec: what the Python fast path and C++ actors write into a message instead of a pickle.
//
// A value is a tag (one byte) and what the tag says follows. All numbers are little-endian. The tags are
// fixed for ever:
//
//   tag  value        followed by
//     0  None         -
//     1  False        -
//     2  True         -
//     3  int          8 bytes, two's complement; only for what does not fit tag 10
//     4  float        8 bytes, IEEE 754 binary64
//     5  str          u32 length in bytes, UTF-8 (no surrogates, shortest forms)
//     6  bytes        u32 length, the bytes
//     7  tuple        u32 count, that many values
//     8  list         u32 count, that many values
//     9  dict         u32 count of pairs, for each a key and a value (any values; keys are not checked for duplicates)
//    10  int          1 byte, two's complement
//
// A value has exactly one encoding (an int takes its shortest form), so equal bytes mean equal values, and
// decoding and encoding again gives the same bytes. Containers nest at most 64 deep.
//
// This file is the untyped pair ValueWriter and ValueReader, for code that walks objects of another language.
// C++ types are mapped in value_codec.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "monarch/base/check.h"
#include "monarch/base/result.h"

namespace monarch {

static_assert(std::endian::native == std::endian::little, "the wire format is written with plain stores");

enum class ValueTag : uint8_t {
  kNone = 0,
  kFalse = 1,
  kTrue = 2,
  kInt64 = 3,
  kFloat64 = 4,
  kStr = 5,
  kBytes = 6,
  kTuple = 7,
  kList = 8,
  kDict = 9,
  kInt8 = 10,
  kInvalid = 255,  // never on the wire: what ValueReader::peek() says where no value begins
};

inline constexpr int kValueDepthMax = 64;               // containers within each other
inline constexpr size_t kValueLengthMax = 0xFFFFFFFFu;  // bytes of a str or bytes; longer ones travel as parts

// Whether `text` is well-formed UTF-8: what Python's strict decoder accepts.
bool is_utf8(std::string_view text);

// Whether `bytes` are exactly one well-formed value and nothing after it.
bool validate(std::span<const std::byte> bytes);

// Appends values to a buffer that it owns: 256 bytes within the object, then the heap. Belongs to one thread.
// The caller writes as many values after begin_x(count) as it announced, twice as many for a dict, at most
// kValueDepthMax containers deep (a reader refuses what breaks this).
//
// Never throws; without memory it aborts. What cannot be encoded sets failure() and makes the content
// meaningless; look at it once, before sending.
class ValueWriter {
 public:
  ValueWriter() {}  // not "= default": `ValueWriter w{}` would zero the inline storage
  ~ValueWriter() {
    if (data_ != inline_) std::free(data_);
  }
  ValueWriter(const ValueWriter&) = delete;
  ValueWriter& operator=(const ValueWriter&) = delete;

  void none() { tag_only(ValueTag::kNone); }
  void boolean(bool value) { tag_only(value ? ValueTag::kTrue : ValueTag::kFalse); }
  void integer(int64_t value) {
    std::byte* out = room(1 + sizeof value);
    if (value == static_cast<int8_t>(value)) {
      put_tag(out, ValueTag::kInt8);
      out[1] = static_cast<std::byte>(value);
      size_ += 2;
    } else {
      put_tag(out, ValueTag::kInt64);
      std::memcpy(out + 1, &value, sizeof value);
      size_ += 1 + sizeof value;
    }
  }
  void number(double value) {
    std::byte* out = room(1 + sizeof value);
    put_tag(out, ValueTag::kFloat64);
    std::memcpy(out + 1, &value, sizeof value);
    size_ += 1 + sizeof value;
  }
  // `text` must be UTF-8, which is not checked here: the receiver refuses anything else.
  void str(std::string_view text) { block(ValueTag::kStr, text.data(), text.size()); }
  void bytes(std::span<const std::byte> raw) { block(ValueTag::kBytes, raw.data(), raw.size()); }
  void begin_tuple(uint32_t count) { tag_and_u32(ValueTag::kTuple, count); }
  void begin_list(uint32_t count) { tag_and_u32(ValueTag::kList, count); }
  void begin_dict(uint32_t pairs) { tag_and_u32(ValueTag::kDict, pairs); }
  void encoded(std::span<const std::byte> value) {  // one that was encoded before
    std::byte* out = room(value.size());
    if (!value.empty()) std::memcpy(out, value.data(), value.size());
    size_ += value.size();
  }

  const std::byte* data() const { return data_; }  // valid until the next write
  size_t size() const { return size_; }
  std::span<const std::byte> written() const { return {data_, size_}; }

  // Empty and without failure again. Heap memory is kept for the next value unless it is large.
  void clear() {
    size_ = 0;
    failure_ = nullptr;
    if (capacity_ > kKeptBytesMax) release();
  }

  // The first reason why this cannot be sent, or null. `why` is a literal.
  const char* failure() const { return failure_; }
  void fail(const char* why) {
    if (failure_ == nullptr) failure_ = why;
  }

 private:
  static constexpr size_t kInlineBytes = 256;
  static constexpr size_t kKeptBytesMax = 64 << 10;

  static void put_tag(std::byte* out, ValueTag tag) { *out = static_cast<std::byte>(tag); }

  std::byte* room(size_t bytes) {
    if (__builtin_expect(capacity_ - size_ < bytes, 0)) grow(bytes);
    return data_ + size_;
  }
  void tag_only(ValueTag tag) {
    put_tag(room(1), tag);
    size_ += 1;
  }
  std::byte* tag_and_u32(ValueTag tag, uint32_t value, size_t more = 0) {
    std::byte* out = room(1 + sizeof value + more);
    put_tag(out, tag);
    std::memcpy(out + 1, &value, sizeof value);
    size_ += 1 + sizeof value;
    return out + 1 + sizeof value;
  }
  void block(ValueTag tag, const void* from, size_t size) {
    if (size > kValueLengthMax) return fail("a str or bytes of 4 GiB or more does not fit in one value");
    std::byte* out = tag_and_u32(tag, static_cast<uint32_t>(size), size);
    if (size != 0) std::memcpy(out, from, size);
    size_ += size;
  }
  void grow(size_t bytes);
  void release();

  size_t size_ = 0;
  size_t capacity_ = kInlineBytes;
  std::byte* data_ = inline_;
  const char* failure_ = nullptr;
  std::byte inline_[kInlineBytes];
};

// Takes values one by one from bytes that may come from anybody. Never reads outside of them, never throws,
// never allocates (but for the text of error()). Refers to the bytes: they outlive the reader and everything
// that it hands out, and must not change meanwhile (copy small messages out of shared memory first).
//
// Each taker returns false where the next value is not what it takes; then its out-parameter is untouched,
// the reader has failed, and every later taker returns false: a caller may look once, at the end. Belongs to
// one thread.
//
//   uint32_t count;
//   int64_t a, b;
//   bool good = reader.begin_tuple(count) && count == 2 && reader.integer(a) && reader.integer(b);
//   if (good) reader.end();
class ValueReader {
 public:
  explicit ValueReader(std::span<const std::byte> bytes)
      : next_(bytes.data()), end_(bytes.data() + bytes.size()), start_(bytes.data()) {}

  // What begins here. kInvalid: nothing (the end, an unknown tag, or the reader has failed).
  ValueTag peek() const {
    if (next_ == end_ || static_cast<uint8_t>(*next_) > kTagMax) return ValueTag::kInvalid;
    return static_cast<ValueTag>(*next_);
  }

  bool none() { return peek() == ValueTag::kNone ? pass(1) : mismatch("None"); }
  bool boolean(bool& out) {
    ValueTag tag = peek();
    if (tag != ValueTag::kTrue && tag != ValueTag::kFalse) return mismatch("a bool");
    out = tag == ValueTag::kTrue;
    return pass(1);
  }
  bool integer(int64_t& out) {
    ValueTag tag = peek();
    if (tag == ValueTag::kInt8 && remaining() >= 2) {
      out = static_cast<int8_t>(next_[1]);
      return pass(2);
    }
    int64_t value;
    if (tag != ValueTag::kInt64 || !load(value)) return mismatch("an int");
    if (value == static_cast<int8_t>(value)) return fail(Problem::kNotShortest);
    out = value;
    return pass(1 + sizeof value);
  }
  bool number(double& out) {
    if (peek() != ValueTag::kFloat64 || !load(out)) return mismatch("a float");
    return pass(1 + sizeof out);
  }
  bool str(std::string_view& out) {
    std::string_view text;
    if (!block(ValueTag::kStr, "a str", text)) return false;
    if (!is_utf8(text)) return fail(Problem::kNotUtf8);
    out = text;
    return pass(kBlockHead + text.size());
  }
  // For a caller whose next step refuses what is not UTF-8 anyway, as Python's decoder does.
  bool str_unchecked(std::string_view& out) {
    return block(ValueTag::kStr, "a str", out) && pass(kBlockHead + out.size());
  }
  bool bytes(std::span<const std::byte>& out) {
    std::string_view raw;
    if (!block(ValueTag::kBytes, "bytes", raw)) return false;
    out = {reinterpret_cast<const std::byte*>(raw.data()), raw.size()};
    return pass(kBlockHead + raw.size());
  }

  // After begin_x(count) take exactly `count` values (a dict: a key and a value `count` times), then end().
  // The counts of one message never add up to more than its bytes, so room for `count` may be made at once.
  bool begin_tuple(uint32_t& count) { return begin(ValueTag::kTuple, "a tuple", 1, count); }
  bool begin_list(uint32_t& count) { return begin(ValueTag::kList, "a list", 1, count); }
  bool begin_dict(uint32_t& pairs) { return begin(ValueTag::kDict, "a dict", 2, pairs); }
  void end() {
    MONARCH_CHECK(depth_ > 0);
    --depth_;
  }

  // Takes one whole value of any kind, checking it.
  bool skip();

  bool failed() const { return problem_ != Problem::kNothing; }
  bool done() const { return next_ == end_ && !failed(); }  // everything was taken
  size_t remaining() const { return static_cast<size_t>(end_ - next_); }

  // Why it failed: kMalformed if no writer makes such bytes, kBug if they are another value than was asked
  // for ("expected an int, got a str").
  Error error() const;

  // For codecs: refuse a value that was well-formed. All return false. The texts are literals.
  bool refuse(const char* why) { return note_refusal(why), false; }  // "<why>"
  bool refuse_integer(const char* expected, int64_t found) {         // "expected <expected>, got <found>"
    return note_integer(expected, found), false;
  }
  bool refuse_count(uint32_t expected, uint32_t found) {  // "expected a tuple of <expected>, got a tuple of <found>"
    return note_count(expected, found), false;
  }
  bool mismatch(const char* expected) { return note_mismatch(expected), false; }  // "expected <expected>, got <next>"
  bool trailing() { return fail(Problem::kTrailing); }                            // "something follows the value"

 private:
  enum class Problem : uint8_t {
    kNothing,
    // malformed
    kCutOff,
    kUnknownTag,
    kCount,
    kTooDeep,
    kNotShortest,
    kNotUtf8,
    kTrailing,
    // another value than was asked for
    kMismatch,
    kInteger,
    kTupleSize,
    kRefused,
  };
  static constexpr uint8_t kTagMax = static_cast<uint8_t>(ValueTag::kInt8);
  static constexpr size_t kBlockHead = 1 + sizeof(uint32_t);

  // Moves behind a value that was read. Each value but the outermost pays back what its container owes.
  bool pass(size_t bytes) {
    next_ += bytes;
    owed_ -= depth_ > 0;
    return true;
  }
  template <typename T>
  bool load(T& out) const {
    if (remaining() < 1 + sizeof out) return false;
    std::memcpy(&out, next_ + 1, sizeof out);
    return true;
  }
  bool block(ValueTag tag, const char* expected, std::string_view& out) {
    uint32_t size;
    if (peek() != tag || !load(size)) return mismatch(expected);
    if (remaining() - kBlockHead < size) return fail(Problem::kCutOff);
    out = {reinterpret_cast<const char*>(next_ + kBlockHead), size};
    return true;
  }
  bool begin(ValueTag tag, const char* expected, uint64_t values_each, uint32_t& count) {
    uint32_t announced;
    if (peek() != tag || !load(announced)) return mismatch(expected);
    if (depth_ >= kValueDepthMax) return fail(Problem::kTooDeep);
    // Every value takes a byte at least, those that the containers around this one still owe too.
    uint64_t owed = owed_ - (depth_ > 0) + announced * values_each;
    if (owed > remaining() - kBlockHead) return fail(Problem::kCount);
    count = announced;
    next_ += kBlockHead;
    owed_ = owed;
    ++depth_;
    return true;
  }
  // The inline half tells the compiler that the result is false; the other half is rare, and kept out of the
  // way.
  bool fail(Problem problem) { return note(problem), false; }
  [[gnu::cold]] void note(Problem problem);  // keeps the first problem, and leaves nothing to take
  [[gnu::cold]] void note_mismatch(const char* expected);
  [[gnu::cold]] void note_refusal(const char* why);
  [[gnu::cold]] void note_integer(const char* expected, int64_t found);
  [[gnu::cold]] void note_count(uint32_t expected, uint32_t found);

  const std::byte* next_;
  const std::byte* end_;
  const std::byte* start_;
  uint64_t owed_ = 0;  // values that open containers have announced and that were not taken yet
  int depth_ = 0;
  Problem problem_ = Problem::kNothing;
  uint8_t found_tag_ = 0;
  uint32_t expected_count_ = 0;
  size_t failed_at_ = 0;
  int64_t found_ = 0;
  const char* expected_ = nullptr;
};

}  // namespace monarch
