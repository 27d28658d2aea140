// The answers of several ranks, on their way as one frame (wire/replies.h, docs/design/036, 046).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/net/message.h"
#include "monarch/wire/reduce.h"
#include "monarch/wire/replies.h"

namespace monarch {

using Answer = std::shared_ptr<const Message>;  // shared: with links that keep it

// That of an actor of this host.
struct OwedAnswer {
  bool is_of(const OwedAnswer& other) const { return node == other.node && actor == other.actor; }

  uint32_t rank;
  NodeId node;
  ActorIndex actor;
  Answer answer = nullptr;  // null: it has not come
  uint64_t number = 0;      // of all answers that have been held here
};

// Those of another host and all behind it in the tree of the cast.
struct BranchAnswers {
  NodeId gateway = 0;
  size_t ranks = 0;
  Answer frame = nullptr;  // null: it has not come
  std::vector<ReplyEntry> entries{};  // of that
};

// Refers to what it is made of. May throw std::bad_alloc.
class AnswersTogether {
 public:
  // Those that have come, each by itself.
  void put_side_by_side(const std::vector<OwedAnswer>& owed);
  // All, by a reducer; what lies side by side afterwards are values of which one cannot be made here. False: those of this
  // host are not to be combined, which their caller will find as well.
  bool combine(Reducer reducer, const std::vector<OwedAnswer>& owed, const std::vector<BranchAnswers>& branches);

  bool is_one_value() const { return values_ <= 1; }
  uint64_t bytes() const;
  // False: no frame has so many parts.
  bool fits() const;
  // What is valid as long as this is.
  Outgoing frame(FrameKind kind, uint64_t token);

 private:
  void put(uint32_t rank, uint32_t flags, ByteSpan body, std::span<const Part> more);
  void put_without_value(uint32_t rank) { entries_.push_back({rank, kFlagReduce, 0, 0}); }
  void put(const BranchAnswers& branch);
  bool merge(const Reduction& own, const std::vector<BranchAnswers>& branches);

  std::vector<ReplyEntry> entries_;
  std::vector<ByteSpan> parts_;
  size_t values_ = 0;
  ReducedValue value_;
  std::string body_;
};

}  // namespace monarch
