#include "monarch/wire/session.h"

namespace monarch {

namespace {
constexpr uint32_t kGoesOnInside = 1, kTakesStripes = 2;

bool is_bare(const FrameHeader& header) {
  return header.body_size == 0 && header.part_count == 0 && header.flags == 0;
}

// Of whoever goes on, and at most what a frame can have.
bool may_be_begun(SessionWord word, bool goes_on_inside, uint64_t bytes) {
  if (bytes == 0) return true;
  return goes_on_inside && (word == SessionWord::kResume || word == SessionWord::kGoOn) && bytes < kRecordSizeMax;
}
}  // namespace

FrameHeader encode_session(const SessionFrame& frame) {
  FrameHeader header = encode_acknowledge(frame.received);
  header.kind = FrameKind::kSession;
  header.method = static_cast<uint32_t>(frame.word);
  header.dest = frame.session;
  header.rank = frame.link;
  header.epoch = (frame.goes_on_inside ? kGoesOnInside : 0) | (frame.takes_stripes ? kTakesStripes : 0);
  header.time_left_ns = frame.begun;
  return header;
}

FrameHeader encode_acknowledge(const ReceivedCounts& received) {
  FrameHeader header;
  header.kind = FrameKind::kAcknowledge;
  header.token = received.data;
  header.sender = received.control;
  return header;
}

std::optional<SessionFrame> decode_session(const FrameHeader& header) {
  if (header.kind != FrameKind::kSession || !is_bare(header)) return std::nullopt;
  if (header.method < static_cast<uint32_t>(SessionWord::kOpen) ||
      header.method > static_cast<uint32_t>(SessionWord::kStripe)) {
    return std::nullopt;
  }
  const SessionFrame frame{static_cast<SessionWord>(header.method), header.dest, header.rank,
                           {header.token, header.sender}, (header.epoch & kGoesOnInside) != 0, header.time_left_ns,
                           (header.epoch & kTakesStripes) != 0};
  if (!may_be_begun(frame.word, frame.goes_on_inside, frame.begun)) return std::nullopt;
  return frame;
}

std::optional<ReceivedCounts> decode_acknowledge(const FrameHeader& header) {
  if (header.kind != FrameKind::kAcknowledge || !is_bare(header)) return std::nullopt;
  if (header.method != 0 || header.dest != 0 || header.rank != 0 || header.time_left_ns != 0) return std::nullopt;
  return ReceivedCounts{header.token, header.sender};
}

}  // namespace monarch
