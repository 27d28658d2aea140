#include "monarch/net/tcp/chunks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "monarch/base/check.h"

namespace monarch {

ChunkHeader encode_chunk(ChunkLane lane, uint32_t size) {
  ChunkHeader header{};
  std::memcpy(header.data(), &size, sizeof size);
  header[4] = static_cast<std::byte>(lane);
  return header;
}

ChunkReader::ChunkReader(NodeId from, uint64_t control_max, RecordMemory* memory)
    : from_(from),
      memory_(memory),
      data_(std::make_unique<RecordAssembler>(ArenaParts::kRefused)),
      control_(ArenaParts::kRefused, control_max) {}

std::unique_ptr<RecordAssembler> ChunkReader::take_begun() {
  if (!error_.empty() || data_->begun() == 0) return nullptr;
  return std::exchange(data_, std::make_unique<RecordAssembler>(ArenaParts::kRefused));
}

bool ChunkReader::go_on_with(std::unique_ptr<RecordAssembler> begun) {
  if (data_->begun() != 0) return false;
  data_ = std::move(begun);
  return true;
}

bool ChunkReader::begin_chunk() {
  header_size_ = 0;
  std::memcpy(&left_, header_.data(), sizeof left_);
  lane_ = static_cast<ChunkLane>(header_[4]);
  const bool zeros = header_[5] == std::byte{0} && header_[6] == std::byte{0} && header_[7] == std::byte{0};
  const bool word = lane_ > ChunkLane::kControl;
  const bool told_twice = is_striped_ && (lane_ == ChunkLane::kStriped || lane_ == ChunkLane::kData);
  if (!zeros || lane_ > ChunkLane::kStripe || left_ > kChunkMax || (left_ == 0) != word || told_twice) {
    error_ = "it does not say of which lane the next bytes are";
    return false;
  }
  is_striped_ = is_striped_ || lane_ == ChunkLane::kStriped;
  is_stripe_ = lane_ == ChunkLane::kStripe;
  return true;
}

std::span<std::byte> ChunkReader::direct() {
  if (left_ == 0 || !error_.empty()) return {};
  const std::span<std::byte> room = assembler().buffer();
  return room.first(std::min<size_t>(room.size(), left_));
}

bool ChunkReader::took(size_t count, const Take& take) {
  left_ -= static_cast<uint32_t>(count);
  if (!assembler().advance(count, from_, lane_ == ChunkLane::kControl ? nullptr : memory_)) {
    error_ = assembler().error();
    return false;
  }
  if (MessagePtr done = assembler().take()) take(lane_, std::move(done));
  return true;
}

bool ChunkReader::data_advance(size_t count, const Take& take) {
  if (!error_.empty()) return false;
  if (!data_->advance(count, from_, memory_)) return fail(data_->error().c_str()), false;
  if (MessagePtr done = data_->take()) take(ChunkLane::kData, std::move(done));
  return true;
}

bool ChunkReader::advance(size_t count, const Take& take) { return error_.empty() && took(count, take); }

bool ChunkReader::feed(ByteSpan bytes, const Take& take) {
  MONARCH_CHECK(!is_stripe_);
  while (!bytes.empty() && error_.empty()) {
    if (left_ == 0) {
      const size_t count = std::min(bytes.size(), kChunkHeader - header_size_);
      std::memcpy(header_.data() + header_size_, bytes.data(), count);
      header_size_ += count;
      bytes = bytes.subspan(count);
      if (header_size_ == kChunkHeader && !begin_chunk()) return false;
      if (is_stripe_) return rest_ = bytes.size(), true;
      continue;
    }
    const std::span<std::byte> room = direct();
    const size_t count = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    if (!took(count, take)) return false;
  }
  return error_.empty();
}

}  // namespace monarch
