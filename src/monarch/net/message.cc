#include "monarch/net/message.h"

#include <new>
#include <string>

#include "monarch/net/message_blocks.h"

namespace monarch {

namespace {
// Above this a record lives in a block of its own that its parts alias; below, parts are copied out of it.
constexpr uint64_t kLargeRecord = 64 * 1024;

Part heap_part(const std::byte* data, size_t size) {
  Part part;
  part.size = size;
  if (size != 0) {
    std::shared_ptr<std::byte[]> block(new std::byte[size]);
    std::memcpy(block.get(), data, size);
    part.data = block.get();
    part.owner = std::move(block);
  }
  return part;
}
}  // namespace

Message::Ptr Message::allocate(uint64_t record_size) {
  const bool large = record_size > kLargeRecord;
  // A large size may come from a peer: no memory for it ends that peer's link, not this process.
  auto* block = large ? static_cast<std::byte*>(::operator new(record_size, std::nothrow)) : nullptr;
  if (large && block == nullptr) return nullptr;
  const size_t size = sizeof(Message) + (large ? 0 : record_size);
  const bool small = size <= internal::kMessageBlockBytes;
  auto* message = new (small ? internal::take_message_block() : ::operator new(size)) Message;
  message->is_block_ = small;
  message->record_size_ = record_size;
  if (large) {
    message->large_ = std::shared_ptr<std::byte>(block, [](std::byte* bytes) { ::operator delete(bytes); });
    message->record_ = message->large_.get();
  } else {
    message->record_ = reinterpret_cast<std::byte*>(message + 1);
  }
  return Ptr(message);
}

void Message::destroy(Message* message) {
  const bool is_block = message->is_block_;
  message->~Message();
  is_block ? internal::return_message_block(message) : ::operator delete(message);
}

bool Message::decode(std::string* why) {
  auto view = decode_frame(ByteSpan(record_, record_size_));
  if (!view) {
    *why = view.error().message;
    return false;
  }
  header = view->header;
  body = view->body;
  if (header.part_count == 0) return true;
  parts.reserve(header.part_count);
  uint64_t offset = view->inline_offset;
  for (uint32_t i = 0; i < header.part_count; ++i) {
    const PartRef ref = view->part(i);
    if (ref.location != 0) {
      arena_refs_.push_back({i, ArenaLocation::unpack(ref.location)});
      parts.push_back(Part{nullptr, ref.size, nullptr});
    } else {
      if (large_) {
        parts.push_back(Part{record_ + offset, ref.size, large_});
      } else {
        parts.push_back(heap_part(record_ + offset, ref.size));
      }
      offset = align8(offset + ref.size);
    }
  }
  return true;
}

Message::Ptr Message::copy_of(const Outgoing& outgoing, NodeId from) {
  MONARCH_CHECK(outgoing.parts.size() <= kPartsMax && outgoing.body.size() <= UINT32_MAX);
  Ptr message = allocate(align8(outgoing.body.size()));
  MONARCH_CHECK(message != nullptr);
  message->from = from;
  message->header = outgoing.header;
  message->header.body_size = static_cast<uint32_t>(outgoing.body.size());
  message->header.part_count = static_cast<uint16_t>(outgoing.parts.size());
  if (!outgoing.body.empty()) std::memcpy(message->record_, outgoing.body.data(), outgoing.body.size());
  message->body = ByteSpan(message->record_, outgoing.body.size());
  message->parts.reserve(outgoing.parts.size());
  for (const ByteSpan& part : outgoing.parts) message->parts.push_back(heap_part(part.data(), part.size()));
  return message;
}

Message::Ptr Message::make(FrameHeader header, std::string_view body, NodeId from) {
  return copy_of(Outgoing{header, as_byte_span(body.data(), body.size()), {}}, from);
}

uint64_t Message::total_bytes() const {
  uint64_t total = body.size();
  for (const Part& part : parts) total += part.size;
  return total;
}

uint64_t record_size_of(const Outgoing& outgoing, std::span<const uint64_t> locations) {
  uint64_t size =
      align8(kRecordPrologue + outgoing.parts.size() * sizeof(PartRef) + outgoing.body.size());
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    if (locations.empty() || locations[i] == 0) size += align8(outgoing.parts[i].size());
  }
  return size;
}

std::vector<std::byte> encode_to_vector(const Outgoing& outgoing, std::span<const uint64_t> locations) {
  std::vector<std::byte> record;
  const uint64_t size = record_size_of(outgoing, locations);
  record.reserve(size);
  encode_record(outgoing, locations, size, [&record](const void* data, size_t count) {
    const auto* bytes = static_cast<const std::byte*>(data);
    record.insert(record.end(), bytes, bytes + count);
  });
  return record;
}

std::span<std::byte> RecordAssembler::buffer() {
  if (have_ < sizeof size_bytes_) return {size_bytes_ + have_, sizeof size_bytes_ - have_};
  return {current_->record() + have_, static_cast<size_t>(current_->record_size() - have_)};
}

bool RecordAssembler::advance(size_t count, NodeId from) {
  if (!error_.empty()) return false;
  have_ += count;
  if (!current_) {
    if (have_ < sizeof size_bytes_) return true;
    uint64_t size;
    std::memcpy(&size, size_bytes_, sizeof size);
    if (!valid_record_size(size) || size > record_size_max_) {
      error_ = "frame of " + std::to_string(size) + " bytes is not allowed";
      return false;
    }
    current_ = Message::allocate(size);
    if (!current_) {
      error_ = "no memory for a frame of " + std::to_string(size) + " bytes";
      return false;
    }
    std::memcpy(current_->record(), size_bytes_, sizeof size_bytes_);
  }
  if (have_ < current_->record_size()) return true;
  have_ = 0;
  done_ = std::move(current_);
  done_->from = from;
  if (done_->decode(&error_)) return true;
  done_ = nullptr;
  return false;
}

}  // namespace monarch
