// The frame: one fixed little-endian header, a table of parts, the body, then the inline parts.
//
//   offset  size
//   0       8      record_size   bytes of the whole record, this field included; a multiple of 8
//   8       56     FrameHeader
//   64      24     FrameRoute    only with kFlagRouted
//   ...     16 * n PartRef       n = header.part_count
//   ...     body_size            the encoded value (wire/value.h) or pickle
//   ...                          inline parts, each at a multiple of 8
//
// This is version 2 (wire/hello.h). Version 1 had 8 flags, no route, and a deadline on the clock of one machine.
//
// A part is inline, or lies in the sender's arena (net/shm) and the PartRef says where. Nothing in here is trusted: the
// decoder bounds every size, works on a private copy of the header and never reads outside the record.
#pragma once

#include <cstdint>
#include <cstring>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/wire/reducer.h"

namespace monarch {

enum class FrameKind : uint8_t {
  kRequest = 1,    // data: wants an answer under `token`
  kOneway = 2,     // data: no answer
  kReply = 3,      // data: dest is the token, body the value
  kReplyError = 4, // data: as kReply, body is the error that user code raised
  kReplyFailed = 5,// data: as kReply, body is a Failure: the target died or stopped (never user code's own error)
  kSpawn = 6,      // data: makes the actor `dest`; method says by which factory
  kStopActor = 7,  // data: ends the actor `dest` after what was sent before; answered under `token`
  kUndeliverable = 8,  // data: a one-way message of actor `dest` found no receiver; body is the Failure, and
                       // the part whom it was for
  kReleased = 9,   // data, link internal: slabs that the receiver has done with
  kSegment = 10,   // control, link internal: a segment of the sender's arena; its fd travels beside it
  kStopNode = 11,  // control, and again behind the data: the process ends; body is the reason
  kNodeDown = 12,  // control: `dest` is a node that died; body is the Failure; empty: somebody was told of it
  kPing = 13,      // control: answered with kPong by the reactor
  kPong = 14,
  kHold = 15,          // control: actor `dest` of the sender of this has too much waiting: send it nothing one-way
  kResume = 16,        // control: it has room again
  kHosts = 17,         // control, from child to parent: `dest` is a process that the sender, or one below it, has started
  kAcknowledge = 18,   // control, link internal: how much of a session has been received (wire/session.h)
  kSession = 19,       // control, and the last on the data lane, link internal: which session, and where it goes on
  kWhyDown = 20,       // control, from child to parent: what has `dest` died of? Answered with kNodeDown, if that is known
  kAskStacks = 21,     // control: what do your threads do? Answered under `token` and `rank`, by the reactor
  kStacks = 22,        // control: as kReply (host/stacks/process_stacks.h)
  kActorEnded = 23,    // data: an actor that `dest` owns has failed, or has stopped itself; body is the Failure
  kRestarted = 24,     // data: what has been made anew, in the place of what has ended (actor/successions.h)
  kBuried = 25,        // data: of the first `dest` actors that the sender has made, those that the receiver, which has
                       // taken the place of another process, has not been told to make by now were in that one
  kProbe = 26,         // control: does `dest` close a cycle of calls? (actor/deadlocks.h)
  kSilent = 27,        // control: calls wait for `dest`, which answers nobody: whoever has started it looks at it; the body
                       // is the label of one of them, `method` how many there are, `rank` for how many ms it may be
                       // halted meanwhile (0: not said). Of `dest` 0, from a host to the script: what it has seen, for
                       // people to read
  kWhereIs = 28,       // control, from a host to the script: where is the gateway `dest` dialled?
  kPlace = 29,         // control, the answer: the body is an address, or nothing: it is none
  kCast = 30,          // data, to the gateway of a host: a frame for several actors there (wire/cast.h)
  kOutOfReach = 31,    // control, from a gateway to the script and the processes of its host: it does not reach the host
                       // whose gateway is `dest`, which may be well; body is the Failure
  kTreeCast = 32,      // data, to a gateway: a frame for actors of many hosts, passed on by a tree (wire/tree_cast.h)
  kTreeFence = 33,     // data, from gateway to gateway: what follows comes after its tree cast `token` to this host
  kTreeTaken = 34,     // control, to their origin: all its tree casts of the session `sender` up to `token` are there
  kTreeMissed = 35,    // control, to its origin: the tree cast `token` of the session `sender` to the gateway `dest` did
                       // not get there through who says so, who has no way to it (`method` 0), or had one that is over
                       // (2: nor to those behind it); or, being `dest`, takes it for nothing for want of memory (1)
  kTreeReply = 36,     // data, from gateway to gateway: answers to the call `dest` of the node `sender`, which the receiver
                       // may send on together with others (wire/replies.h)
  kTreeSeen = 37,      // data, from the caller to those gateways: which of these answers it has (wire/replies.h)
};
inline constexpr uint8_t kFrameKindMax = 37;

enum FrameFlags : uint32_t {
  kFlagPickle = 1,      // the body is a pickle, parts are its out-of-band buffers; else the native codec
  kFlagScalarView = 2,  // sent to a single actor without dimensions: message_rank is {}
  kFlagView = 4,        // the last part describes the extent of the mesh that the message was sent to
  kFlagArrays = 8,      // native codec: ((index, dtype, shape), ...), (values with None at these indices); the bytes of
                        // the arrays are the parts, in that order; (index, dtype, shape, True): read-only
  kFlagBodyPart = 16,   // the body is empty, and the first part takes its place (a large pickle, through the arena)
  kFlagQuiet = 32,      // one-way: if it finds no receiver, nobody is told
  kFlagGivenPort = 64,  // to an endpoint that answers through a port: its first argument is that port
  kFlagPort = 128,      // the method answers through a port, though it is not declared so
  kFlagRouted = 256,    // a FrameRoute follows the header: the frame comes from, or goes to, others than those of its link
  kFlagKeep = 512,      // of requests: the result stays where it is made, and its caller is sent where that is
  kFlagReduce = 1024,   // of requests: answers are combined (wire/reduce.h), so lists and dicts go by the native codec too;
                        // with kFlagKeep no value is wanted. Of answers: the value stands in that of a lower rank
};

struct FrameHeader {
  uint64_t body_size = 0;
  uint32_t part_count : 24 = 0;
  FrameKind kind : 8 = FrameKind::kOneway;
  uint32_t flags : 12 = 0;
  uint32_t epoch : 20 = 0;  // of requests and one-way messages: how often some of their mesh has been made anew, as their
                            // sender knows it; of kSpawn: the same, and not 0 means that this actor is made anew; of
                            // kActorEnded: that in which the actor was made
  uint64_t dest = 0;    // actor index at the receiving node; of replies: the token
  uint64_t sender = 0;  // actor index at the sending node
  uint64_t token = 0;   // where the answer goes; 0: none
  uint32_t method = 0;  // number of the endpoint in its class
  uint32_t rank = 0;    // of requests: rank in the mesh it was sent to; of replies: the same, back
  uint64_t time_left_ns = 0;  // of requests, when they were sent: until their caller gives up; 0: it never does
};
static_assert(sizeof(FrameHeader) == 56);  // with its size word one cache line

// Of a frame that goes through other nodes: between which it goes. Answers go back the same way.
struct FrameRoute {
  uint64_t origin = 0;
  uint64_t destination = 0;
  uint32_t hops = 0;  // nodes that have passed it on
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameRoute) == 24);
inline constexpr uint32_t kHopsMax = 8;

struct PartRef {
  uint64_t size = 0;
  uint64_t location = 0;  // 0: inline; else see ArenaLocation
};
static_assert(sizeof(PartRef) == 16);

// Where a part lies in the sender's arena, or in frozen memory (net/shm/frozen_loans.h), whose numbers follow those of
// segments.
struct ArenaLocation {
  uint32_t segment = 0;
  bool shared = false;  // lent to several receivers: none of them writes to it
  uint64_t offset = 0;  // bytes, < 2^40

  uint64_t pack() const { return uint64_t{1} << 63 | uint64_t{shared} << 62 | uint64_t{segment} << 40 | offset; }
  static ArenaLocation unpack(uint64_t packed) {
    return {static_cast<uint32_t>(packed >> 40) & 0x3fffff, (packed >> 62 & 1) != 0,
            packed & ((uint64_t{1} << 40) - 1)};
  }
};

inline constexpr uint32_t kPartsMax = 1 << 20;
static_assert(kPartsMax < 1 << 24);  // FrameHeader::part_count
inline constexpr uint64_t kRecordSizeMax = uint64_t{1} << 40;
inline constexpr size_t kRecordPrologue = sizeof(uint64_t) + sizeof(FrameHeader);

constexpr uint64_t align8(uint64_t size) { return (size + 7) & ~uint64_t{7}; }

// What a sender hands over: everything is borrowed for the length of the call, and copied in it.
struct Outgoing {
  FrameHeader header;  // body_size and part_count are filled in from the spans below
  ByteSpan body;
  std::span<const ByteSpan> parts;
  int64_t deadline_ns = 0;  // on the clock of this node, which makes header.time_left_ns of it; 0: none
  FrameRoute route = {};    // with kFlagRouted
  Reducer reducer = Reducer::kNone;  // of a request to several, which gateways are told (wire/cast.h)
  class CastParts* cast = nullptr;  // it goes to several, and a link may lend them the same memory; null: to one
};

// A checked view into a record.
struct FrameView {
  FrameHeader header;
  const std::byte* route = nullptr;  // a FrameRoute, unaligned; null without kFlagRouted
  const std::byte* part_table = nullptr;
  ByteSpan body;
  uint64_t inline_offset = 0;  // of the first inline part, from the record's start

  PartRef part(uint32_t index) const {
    PartRef ref;
    std::memcpy(&ref, part_table + size_t{index} * sizeof(PartRef), sizeof ref);
    return ref;
  }
};

// `head` is a record up to its first inline part, or all of it, private to the caller (nobody else writes it); the whole
// record has `record_size` bytes. kMalformed says what is wrong.
Result<FrameView> decode_frame(ByteSpan head, uint64_t record_size);
inline Result<FrameView> decode_frame(ByteSpan record) { return decode_frame(record, record.size()); }

// Is this a sane first word of a record?
inline bool valid_record_size(uint64_t size) {
  return size >= kRecordPrologue && size <= kRecordSizeMax && size % 8 == 0;
}

}  // namespace monarch
