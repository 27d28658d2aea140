#include "monarch/actor/answers.h"

#include <algorithm>
#include <optional>
#include <span>

#include "monarch/wire/cast.h"

namespace monarch {

void AnswersTogether::put(uint32_t rank, uint32_t flags, ByteSpan body, std::span<const Part> more) {
  entries_.push_back({rank, flags, static_cast<uint32_t>(1 + more.size()), 0});
  parts_.push_back(body);
  for (const Part& part : more) parts_.emplace_back(part.data, part.size);
  ++values_;
}

// As it came.
void AnswersTogether::put(const BranchAnswers& branch) {
  auto part = branch.frame->parts.begin();
  for (const ReplyEntry& entry : branch.entries) {
    entries_.push_back(entry);
    values_ += entry.parts != 0;
    for (uint32_t i = 0; i < entry.parts; ++i, ++part) parts_.emplace_back(part->data, part->size);
  }
}

void AnswersTogether::put_side_by_side(const std::vector<OwedAnswer>& owed) {
  for (const OwedAnswer& each : owed) {
    if (!each.answer) continue;
    put(each.rank, each.answer->header.flags & ~uint32_t{kFlagRouted}, each.answer->body, each.answer->parts);
  }
}

bool AnswersTogether::combine(Reducer reducer, const std::vector<OwedAnswer>& owed,
                              const std::vector<BranchAnswers>& branches) {
  if (reducer == Reducer::kGather || reducer == Reducer::kConcat) {
    put_side_by_side(owed);
  } else if (reducer != Reducer::kCount) {
    Reduction own(reducer);
    for (const OwedAnswer& each : owed) {
      if (!own.add({each.rank, each.answer->header.flags, each.answer->body, each.answer->parts})) return false;
    }
    if (!branches.empty() && merge(own, branches)) {
      uint32_t lowest = owed.front().rank;
      for (const BranchAnswers& branch : branches) {
        lowest = std::min(lowest, std::ranges::min_element(branch.entries, {}, &ReplyEntry::rank)->rank);
      }
      put(lowest, value_.flags, value_.body, value_.parts);
      const auto put_other = [&](uint32_t rank) {
        if (rank != lowest) put_without_value(rank);
      };
      for (const OwedAnswer& each : owed) put_other(each.rank);
      for (const BranchAnswers& branch : branches) {
        for (const ReplyEntry& entry : branch.entries) put_other(entry.rank);
      }
      return true;
    }
    if (!own.write(value_)) return false;
    put(owed.front().rank, value_.flags, value_.body, value_.parts);
  }
  for (size_t i = entries_.size(); i < owed.size(); ++i) put_without_value(owed[i].rank);
  for (const BranchAnswers& branch : branches) put(branch);
  return true;
}

// All to one value. False: there is more than one.
bool AnswersTogether::merge(const Reduction& own, const std::vector<BranchAnswers>& branches) {
  Reduction all = own;
  for (const BranchAnswers& branch : branches) {
    std::span<const Part> rest = branch.frame->parts;
    for (const ReplyEntry& entry : branch.entries) {
      if (entry.parts == 0) continue;
      Reduction next(all.reducer());
      const ByteSpan body(rest.front().data, rest.front().size);
      if (!next.add({entry.rank, entry.flags, body, rest.subspan(1, entry.parts - 1)})) return false;
      if (!all.is_free_of_order(next) || !all.merge(next)) return false;
      rest = rest.subspan(entry.parts);
    }
  }
  return all.write(value_);
}

uint64_t AnswersTogether::bytes() const {
  uint64_t bytes = entries_.size() * sizeof(ReplyEntry);
  for (const ByteSpan& part : parts_) bytes += part.size();
  return bytes;
}

bool AnswersTogether::fits() const { return parts_.size() <= kPartsMax; }

Outgoing AnswersTogether::frame(FrameKind kind, uint64_t token) {
  body_ = encode_replies(entries_);
  Outgoing frame{FrameHeader{}, as_byte_span(body_.data(), body_.size()), parts_};
  frame.header.kind = kind;
  frame.header.dest = token;
  frame.header.rank = kEveryRank;
  return frame;
}

}  // namespace monarch
