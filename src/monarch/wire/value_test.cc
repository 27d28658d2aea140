#include "monarch/wire/value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace monarch {
namespace {

using Bytes = std::vector<std::byte>;

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b));
    out += two;
  }
  return out;
}

Bytes from_hex(std::string_view digits) {
  Bytes out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  return out;
}

// (None, [True, False, 1000, -2.5], {"é": b"\x00"}, -1): every tag once.
void write_sample(ValueWriter& writer) {
  writer.begin_tuple(4);
  writer.none();
  writer.begin_list(4);
  writer.boolean(true);
  writer.boolean(false);
  writer.integer(1000);
  writer.number(-2.5);
  writer.begin_dict(1);
  writer.str("\xC3\xA9");
  writer.bytes(from_hex("00"));
  writer.integer(-1);
}
constexpr const char* kSample =
    "0704000000" "00" "0804000000" "02" "01" "03e803000000000000" "0400000000000004c0"
    "0901000000" "0502000000c3a9" "060100000000" "0aff";

Error error_of_skipping(const Bytes& bytes) {
  ValueReader reader(bytes);
  EXPECT_FALSE(reader.skip());
  return reader.error();
}

TEST(Value, BytesOfEveryKindNeverChange) {
  ValueWriter writer;
  write_sample(writer);
  EXPECT_EQ(hex(writer.written()), kSample);
  EXPECT_TRUE(validate(writer.written()));
}

TEST(Value, ReaderGivesWhatTheWriterTook) {
  ValueWriter writer;
  write_sample(writer);
  ValueReader reader(writer.written());
  uint32_t count = 0;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string_view text;
  std::span<const std::byte> raw;
  EXPECT_EQ(reader.peek(), ValueTag::kTuple);
  ASSERT_TRUE(reader.begin_tuple(count));
  EXPECT_EQ(count, 4u);
  ASSERT_TRUE(reader.none());
  ASSERT_TRUE(reader.begin_list(count));
  EXPECT_EQ(count, 4u);
  ASSERT_TRUE(reader.boolean(boolean));
  EXPECT_TRUE(boolean);
  ASSERT_TRUE(reader.boolean(boolean));
  EXPECT_FALSE(boolean);
  ASSERT_TRUE(reader.integer(integer));
  EXPECT_EQ(integer, 1000);
  ASSERT_TRUE(reader.number(number));
  EXPECT_EQ(number, -2.5);
  reader.end();
  ASSERT_TRUE(reader.begin_dict(count));
  EXPECT_EQ(count, 1u);
  ASSERT_TRUE(reader.str(text));
  EXPECT_EQ(text, "\xC3\xA9");
  ASSERT_TRUE(reader.bytes(raw));
  EXPECT_EQ(hex(raw), "00");
  reader.end();
  ASSERT_TRUE(reader.integer(integer));
  EXPECT_EQ(integer, -1);
  reader.end();
  EXPECT_TRUE(reader.done());
}

TEST(Value, EveryTruncationIsRefused) {
  Bytes sample = from_hex(kSample);
  for (size_t size = 0; size < sample.size(); ++size) {
    Bytes part(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(size));  // a block of its own, for ASan
    EXPECT_FALSE(validate(part)) << size;
    EXPECT_EQ(error_of_skipping(part).code, ErrorCode::kMalformed) << size;
  }
}

TEST(Value, AnythingBehindTheValueIsRefused) {
  Bytes sample = from_hex(kSample);
  sample.push_back(std::byte{0});
  EXPECT_FALSE(validate(sample));
}

TEST(Value, UnknownTagsAreRefused) {
  for (int tag = 11; tag < 256; ++tag) {
    Bytes bytes(16);
    bytes[0] = static_cast<std::byte>(tag);
    EXPECT_EQ(ValueReader(bytes).peek(), ValueTag::kInvalid);
    EXPECT_EQ(error_of_skipping(bytes).message,
              "malformed value at byte 0: no value has the tag " + std::to_string(tag));
  }
}

TEST(Value, IntsTakeTheirShortestFormOnly) {
  for (int64_t value : {int64_t{-129}, int64_t{-128}, int64_t{0}, int64_t{127}, int64_t{128},
                        std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    ValueWriter writer;
    writer.integer(value);
    EXPECT_EQ(writer.size(), value >= -128 && value <= 127 ? 2u : 9u);
    ValueReader reader(writer.written());
    int64_t read = 1;
    ASSERT_TRUE(reader.integer(read));
    EXPECT_EQ(read, value);
  }
  EXPECT_EQ(error_of_skipping(from_hex("030100000000000000")).message,
            "malformed value at byte 0: an int that is not in its shortest form");
}

TEST(Value, FloatsKeepEveryBit) {
  for (double value : {0.0, -0.0, std::numeric_limits<double>::infinity(), std::nan("7"), 5e-324}) {
    ValueWriter writer;
    writer.number(value);
    ValueReader reader(writer.written());
    double read = 1;
    ASSERT_TRUE(reader.number(read));
    EXPECT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(value));
  }
}

TEST(Value, CountsAreBoundByTheBytesThatFollow) {
  EXPECT_FALSE(validate(from_hex("07ffffffff00")));
  EXPECT_FALSE(validate(from_hex("08ffffffff00")));
  EXPECT_FALSE(validate(from_hex("09ffffffff0000")));
  uint32_t count = 7;
  Bytes bytes = from_hex("070300000000000000");
  ValueReader exact(bytes);
  EXPECT_TRUE(exact.begin_tuple(count));
  EXPECT_EQ(count, 3u);
  // The outer list owes two more values, so the inner cannot have the three bytes for itself.
  bytes = from_hex("0803000000" "0802000000" "000000");
  ValueReader nested(bytes);
  ASSERT_TRUE(nested.begin_list(count));
  EXPECT_FALSE(nested.begin_list(count));
  EXPECT_EQ(nested.error().message, "malformed value at byte 5: more items announced than bytes follow");
}

TEST(Value, NestsSixtyFourDeepAndNoDeeper) {
  auto nested = [](int depth) {
    Bytes bytes;
    for (int i = 0; i < depth; ++i) {
      Bytes one = from_hex("0801000000");
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    bytes.push_back(std::byte{0});
    return bytes;
  };
  EXPECT_TRUE(validate(nested(64)));
  EXPECT_FALSE(validate(nested(65)));
  EXPECT_FALSE(validate(nested(100000)));
}

TEST(Value, StrIsUtf8AsPythonSeesIt) {
  for (const char* good : {"", "a", "7bytes.", "8 bytes.", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "long and then \xE2\x82\xAC and on"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                          "\xE2\x82\x41", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                          "12345678\xFF"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
  Bytes bytes = from_hex("0501000000ff");
  EXPECT_FALSE(validate(bytes));
  ValueReader reader(bytes);
  std::string_view text;
  EXPECT_TRUE(reader.str_unchecked(text));
  EXPECT_EQ(text, "\xFF");
}

TEST(Value, ReaderStaysFailedAndKeepsTheFirstReason) {
  Bytes bytes = from_hex("0a05" "0a06");
  ValueReader reader(bytes);
  std::string_view text = "untouched";
  int64_t integer = 7;
  EXPECT_FALSE(reader.str(text));
  EXPECT_FALSE(reader.integer(integer));
  EXPECT_FALSE(reader.skip());
  EXPECT_EQ(text, "untouched");
  EXPECT_EQ(integer, 7);
  EXPECT_TRUE(reader.failed());
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.peek(), ValueTag::kInvalid);
  EXPECT_EQ(reader.error().message, "expected a str, got an int");
  EXPECT_EQ(reader.error().code, ErrorCode::kBug);
}

TEST(Value, ReaderOfNothingIsDoneAndHasNothing) {
  ValueReader reader({});
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(reader.peek(), ValueTag::kInvalid);
  EXPECT_FALSE(reader.none());
  EXPECT_FALSE(reader.done());
}

TEST(Value, WriterKeepsItsContentWhenItMovesToTheHeap) {
  ValueWriter writer;
  Bytes block(200, std::byte{0x5A});
  for (int i = 0; i < 1000; ++i) writer.bytes(block);
  ValueReader reader(writer.written());
  std::span<const std::byte> raw;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(reader.bytes(raw));
    ASSERT_TRUE(std::equal(raw.begin(), raw.end(), block.begin(), block.end()));
  }
  EXPECT_TRUE(reader.done());
  writer.clear();
  EXPECT_EQ(writer.size(), 0u);
  writer.none();
  EXPECT_TRUE(validate(writer.written()));
}

TEST(Value, WriterSaysWhatItCannotEncode) {
  ValueWriter writer;
  char one = 'a';
  writer.str({&one, size_t{1} << 32});  // only the length is looked at
  EXPECT_STREQ(writer.failure(), "a str or bytes of 4 GiB or more does not fit in one value");
  writer.clear();
  EXPECT_EQ(writer.failure(), nullptr);
}

}  // namespace
}  // namespace monarch
