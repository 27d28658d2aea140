// What the two ends of a session (net/resuming_link.h) say to each other: which session a link belongs to, and how much of
// it has been received. Frames without a body, whose header means:
//
//   field     kSession                                        kAcknowledge
//   method    what is said: SessionWord                       0
//   dest      the session: a number that its dialer has made  0
//   rank      which link of the session this is, from 1       0
//   token     data frames received so far                     the same
//   sender    control frames received so far                  the same
//   epoch     bits: kGoesOnInside, kTakesStripes             0
//   time_left bytes of the next data frame received so far    0
//
// kSession and kAcknowledge themselves are not counted. Who leaves a bit of `epoch` at 0 does not know what it stands for:
// kGoesOnInside: it goes on inside of a frame, and may be told of one that has come in part. kTakesStripes: it knows
// kStripe.
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
  kStripe = 6,   // dialer, first and last on a further connection: it is for the data of that link (net/tcp/tcp_link.h)
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
  bool takes_stripes = false;
};

FrameHeader encode_session(const SessionFrame& frame);
FrameHeader encode_acknowledge(const ReceivedCounts& received);

// Of a frame of that kind that decode_frame() has passed. None: it is malformed.
std::optional<SessionFrame> decode_session(const FrameHeader& header);
std::optional<ReceivedCounts> decode_acknowledge(const FrameHeader& header);

inline bool is_session_frame(FrameKind kind) { return kind == FrameKind::kSession || kind == FrameKind::kAcknowledge; }

}  // namespace monarch
