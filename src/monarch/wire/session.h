// What the two ends of a session (net/resuming_link.h) say to each other: which session a link belongs to, and how much of
// it has been received. Frames without a body, whose header means:
//
//   field     kSession                                        kAcknowledge
//   method    what is said: SessionWord                       0
//   dest      the session: a number that its dialer has made  0
//   rank      which link of the session this is, from 1       0
//   token     data frames received so far                     the same
//   sender    control frames received so far                  the same
//   epoch     1: who says this can go on inside of a frame    0
//   time_left bytes of the next data frame received so far    0
//
// kSession and kAcknowledge themselves are not counted. Who cannot go on inside of a frame leaves the last two at 0, and is
// never told of a frame that has come in part.
#pragma once

#include <optional>

#include "monarch/wire/frame.h"

namespace monarch {

enum class SessionWord : uint32_t {
  kOpen = 1,     // dialer, first on a link: a new session, as far as the dialer knows
  kResume = 2,   // the same: it has been answered before
  kGoOn = 3,     // acceptor, first on a link: here is how much has come; what you have not heard of follows
  kUnknown = 4,  // acceptor, instead: there is no such session (any more)
  kOver = 5,     // both, on both lanes, last: the sender ends the session
};

struct ReceivedCounts {
  uint64_t data = 0;
  uint64_t control = 0;
};

struct SessionFrame {
  SessionWord word = SessionWord::kOpen;
  uint64_t session = 0;
  uint32_t link = 0;
  ReceivedCounts received;
  bool goes_on_inside = false;
  uint64_t begun = 0;  // bytes of the record of the data frame after those received; 0: it comes from its beginning
};

FrameHeader encode_session(const SessionFrame& frame);
FrameHeader encode_acknowledge(const ReceivedCounts& received);

// Of a frame of that kind that decode_frame() has passed. None: it is malformed.
std::optional<SessionFrame> decode_session(const FrameHeader& header);
std::optional<ReceivedCounts> decode_acknowledge(const FrameHeader& header);

inline bool is_session_frame(FrameKind kind) { return kind == FrameKind::kSession || kind == FrameKind::kAcknowledge; }

}  // namespace monarch
