#include "monarch/net/tcp/chunk_output.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "monarch/base/check.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr size_t kPiecesPerChunk = 128;
constexpr size_t kPiecesPerCall = 256;
// A record of so many bytes is copied as a whole; of a larger one the pieces of kPieceMin stay where they are.
constexpr uint64_t kFlatMax = 16 << 10;
// From here on there may be no memory for it.
constexpr uint64_t kLargeRecord = 64 << 10;

}  // namespace

std::shared_ptr<OutRecord> OutRecord::make(const Outgoing& outgoing, bool kept) {
  const uint64_t size = record_size_of(outgoing, {});
  if (size > kLargeRecord && sys::must_fail(ENOMEM)) throw std::bad_alloc();
  auto record = std::make_shared<OutRecord>();
  record->left = size;
  const bool flat = size <= kFlatMax;
  uint64_t outside = 0;  // bytes that stay where they are
  const auto stays = [flat](size_t count) { return !flat && count >= kPieceMin; };
  if (stays(outgoing.body.size())) outside += outgoing.body.size();
  for (const ByteSpan& part : outgoing.parts) outside += stays(part.size()) ? part.size() : 0;
  // Room for the whole of it, where the rest may have to be copied later; what is not written to costs nothing.
  record->bytes.reset(new std::byte[kept ? size - outside : size]);
  std::byte* at = record->bytes.get();
  encode_record(outgoing, {}, size, [&](const void* data, size_t count) {
    if (stays(count)) {
      record->pieces.push_back({const_cast<void*>(data), count});
      record->borrows = !kept;
      if (!kept) at += count;
      return;
    }
    std::memcpy(at, data, count);
    iovec* last = record->pieces.empty() ? nullptr : &record->pieces.back();
    if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == at) {
      last->iov_len += count;
    } else {
      record->pieces.push_back({at, count});
    }
    at += count;
  });
  return record;
}

void OutRecord::leave_out(uint64_t begun) {
  MONARCH_CHECK(begun < left);
  left -= begun;
  while (begun != 0) {
    iovec& piece = pieces[next];
    const size_t taken = std::min<uint64_t>(begun, piece.iov_len);
    begun -= taken;
    piece = {static_cast<std::byte*>(piece.iov_base) + taken, piece.iov_len - taken};
    if (piece.iov_len == 0) ++next;
  }
}

ChunkOutput::Piece& ChunkOutput::add_header(size_t size) {
  Piece& piece = pieces_.emplace_back();
  piece.bytes = {piece.header.data(), size};
  committed_ += size;
  return piece;
}

void ChunkOutput::add_word(ChunkLane lane) {
  const ChunkHeader header = encode_chunk(lane, 0);
  std::copy(header.begin(), header.end(), add_header(kChunkHeader).header.begin());
}

void ChunkOutput::add_stripe_sign() { add_header(kStripeHeader).header = encode_stripe_chunk(0, 0); }

uint32_t ChunkOutput::add_bytes(OutRecords& records) {
  uint32_t size = 0;
  for (size_t count = 0; !records.empty() && size < kChunkBytes && count < kPiecesPerChunk; ++count) {
    const std::shared_ptr<OutRecord>& record = records.front();
    iovec& rest = record->pieces[record->next];
    const size_t taken = std::min<size_t>(rest.iov_len, kChunkBytes - size);
    Piece& piece = pieces_.emplace_back();
    piece.bytes = {rest.iov_base, taken};
    piece.record = record;
    piece.left = record->left;
    size += static_cast<uint32_t>(taken);
    record->left -= taken;
    rest = {static_cast<std::byte*>(rest.iov_base) + taken, rest.iov_len - taken};
    if (rest.iov_len == 0) ++record->next;
    if (record->next == record->pieces.size()) records.pop_front();
  }
  committed_ += size;
  return size;
}

uint32_t ChunkOutput::add_chunk(ChunkLane lane, OutRecords& records) {
  Piece& piece = add_header(kChunkHeader);
  const uint32_t size = add_bytes(records);
  const ChunkHeader header = encode_chunk(lane, size);
  std::copy(header.begin(), header.end(), piece.header.begin());
  return size;
}

uint32_t ChunkOutput::add_stripe_chunk(uint64_t number, OutRecords& records) {
  Piece& piece = add_header(kStripeHeader);
  const uint32_t size = add_bytes(records);
  piece.header = encode_stripe_chunk(size, number);
  return size;
}

ChunkOutput::Written ChunkOutput::write(uint64_t room, uint64_t* of_records) {
  std::array<iovec, kPiecesPerCall> batch;
  size_t count = 0;
  for (auto piece = pieces_.begin(); piece != pieces_.end() && count < batch.size() && room != 0; ++piece) {
    iovec& bytes = batch[count++] = piece->bytes;
    bytes.iov_len = std::min<size_t>(bytes.iov_len, room);
    room -= bytes.iov_len;
  }
  const ssize_t written = channel_->write({batch.data(), count});
  if (written < 0 && is_no_room(errno)) return Written::kNoRoom;
  if (written < 0 && is_shortage(errno)) return Written::kShortage;
  if (written < 0) return Written::kBroken;
  for (auto left = static_cast<size_t>(written); left != 0;) {
    Piece& front = pieces_.front();
    const size_t taken = std::min(left, front.bytes.iov_len);
    left -= taken;
    committed_ -= taken;
    if (front.record) *of_records += taken;
    if (taken == front.bytes.iov_len) {
      pieces_.pop_front();
    } else {
      front.bytes = {static_cast<std::byte*>(front.bytes.iov_base) + taken, front.bytes.iov_len - taken};
      front.left -= taken;
    }
  }
  return Written::kSome;
}

}  // namespace monarch
