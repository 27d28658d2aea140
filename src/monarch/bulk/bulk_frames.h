// What the cells of two Bulks send each other, as values (wire/value_codec.h).
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "monarch/bulk/bulk.h"
#include "monarch/bulk/stream.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

template <>
struct ValueCodec<Memory::Dim> {
  static auto fields(auto& d) { return std::tie(d.count, d.stride); }
  static void encode(ValueWriter& writer, const Memory::Dim& dim) { monarch::encode(writer, fields(dim)); }
  static bool decode(ValueReader& reader, Memory::Dim& dim) { return decode_into(reader, fields(dim)); }
};

template <>
struct ValueCodec<BufferPart> {
  static auto fields(auto& p) { return std::tie(p.offset, p.size); }
  static void encode(ValueWriter& writer, const BufferPart& part) { monarch::encode(writer, fields(part)); }
  static bool decode(ValueReader& reader, BufferPart& part) { return decode_into(reader, fields(part)); }
};

template <>
struct ValueCodec<BufferHandle> {
  static auto fields(auto& h) {
    return std::tie(h.owner, h.index, h.generation, h.key.low, h.key.high, h.writable, h.offset, h.size, h.run, h.dims,
                    h.within);
  }
  static void encode(ValueWriter& writer, const BufferHandle& handle) { monarch::encode(writer, fields(handle)); }
  static bool decode(ValueReader& reader, BufferHandle& handle) { return decode_into(reader, fields(handle)); }
};

// What every request but kContact begins with.
struct Wanted {
  BufferHandle handle;
  uint64_t at = 0, size = 0;  // which of its bytes
  // On which machine it was asked for, and until when on the clock of that: what has waited in a process that was stopped
  // is not done when nobody wants it any more. On others the time that is left counts from its arrival.
  uint64_t machine = 0;
  int64_t deadline_ns = kNoDeadline;
};

template <>
struct ValueCodec<Wanted> {
  static auto fields(auto& w) { return std::tie(w.handle, w.at, w.size, w.machine, w.deadline_ns); }
  static void encode(ValueWriter& writer, const Wanted& wanted) { monarch::encode(writer, fields(wanted)); }
  static bool decode(ValueReader& reader, Wanted& wanted) { return decode_into(reader, fields(wanted)); }
};

// Of an answer; of a failure only that there was one.
struct AnswerBody {
  uint8_t code = 0, refusal = 0;
  int64_t value = 0;
  std::string text;
};

template <>
struct ValueCodec<AnswerBody> {
  static auto fields(auto& a) { return std::tie(a.code, a.refusal, a.value, a.text); }
  static void encode(ValueWriter& writer, const AnswerBody& answer) { monarch::encode(writer, fields(answer)); }
  static bool decode(ValueReader& reader, AnswerBody& answer) { return decode_into(reader, fields(answer)); }
};

// On a stream (stream_end.h): a value behind four bytes with its size, to which the other side says an AnswerBody. Behind
// that come the bytes that were asked for, or are to come those that are to be written, and a second answer.
struct StreamRequest {
  static constexpr uint8_t kUseUcx = 255;
  uint8_t kind = 0;  // BulkOperation's: a read or a write; or kUseUcx
  Wanted wanted;
  int64_t left_ns = kNoDeadline;  // from its arrival on
  // Of kUseUcx: where the dialer's end is, and what both put on their messages. Behind an answer of kDone comes a value of
  // its own, where the owner's is; of any other the text says why there is none.
  std::vector<std::byte> address{};
  uint64_t tag = 0;
};

template <>
struct ValueCodec<StreamRequest> {
  static auto fields(auto& r) { return std::tie(r.kind, r.wanted, r.left_ns, r.address, r.tag); }
  static void encode(ValueWriter& writer, const StreamRequest& request) { monarch::encode(writer, fields(request)); }
  static bool decode(ValueReader& reader, StreamRequest& request) { return decode_into(reader, fields(request)); }
};

template <>
struct ValueCodec<StreamAddress> {
  static auto fields(auto& a) { return std::tie(a.host, a.port, a.enciphered, a.why_not); }
  static void encode(ValueWriter& writer, const StreamAddress& address) { monarch::encode(writer, fields(address)); }
  static bool decode(ValueReader& reader, StreamAddress& address) { return decode_into(reader, fields(address)); }
};

Status send_value(StreamEnd& end, ByteSpan value, int64_t deadline_ns);
// kMalformed: it is too large.
Result<std::vector<std::byte>> receive_value(StreamEnd& end, int64_t deadline_ns);

// None: it cannot be read.
std::optional<BulkOutcome> outcome_of(const AnswerBody& body);

// What has come of a request; of one whose caller has given up, kDeadline.
BulkOutcome outcome_of(const Message& answer);

}  // namespace monarch
