// Any bytes: the reader stays inside them, all ways to read agree on what is well-formed, and a value that is
// decoded and encoded again gives the same bytes.
#include <string>
#include <vector>

#include "monarch/wire/value_codec.h"

namespace monarch {
namespace {

bool copy(ValueReader& reader, ValueWriter& writer);

bool copy_items(ValueReader& reader, ValueWriter& writer, uint64_t count) {
  for (; count > 0; --count) {
    if (!copy(reader, writer)) return false;
  }
  reader.end();
  return true;
}

bool copy(ValueReader& reader, ValueWriter& writer) {
  bool boolean;
  int64_t integer;
  double number;
  std::string_view text;
  std::span<const std::byte> raw;
  uint32_t count;
  switch (reader.peek()) {
    case ValueTag::kNone: return reader.none() && (writer.none(), true);
    case ValueTag::kFalse:
    case ValueTag::kTrue: return reader.boolean(boolean) && (writer.boolean(boolean), true);
    case ValueTag::kInt64:
    case ValueTag::kInt8: return reader.integer(integer) && (writer.integer(integer), true);
    case ValueTag::kFloat64: return reader.number(number) && (writer.number(number), true);
    case ValueTag::kStr: return reader.str(text) && (writer.str(text), true);
    case ValueTag::kBytes: return reader.bytes(raw) && (writer.bytes(raw), true);
    case ValueTag::kTuple:
      return reader.begin_tuple(count) && (writer.begin_tuple(count), copy_items(reader, writer, count));
    case ValueTag::kList:
      return reader.begin_list(count) && (writer.begin_list(count), copy_items(reader, writer, count));
    case ValueTag::kDict:
      return reader.begin_dict(count) &&
             (writer.begin_dict(count), copy_items(reader, writer, 2 * uint64_t{count}));
    case ValueTag::kInvalid: break;
  }
  return reader.none();  // fails, and says why
}

template <typename T>
void decode_as(std::span<const std::byte> bytes, bool well_formed) {
  Result<T> result = decode<T>(bytes);
  if (!result.ok()) {
    MONARCH_CHECK(!result.error().message.empty());
    return;
  }
  MONARCH_CHECK(well_formed);
  ValueWriter writer;
  encode(writer, *result);
  MONARCH_CHECK(writer.failure() == nullptr && validate(writer.written()));
}

void check(std::span<const std::byte> bytes) {
  const bool well_formed = validate(bytes);
  ValueReader reader(bytes);
  ValueWriter writer;
  const bool copied = copy(reader, writer) && reader.done();
  MONARCH_CHECK(copied == well_formed);
  if (copied) {
    MONARCH_CHECK(writer.size() == bytes.size() && std::memcmp(writer.data(), bytes.data(), bytes.size()) == 0);
    MONARCH_CHECK(!validate(bytes.first(bytes.size() / 2)));  // no value begins another
  } else if (reader.failed()) {
    MONARCH_CHECK(reader.error().code == ErrorCode::kMalformed);
  }
  decode_as<std::tuple<int, int>>(bytes, well_formed);
  decode_as<std::vector<double>>(bytes, well_formed);
  decode_as<std::map<std::string, uint16_t>>(bytes, well_formed);
  decode_as<std::vector<std::optional<std::pair<std::string, std::vector<std::byte>>>>>(bytes, well_formed);
  decode_as<std::tuple<bool, float, std::monostate, std::vector<std::tuple<>>>>(bytes, well_formed);
}

}  // namespace
}  // namespace monarch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  monarch::check({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
