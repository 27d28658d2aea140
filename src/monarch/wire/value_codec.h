// C++ types in the native value codec (value.h): arguments and results of C++ actors.
//
//   bool                                          <-> bool
//   all integer types (not the character types)   <-> int; decoding checks the range
//   double, float                                 <-> float; an int is accepted too
//   std::string, string_view, literals (*)        <-> str
//   std::vector<std::byte>, span of them (*)      <-> bytes
//   std::vector<T>                                <-> list
//   std::tuple, std::pair                         <-> tuple
//   std::map<std::string, T>, unordered_map       <-> dict
//   std::optional<T>                              <-> None or the value
//   std::monostate, Ok                            <-> None
//   (*) encode only: nothing would own what was decoded
//
// Nothing else is converted: a list is not a tuple, a float is not an int, True is not 1. A type of your own:
//
//   template <>
//   struct monarch::ValueCodec<Point> {
//     static void encode(ValueWriter& writer, const Point& p) { monarch::encode(writer, std::tie(p.x, p.y)); }
//     static bool decode(ValueReader& reader, Point& p) { return decode_into(reader, std::tie(p.x, p.y)); }
//   };
//
// ValueCodec<T>::decode returns false once the reader has failed, or fails it with ValueReader::refuse; `out`
// is then valid but unspecified. ValueCodec<T>::encode reports with ValueWriter::fail. Neither throws.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "monarch/wire/value.h"

namespace monarch {

template <typename T>
struct ValueCodec;

template <typename T>
concept Encodable = requires(ValueWriter& writer, const T& value) { ValueCodec<T>::encode(writer, value); };

template <typename T>
concept Decodable = std::default_initializable<T> &&
    requires(ValueReader& reader, T& out) { { ValueCodec<T>::decode(reader, out) } -> std::same_as<bool>; };

// Appends `value`. Look at writer.failure() before sending.
template <Encodable T>
void encode(ValueWriter& writer, const T& value) {
  ValueCodec<T>::encode(writer, value);
}

// Takes the next value; false: the reader has failed (ValueReader::error says why). `out` may be
// std::tie(...).
template <typename T>
bool decode_into(ValueReader& reader, T&& out) {
  return ValueCodec<std::remove_cvref_t<T>>::decode(reader, out);
}

// Takes the next value.
template <Decodable T>
Result<T> decode(ValueReader& reader) {
  T out{};
  if (!decode_into(reader, out)) return reader.error();
  return out;
}

// Takes the one value that `bytes` are.
template <Decodable T>
Result<T> decode(std::span<const std::byte> bytes) {
  ValueReader reader(bytes);
  T out{};
  if (!decode_into(reader, out) || !(reader.done() || reader.trailing())) return reader.error();
  return out;
}

namespace internal {

// Memory for a container is made ahead for no more items than this: what a stranger announces costs nothing.
inline constexpr size_t kReservedItemsMax = 1024;

template <typename T>
concept CharacterType = std::same_as<T, char> || std::same_as<T, wchar_t> || std::same_as<T, char8_t> ||
    std::same_as<T, char16_t> || std::same_as<T, char32_t>;

template <typename T>
concept NumberType = std::integral<T> && !std::same_as<T, bool> && !CharacterType<T>;

template <NumberType T>
constexpr const char* range_text() {
  if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1 ? "an int from -128 to 127"
         : sizeof(T) == 2 ? "an int from -32768 to 32767"
         : sizeof(T) == 4 ? "an int from -2147483648 to 2147483647"
                          : "an int";
  } else {
    return sizeof(T) == 1 ? "an int from 0 to 255"
         : sizeof(T) == 2 ? "an int from 0 to 65535"
         : sizeof(T) == 4 ? "an int from 0 to 4294967295"
                          : "an int of 0 or more";
  }
}

// A std::string may hold anything, a str only UTF-8: found here, the error is its sender's and not the
// receiver's.
inline void encode_text(ValueWriter& writer, std::string_view text) {
  if (!is_utf8(text)) writer.fail("a string that is not UTF-8 (send it as std::vector<std::byte>)");
  writer.str(text);
}

inline bool begin_tuple_of(ValueReader& reader, uint32_t expected) {
  uint32_t count;
  if (!reader.begin_tuple(count)) return false;
  return count == expected || reader.refuse_count(expected, count);
}

inline bool count_fits(ValueWriter& writer, size_t count) {
  if (count <= std::numeric_limits<uint32_t>::max()) return true;
  writer.fail("a list or dict of 2^32 items or more does not fit in one value");
  return false;
}

// Whose own encoding may be None, so that optional<T> could not tell.
template <typename T>
inline constexpr bool kMayBeNone = std::same_as<T, std::monostate> || std::same_as<T, Ok>;
template <typename T>
inline constexpr bool kMayBeNone<std::optional<T>> = true;

}  // namespace internal

template <>
struct ValueCodec<bool> {
  static void encode(ValueWriter& writer, bool value) { writer.boolean(value); }
  static bool decode(ValueReader& reader, bool& out) { return reader.boolean(out); }
};

template <internal::NumberType T>
struct ValueCodec<T> {
  static void encode(ValueWriter& writer, T value) {
    if (!std::in_range<int64_t>(value)) writer.fail("an integer of 2^63 or more does not fit in a value");
    writer.integer(static_cast<int64_t>(value));
  }
  static bool decode(ValueReader& reader, T& out) {
    int64_t value;
    if (!reader.integer(value)) return false;
    if (!std::in_range<T>(value)) return reader.refuse_integer(internal::range_text<T>(), value);
    out = static_cast<T>(value);
    return true;
  }
};

template <>
struct ValueCodec<double> {
  static void encode(ValueWriter& writer, double value) { writer.number(value); }
  static bool decode(ValueReader& reader, double& out) {
    ValueTag tag = reader.peek();
    if (tag != ValueTag::kInt8 && tag != ValueTag::kInt64) return reader.number(out);
    int64_t value;
    if (!reader.integer(value)) return false;
    out = static_cast<double>(value);
    return true;
  }
};

template <>
struct ValueCodec<float> {
  static void encode(ValueWriter& writer, float value) { writer.number(value); }
  static bool decode(ValueReader& reader, float& out) {
    double value;
    if (!ValueCodec<double>::decode(reader, value)) return false;
    if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max())
      return reader.refuse("expected a float of 32 bits, got one too large for that");
    out = static_cast<float>(value);
    return true;
  }
};

template <>
struct ValueCodec<std::string_view> {
  static void encode(ValueWriter& writer, std::string_view value) { internal::encode_text(writer, value); }
};

template <size_t n>
struct ValueCodec<char[n]> {
  static void encode(ValueWriter& writer, const char (&value)[n]) {
    internal::encode_text(writer, {value, strnlen(value, n)});
  }
};

template <>
struct ValueCodec<std::string> {
  static void encode(ValueWriter& writer, const std::string& value) { internal::encode_text(writer, value); }
  static bool decode(ValueReader& reader, std::string& out) {
    std::string_view text;
    if (!reader.str(text)) return false;
    out = text;
    return true;
  }
};

template <>
struct ValueCodec<std::span<const std::byte>> {
  static void encode(ValueWriter& writer, std::span<const std::byte> value) { writer.bytes(value); }
};

template <>
struct ValueCodec<std::vector<std::byte>> {
  static void encode(ValueWriter& writer, const std::vector<std::byte>& value) { writer.bytes(value); }
  static bool decode(ValueReader& reader, std::vector<std::byte>& out) {
    std::span<const std::byte> raw;
    if (!reader.bytes(raw)) return false;
    out.assign(raw.begin(), raw.end());
    return true;
  }
};

template <Encodable T>
struct ValueCodec<std::vector<T>> {
  static void encode(ValueWriter& writer, const std::vector<T>& value) {
    if (!internal::count_fits(writer, value.size())) return;
    writer.begin_list(static_cast<uint32_t>(value.size()));
    for (const T& item : value) ValueCodec<T>::encode(writer, item);
  }
  static bool decode(ValueReader& reader, std::vector<T>& out) requires Decodable<T> {
    uint32_t count;
    if (!reader.begin_list(count)) return false;
    out.clear();
    out.reserve(std::min<size_t>(count, internal::kReservedItemsMax));
    for (; count > 0; --count) {
      T item{};
      if (!ValueCodec<T>::decode(reader, item)) return false;
      out.push_back(std::move(item));
    }
    reader.end();
    return true;
  }
};

// Items may be references: std::tie(a, b) encodes and decodes in place.
template <typename... Ts>
  requires(Encodable<std::remove_cvref_t<Ts>> && ...)
struct ValueCodec<std::tuple<Ts...>> {
  static void encode(ValueWriter& writer, const std::tuple<Ts...>& value) {
    writer.begin_tuple(sizeof...(Ts));
    std::apply([&](const auto&... items) { (monarch::encode(writer, items), ...); }, value);
  }
  static bool decode(ValueReader& reader, std::tuple<Ts...>& out)
    requires(Decodable<std::remove_cvref_t<Ts>> && ...)
  {
    if (!internal::begin_tuple_of(reader, sizeof...(Ts))) return false;
    if (!std::apply([&](auto&... items) { return (decode_into(reader, items) && ...); }, out)) return false;
    reader.end();
    return true;
  }
};

template <Encodable A, Encodable B>
struct ValueCodec<std::pair<A, B>> {
  static void encode(ValueWriter& writer, const std::pair<A, B>& value) {
    monarch::encode(writer, std::tie(value.first, value.second));
  }
  static bool decode(ValueReader& reader, std::pair<A, B>& out) requires(Decodable<A> && Decodable<B>) {
    return decode_into(reader, std::tie(out.first, out.second));
  }
};

namespace internal {

template <typename Map>
struct DictCodec {
  using T = typename Map::mapped_type;

  static void encode(ValueWriter& writer, const Map& value) {
    if (!count_fits(writer, value.size())) return;
    writer.begin_dict(static_cast<uint32_t>(value.size()));
    for (const auto& [key, item] : value) {
      encode_text(writer, key);
      ValueCodec<T>::encode(writer, item);
    }
  }
  static bool decode(ValueReader& reader, Map& out) requires Decodable<T> {
    uint32_t pairs;
    if (!reader.begin_dict(pairs)) return false;
    out.clear();
    for (; pairs > 0; --pairs) {
      std::string_view key;
      T item{};
      if (!reader.str(key) || !ValueCodec<T>::decode(reader, item)) return false;
      if (!out.emplace(key, std::move(item)).second)
        return reader.refuse("expected a dict, got one with a key twice");
    }
    reader.end();
    return true;
  }
};

}  // namespace internal

template <Encodable T>
struct ValueCodec<std::map<std::string, T>> : internal::DictCodec<std::map<std::string, T>> {};

template <Encodable T>
struct ValueCodec<std::unordered_map<std::string, T>> : internal::DictCodec<std::unordered_map<std::string, T>> {};

template <Encodable T>
  requires(!internal::kMayBeNone<T>)
struct ValueCodec<std::optional<T>> {
  static void encode(ValueWriter& writer, const std::optional<T>& value) {
    value ? ValueCodec<T>::encode(writer, *value) : writer.none();
  }
  static bool decode(ValueReader& reader, std::optional<T>& out) requires Decodable<T> {
    out.reset();
    if (reader.peek() == ValueTag::kNone) return reader.none();
    return ValueCodec<T>::decode(reader, out.emplace());
  }
};

template <typename Unit>
  requires(std::same_as<Unit, std::monostate> || std::same_as<Unit, Ok>)
struct ValueCodec<Unit> {
  static void encode(ValueWriter& writer, Unit) { writer.none(); }
  static bool decode(ValueReader& reader, Unit&) { return reader.none(); }
};

}  // namespace monarch
