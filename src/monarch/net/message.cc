#include "monarch/net/message.h"

#include <errno.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "monarch/base/system.h"
#include "monarch/net/freezable.h"
#include "monarch/net/message_blocks.h"

namespace monarch {

namespace {
// Above this a record lives in a block of its own that its parts alias; below, parts are copied out of it.
constexpr uint64_t kLargeRecord = 64 * 1024;
// A record whose parts have so many bytes each, in the mean, is read part by part, if it has a small head: in larger ones
// it is the body that is large.
constexpr uint64_t kReadPartMin = 16 * 1024;  // links copy what is smaller (ShmLink::kArenaPartMin)
constexpr uint64_t kReadHeadMax = 1024 * 1024;
// Of a large record that there is no memory for, this is read: the header, and where its first parts lie.
constexpr uint64_t kLostRecordHead = 4096;

// `size` is not 0. Null: no memory, of a large block; of a small one std::bad_alloc.
std::shared_ptr<std::byte> heap_block(uint64_t size) {
  if (size <= kLargeRecord) return {new std::byte[size], std::default_delete<std::byte[]>()};
  std::byte* const block = internal::take_large_block(size);
  return block == nullptr ? nullptr : std::shared_ptr<std::byte>(block, &internal::return_large_block);
}

Part heap_part(const std::byte* data, size_t size) {
  Part part;
  part.size = size;
  if (size != 0) {
    std::shared_ptr<std::byte> block = heap_block(size);
    if (block == nullptr) throw std::bad_alloc();
    std::memcpy(block.get(), data, size);
    part.data = block.get();
    part.owner = std::move(block);
  }
  return part;
}

// How much of a record of `size` bytes stands before its parts, which are to be read one by one; 0: all of it is to be read
// in one piece. `have`: bytes that have come.
uint64_t size_before_parts(const FrameHeader& header, uint64_t size, uint64_t have) {
  if (header.part_count == 0 || header.part_count > kPartsMax || header.body_size > kReadHeadMax) return 0;
  const uint64_t route_size = (header.flags & kFlagRouted) != 0 ? sizeof(FrameRoute) : 0;
  const uint64_t table_size = uint64_t{header.part_count} * sizeof(PartRef);
  const uint64_t before = align8(kRecordPrologue + route_size + table_size + header.body_size);
  if (before < have || before >= size || before > kReadHeadMax) return 0;
  return (size - before) / header.part_count < kReadPartMin ? 0 : before;
}

// Null: it is well-formed.
const char* wrong_location(uint64_t location, ArenaParts arena_parts) {
  if (arena_parts == ArenaParts::kRefused) return "a part in an arena, on a lane that has none";
  const ArenaLocation at = ArenaLocation::unpack(location);
  return at.pack() != location ? "a part at a location that is none" : nullptr;
}
}  // namespace

Message::Ptr Message::allocate(uint64_t record_size) {
  const bool large = record_size > kLargeRecord;
  // A large size may come from a peer: no memory for it costs that message, not this process.
  std::byte* block = nullptr;
  if (large && !sys::must_fail(ENOMEM)) block = internal::take_large_block(record_size);
  if (large && block == nullptr) return nullptr;
  const size_t size = sizeof(Message) + (large ? 0 : record_size);
  const bool small = size <= internal::kMessageBlockBytes;
  auto* message = new (small ? internal::take_message_block() : ::operator new(size)) Message;
  message->is_block_ = small;
  message->record_size_ = record_size;
  if (large) {
    message->large_ = std::shared_ptr<std::byte>(block, &internal::return_large_block);
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

bool Message::decode(ArenaParts arena_parts, std::string* why) {
  auto view = decode_frame(ByteSpan(record_, record_size_));
  if (!view) {
    *why = view.error().message;
    return false;
  }
  header = view->header;
  route_ = view->route;
  body = view->body;
  if (header.part_count == 0) return true;
  parts.reserve(header.part_count);
  uint64_t offset = view->inline_offset;
  for (uint32_t i = 0; i < header.part_count; ++i) {
    const PartRef ref = view->part(i);
    if (ref.location != 0) {
      if (const char* wrong = wrong_location(ref.location, arena_parts)) {
        *why = wrong;
        return false;
      }
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

bool Message::decode_head(uint64_t record_size, std::string* why) {
  auto view = decode_frame(ByteSpan(record_, record_size_), record_size);
  if (!view) {
    *why = view.error().message;
    return false;
  }
  header = view->header;
  route_ = view->route;
  body = view->body;
  parts.reserve(header.part_count);
  for (uint32_t i = 0; i < header.part_count; ++i) {
    const PartRef ref = view->part(i);
    if (ref.location != 0) {
      *why = wrong_location(ref.location, ArenaParts::kRefused);
      return false;
    }
    parts.push_back(Part{nullptr, ref.size, nullptr});
  }
  return true;
}

bool Message::decode_lost(uint64_t record_size, ArenaParts arena_parts, std::string* why) {
  std::memcpy(&header, record_ + sizeof record_size, sizeof header);
  const auto kind = static_cast<uint8_t>(header.kind);
  if (kind == 0 || kind > kFrameKindMax) {
    *why = "unknown frame kind";
    return false;
  }
  uint64_t at = kRecordPrologue;
  if ((header.flags & kFlagRouted) != 0) {
    route_ = record_ + at;
    at += sizeof(FrameRoute);
  }
  for (uint32_t i = 0; i < header.part_count && at + sizeof(PartRef) <= record_size_; ++i, at += sizeof(PartRef)) {
    PartRef ref;
    std::memcpy(&ref, record_ + at, sizeof ref);
    if (ref.location == 0) continue;
    if (const char* wrong = wrong_location(ref.location, arena_parts)) {
      *why = wrong;
      return false;
    }
    arena_refs_.push_back({static_cast<uint32_t>(parts.size()), ArenaLocation::unpack(ref.location)});
    parts.push_back(Part{nullptr, ref.size, nullptr});
  }
  lost_bytes = record_size;
  body = {};
  header.body_size = 0;
  header.part_count = 0;
  return true;
}

Message::Ptr Message::copy_of(const Outgoing& outgoing, NodeId from, std::shared_ptr<const void> keeper) {
  const bool routed = (outgoing.header.flags & kFlagRouted) != 0;
  const uint64_t body_room = align8(outgoing.body.size());
  Ptr message = allocate(body_room + (routed ? sizeof(FrameRoute) : 0));
  if (!message) throw std::bad_alloc();
  message->from = from;
  message->header = header_of(outgoing);
  message->deadline_ns = outgoing.deadline_ns;
  if (!outgoing.body.empty()) std::memcpy(message->record_, outgoing.body.data(), outgoing.body.size());
  message->body = ByteSpan(message->record_, outgoing.body.size());
  if (routed) {
    std::memcpy(message->record_ + body_room, &outgoing.route, sizeof outgoing.route);
    message->route_ = message->record_ + body_room;
  }
  message->parts.reserve(outgoing.parts.size());
  const auto owner = std::const_pointer_cast<void>(std::move(keeper));
  for (const ByteSpan& part : outgoing.parts) {
    std::shared_ptr<void> kept = owner ? owner : Freezable::find_frozen(part);
    message->parts.push_back(kept ? Part{const_cast<std::byte*>(part.data()), part.size(), std::move(kept)}
                                  : heap_part(part.data(), part.size()));
  }
  return message;
}

Message::Ptr Message::make(FrameHeader header, std::string_view body, NodeId from) {
  return copy_of(Outgoing{header, as_byte_span(body.data(), body.size()), {}}, from);
}

FrameRoute Message::route() const {
  FrameRoute route;
  if (route_ != nullptr) std::memcpy(&route, route_, sizeof route);
  return route;
}

uint64_t Message::total_bytes() const {
  uint64_t total = body.size();
  for (const Part& part : parts) total += part.size;
  return total;
}

FrameHeader header_of(const Outgoing& outgoing) {
  MONARCH_CHECK(outgoing.parts.size() <= kPartsMax && outgoing.body.size() <= kRecordSizeMax);
  FrameHeader header = outgoing.header;
  header.body_size = outgoing.body.size();
  header.part_count = static_cast<decltype(header.part_count)>(outgoing.parts.size());
  static_assert(kPartsMax <= std::numeric_limits<decltype(header.part_count)>::max());
  static_assert(kRecordSizeMax <= std::numeric_limits<decltype(header.body_size)>::max());
  return header;
}

uint64_t record_size_of(const Outgoing& outgoing, std::span<const uint64_t> locations) {
  const uint64_t route_size = (outgoing.header.flags & kFlagRouted) != 0 ? sizeof(FrameRoute) : 0;
  uint64_t size =
      align8(kRecordPrologue + route_size + outgoing.parts.size() * sizeof(PartRef) + outgoing.body.size());
  for (size_t i = 0; i < outgoing.parts.size(); ++i) {
    if (locations.empty() || locations[i] == 0) size += align8(outgoing.parts[i].size());
  }
  return size;
}

std::vector<std::byte> encode_to_vector(const Outgoing& outgoing, std::span<const uint64_t> locations) {
  std::vector<std::byte> record;
  const uint64_t size = record_size_of(outgoing, locations);
  if (size > kLargeRecord && sys::must_fail(ENOMEM)) throw std::bad_alloc();
  record.reserve(size);
  encode_record(outgoing, locations, size, [&record](const void* data, size_t count) {
    const auto* bytes = static_cast<const std::byte*>(data);
    record.insert(record.end(), bytes, bytes + count);
  });
  return record;
}

// Of a large record it is known how it is to be read before there is memory for it.
size_t RecordAssembler::head_wanted() const {
  uint64_t size = 0;
  if (have_ < sizeof size) return sizeof size;
  std::memcpy(&size, head_, sizeof size);
  return size > kLargeRecord && is_allowed(size) ? sizeof head_ : sizeof size;
}

std::span<std::byte> RecordAssembler::buffer() {
  if (!current_) return {head_ + have_, head_wanted() - static_cast<size_t>(have_)};
  if (have_ < current_->record_size()) return {current_->record() + have_, current_->record_size() - have_};
  if (rest_ == Rest::kInParts) return part_room_;
  return {ignored_, std::min<uint64_t>(size_ - have_, sizeof ignored_)};
}

bool RecordAssembler::advance(size_t count, NodeId from, RecordMemory* memory) {
  if (!error_.empty()) return false;
  if (current_ && rest_ == Rest::kInParts && have_ >= current_->record_size()) part_room_ = part_room_.subspan(count);
  have_ += count;
  if (!current_) {
    if (have_ < head_wanted()) return true;
    if (!begin_record(memory != nullptr && arena_parts_ == ArenaParts::kRefused)) return false;
    std::memcpy(current_->record(), head_, have_);
  }
  if (have_ < current_->record_size()) return true;
  if (rest_ == Rest::kInParts && part_room_.empty() && !begin_part(memory)) return false;
  return have_ < size_ || end_record(from);
}

// What there is no memory for is read all the same, and what it was is told to whoever waits for it.
bool RecordAssembler::begin_record(bool in_parts) {
  struct {
    uint64_t size;
    FrameHeader header;
  } head{};
  static_assert(sizeof head == kRecordPrologue);
  std::memcpy(&head, head_, std::min<size_t>(have_, sizeof head));
  size_ = head.size;
  rest_ = Rest::kNone;
  if (!is_allowed(size_)) {
    error_ = "frame of " + std::to_string(size_) + " bytes is not allowed";
    return false;
  }
  if (const uint64_t before = in_parts && size_ > kLargeRecord ? size_before_parts(head.header, size_, have_) : 0) {
    rest_ = Rest::kInParts;
    next_part_ = 0;
    current_ = Message::allocate(before);
  } else {
    current_ = Message::allocate(size_);
  }
  if (current_) return true;
  if (record_size_max_ < kRecordSizeMax) {  // control: nobody waits for an answer to that
    error_ = "no memory for a frame of " + std::to_string(size_) + " bytes";
    return false;
  }
  rest_ = Rest::kLost;
  current_ = Message::allocate(kLostRecordHead);
  return true;
}

// Where the next part goes that has bytes. Nothing if there is none.
bool RecordAssembler::begin_part(RecordMemory* memory) {
  Message& message = *current_;
  if (have_ == message.record_size() && !message.decode_head(size_, &error_)) return false;
  while (next_part_ < message.parts.size() && message.parts[next_part_].size == 0) ++next_part_;
  if (next_part_ == message.parts.size()) return true;
  Part& part = message.parts[next_part_++];
  const uint64_t room = align8(part.size);
  const bool is_large = memory != nullptr && part.size >= kReadPartMin;
  std::shared_ptr<std::byte> place = is_large ? memory->memory_for(message.header, message.route(), room) : nullptr;
  if (place == nullptr && !(room > kLargeRecord && sys::must_fail(ENOMEM))) place = heap_block(room);
  if (place == nullptr) {
    message.parts.clear();
    rest_ = Rest::kLost;
    return true;
  }
  part.data = place.get();
  part.owner = std::move(place);
  part_room_ = {part.data, room};
  return true;
}

bool RecordAssembler::end_record(NodeId from) {
  have_ = 0;
  done_ = std::move(current_);
  done_->from = from;
  if (rest_ == Rest::kInParts) return true;
  const bool is_lost = rest_ == Rest::kLost;
  if (is_lost ? done_->decode_lost(size_, arena_parts_, &error_) : done_->decode(arena_parts_, &error_)) return true;
  done_ = nullptr;
  return false;
}

}  // namespace monarch
