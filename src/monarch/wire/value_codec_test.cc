#include "monarch/wire/value_codec.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace monarch {
namespace {

struct Point {
  int32_t x = 0;
  double y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct Opaque {};

}  // namespace

template <>
struct ValueCodec<Point> {
  static void encode(ValueWriter& writer, const Point& p) { monarch::encode(writer, std::tie(p.x, p.y)); }
  static bool decode(ValueReader& reader, Point& p) { return decode_into(reader, std::tie(p.x, p.y)); }
};

namespace {

static_assert(Encodable<int> && Encodable<uint8_t> && Encodable<long long> && Encodable<Point>);
static_assert(Encodable<std::string_view> && !Decodable<std::string_view>);
static_assert(Encodable<std::vector<std::optional<std::pair<int, std::string>>>>);
static_assert(!Encodable<Opaque> && !Encodable<std::vector<Opaque>> && !Encodable<std::tuple<int, Opaque>>);
static_assert(!Encodable<char> && !Encodable<int*>);
static_assert(!Encodable<std::optional<std::optional<int>>>, "None could mean either");

template <typename From, typename To = From>
Result<To> through(const From& value) {
  ValueWriter writer;
  encode(writer, value);
  EXPECT_EQ(writer.failure(), nullptr);
  EXPECT_TRUE(validate(writer.written()));
  return decode<To>(writer.written());
}

template <typename T>
void expect_same(const T& value) {
  Result<T> back = through(value);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, value);
}

template <typename To, typename From>
std::string refusal(const From& value) {
  Result<To> result = through<From, To>(value);
  EXPECT_FALSE(result.ok());
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.error().code, ErrorCode::kBug);
  return result.error().message;
}

TEST(ValueCodec, GivesBackEveryType) {
  expect_same(true);
  expect_same(int8_t{-128});
  expect_same(uint16_t{65535});
  expect_same(std::numeric_limits<int64_t>::min());
  expect_same(uint64_t{1} << 62);
  expect_same(2.5f);
  expect_same(1e300);
  expect_same(std::string("h\xC3\xA9"));
  expect_same(std::vector<std::byte>{std::byte{0}, std::byte{255}});
  expect_same(std::vector<int>{});
  expect_same(std::vector<bool>{true, false});
  expect_same(std::vector<std::vector<std::string>>{{"a"}, {}, {"b", "c"}});
  expect_same(std::tuple<>());
  expect_same(std::tuple<int, std::string, bool>(1, "two", false));
  expect_same(std::pair<std::string, double>("pi", 3.14));
  expect_same(std::map<std::string, int>{{"a", 1}, {"b", 2}});
  expect_same(std::unordered_map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  expect_same(std::optional<int>());
  expect_same(std::optional<int>(5));
  expect_same(std::monostate());
  expect_same(std::vector<Point>{{1, 2.5}, {-3, 0}});
  expect_same(std::vector<int>(5000, 7));
}

TEST(ValueCodec, TextsAndBytesInPlaceBecomeOwnedOnes) {
  EXPECT_EQ(*(through<std::string_view, std::string>("view")), "view");
  EXPECT_EQ(*(through<char[8], std::string>("literal")), "literal");
  std::vector<std::byte> raw(3, std::byte{9});
  EXPECT_EQ(*(through<std::span<const std::byte>, std::vector<std::byte>>(raw)), raw);
}

TEST(ValueCodec, ATupleOfArgumentsNeverChangesItsBytes) {
  ValueWriter writer;
  encode(writer, std::tuple<std::string_view, int, std::optional<int>>("add", 1, std::nullopt));
  const uint8_t expected[] = {7, 3, 0, 0, 0, 5, 3, 0, 0, 0, 'a', 'd', 'd', 10, 1, 0};
  ASSERT_EQ(writer.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(writer.data(), expected, sizeof expected), 0);
}

TEST(ValueCodec, SaysWhatItExpectedAndWhatItGot) {
  EXPECT_EQ(refusal<int>(std::string("x")), "expected an int, got a str");
  EXPECT_EQ(refusal<int>(1.0), "expected an int, got a float");
  EXPECT_EQ(refusal<int>(true), "expected an int, got a bool");
  EXPECT_EQ(refusal<bool>(1), "expected a bool, got an int");
  EXPECT_EQ(refusal<double>(std::monostate()), "expected a float, got None");
  EXPECT_EQ(refusal<std::vector<std::byte>>(std::string()), "expected bytes, got a str");
  EXPECT_EQ(refusal<std::vector<int>>(std::tuple<int>(1)), "expected a list, got a tuple");
  EXPECT_EQ((refusal<std::tuple<int, int>>(std::tuple<int>(1))), "expected a tuple of 2, got a tuple of 1");
  EXPECT_EQ((refusal<std::map<std::string, int>>(std::vector<int>())), "expected a dict, got a list");
  EXPECT_EQ(refusal<std::monostate>(std::map<std::string, int>()), "expected None, got a dict");
  EXPECT_EQ(refusal<std::string>(std::vector<std::byte>()), "expected a str, got bytes");
}

TEST(ValueCodec, IntsMustFitTheirType) {
  EXPECT_EQ(refusal<uint8_t>(300), "expected an int from 0 to 255, got 300");
  EXPECT_EQ(refusal<uint8_t>(-1), "expected an int from 0 to 255, got -1");
  EXPECT_EQ(refusal<int8_t>(128), "expected an int from -128 to 127, got 128");
  EXPECT_EQ(refusal<int32_t>(int64_t{1} << 31), "expected an int from -2147483648 to 2147483647, got 2147483648");
  EXPECT_EQ(refusal<uint64_t>(-5), "expected an int of 0 or more, got -5");
  ValueWriter writer;
  encode(writer, uint64_t{1} << 63);
  EXPECT_STREQ(writer.failure(), "an integer of 2^63 or more does not fit in a value");
}

TEST(ValueCodec, AnIntIsAFloatToo) {
  EXPECT_EQ(*(through<int, double>(3)), 3.0);
  EXPECT_EQ(*(through<int, float>(1000)), 1000.0f);
  EXPECT_EQ(refusal<float>(1e300), "expected a float of 32 bits, got one too large for that");
  EXPECT_TRUE(std::isinf(*(through<double, float>(std::numeric_limits<double>::infinity()))));
}

TEST(ValueCodec, AStringThatIsNotUtf8IsItsSendersError) {
  ValueWriter writer;
  encode(writer, std::string("\xFF"));
  EXPECT_STREQ(writer.failure(), "a string that is not UTF-8 (send it as std::vector<std::byte>)");
}

TEST(ValueCodec, ADictWithAKeyTwiceIsRefused) {
  ValueWriter writer;
  writer.begin_dict(2);
  for (int i = 0; i < 2; ++i) {
    writer.str("k");
    writer.integer(i);
  }
  auto result = decode<std::map<std::string, int>>(writer.written());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "expected a dict, got one with a key twice");
}

TEST(ValueCodec, TakesOneValueAfterTheOtherOrExactlyOne) {
  ValueWriter writer;
  encode(writer, 1);
  encode(writer, std::string("two"));
  ValueReader reader(writer.written());
  EXPECT_EQ(*decode<int>(reader), 1);
  EXPECT_EQ(*decode<std::string>(reader), "two");
  EXPECT_TRUE(reader.done());
  auto result = decode<int>(writer.written());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "malformed value at byte 2: something follows the value");
}

TEST(ValueCodec, EveryTruncationIsRefused) {
  using Deep = std::vector<std::map<std::string, std::optional<std::pair<double, std::vector<std::byte>>>>>;
  ValueWriter writer;
  encode(writer, Deep{{{"a", std::pair(1.5, std::vector<std::byte>(3))}, {"b", std::nullopt}}, {}});
  ASSERT_TRUE(decode<Deep>(writer.written()).ok());
  for (size_t size = 0; size < writer.size(); ++size) {
    std::vector<std::byte> part(writer.data(), writer.data() + size);
    auto result = decode<Deep>(part);
    ASSERT_FALSE(result.ok()) << size;
    EXPECT_EQ(result.error().code, ErrorCode::kMalformed) << size;
  }
}

}  // namespace
}  // namespace monarch
