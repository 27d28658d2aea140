// Answers that are combined on their way, at a gateway and where they arrive (actor/reductions.h).
#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/node.h"
#include "monarch/actor/reductions.h"
#include "monarch/actor/routes.h"
#include "monarch/actor/trees.h"
#include "monarch/wire/replies.h"

namespace monarch {

namespace {

// As few that it can be said; ranks beyond these are said to be missing, though some are not.
std::vector<RankRange> ranges_of(const std::vector<uint32_t>& ranks) {
  constexpr size_t kRangesMax = 4096;
  std::vector<RankRange> ranges;
  for (const uint32_t rank : ranks) {
    if (!ranges.empty() && (rank == ranges.back().first + ranges.back().count || ranges.size() == kRangesMax)) {
      ranges.back().count = rank - ranges.back().first + 1;
    } else {
      ranges.push_back({rank, 1});
    }
  }
  return ranges;
}

}  // namespace

std::unique_ptr<Reductions> Node::make_reductions() {
  return std::make_unique<Reductions>(
      id_, timers_,
      Reductions::Hooks{[this](const Answer& answer) { pass_on(answer); },
                        [this](NodeId origin, const Outgoing& together) { return send(origin, together); },
                        [this](NodeId gateway, const Outgoing& together) {
                          const std::shared_ptr<Link> link = routes_->find(gateway);
                          return link != nullptr && link->peer() == gateway && put(*link, together, nullptr);
                        }});
}

// An answer that was held, to its caller; nobody waits for it if that cannot be reached.
void Node::pass_on(const std::shared_ptr<const Message>& answer) {
  FrameRoute route = answer->route();
  ++route.hops;
  const std::shared_ptr<Link> onward = routes_->find(route.destination);
  if (onward == nullptr) return;
  try {
    std::vector<ByteSpan> parts;
    for (const Part& part : answer->parts) parts.emplace_back(part.data, part.size);
    Outgoing outgoing{answer->header, answer->body, parts};
    outgoing.route = route;
    static_cast<void>(put(*onward, outgoing, answer));
  } catch (const std::bad_alloc&) {
    FrameHeader request;
    request.token = answer->header.dest;
    request.rank = answer->header.rank;
    reply_failed(request, route.destination, "there is no memory for its answer in the process on the way");
  }
}

// The answers of several ranks, or what has become of them all.
void Node::answered_together(MessagePtr message) {
  if (message->header.kind != FrameKind::kReply) return lost_for_all(*message);
  const uint64_t token = message->header.dest;
  auto entries = decode_replies(message->body, message->parts.size());
  if (!entries) return end_call(token, Failure("the answers of several ranks came as " + entries.error().message));
  const std::shared_ptr<Message> whole = std::move(message);  // shared: the answers lie in it
  auto next = whole->parts.begin();
  try {
    std::vector<PendingCall::Answer> answers;
    answers.reserve(entries->size());
    std::vector<ByteSpan> parts;
    for (const ReplyEntry& entry : *entries) {
      if (entry.parts == 0) {
        answers.push_back({entry.rank, nullptr});
        continue;
      }
      parts.clear();
      for (uint32_t i = 0; i < entry.parts; ++i, ++next) parts.emplace_back(next->data, next->size);
      Outgoing answer{FrameHeader{}, {}, {}};
      answer.header.kind = FrameKind::kReply;
      answer.header.flags = entry.flags;
      answer.header.dest = token;
      answer.header.rank = entry.rank;
      answer.body = parts.front();
      answer.parts = std::span(parts).subspan(1);
      uint64_t bytes = answer.body.size();
      for (const ByteSpan& part : answer.parts) bytes += part.size();
      // Of what is small whoever keeps it is not to keep the answers of all.
      const bool is_small = bytes <= Reductions::kGatheredBytesMax;
      answers.push_back({entry.rank, Message::copy_of(answer, whole->from, is_small ? nullptr : whole)});
    }
    // So that others of them answer by themselves, when that is not taken for being on its way.
    if (!calls_->answer(token, answers)) hurry_notices(KeptAnswers::kOnItsWayNs);
  } catch (const std::bad_alloc&) {
    end_call(token, Failure("there is no memory for the answers of several ranks"));
  }
}

// ---- What is said of answers that come through a tree ----

bool Node::is_gateway_elsewhere(NodeId node) const {
  return hooks_.gateway_there && host_number(node) != host_number(id_) && hooks_.gateway_there(node) == node;
}

// Before it is sent. Throws std::bad_alloc.
void Node::note_tree_call(uint64_t token, std::vector<NodeId> gateways, int64_t deadline_ns) {
  std::lock_guard lock(trees_->notices_mutex);
  trees_->notices.add(token, std::move(gateways), deadline_ns, timers_.now_ns());
  arm_notices();
}

// Something of what comes through a tree may have been lost: its callers ask for it.
void Node::hurry_notices(int64_t after_ns) {
  std::lock_guard lock(trees_->notices_mutex);
  trees_->notices.hurry(timers_.now_ns() + after_ns);
  arm_notices();
}

// notices_mutex held.
void Node::arm_notices() {
  Trees& trees = *trees_;
  if (trees.notices_stopped || trees.notices.empty()) return;
  const int64_t at_ns = trees.notices.next_ns();
  if (trees.notices_timer != 0 && trees.notices_timer_ns <= at_ns) return;
  if (trees.notices_timer != 0) timers_.cancel(std::exchange(trees.notices_timer, 0));
  trees.notices_timer = timers_.after(std::max<int64_t>(0, at_ns - timers_.now_ns()), [this] { tell_seen(); });
  trees.notices_timer_ns = at_ns;
}

void Node::tell_seen() {
  std::vector<AnswerNotices::Call> due;
  {
    std::lock_guard lock(trees_->notices_mutex);
    if (trees_->notices_stopped) return;
    trees_->notices_timer = 0;
    due = trees_->notices.take_due(timers_.now_ns());
  }
  // true: something is missing.
  std::map<std::pair<AnswerNotices::Gateways, bool>, std::vector<SeenCall>> seen;
  std::set<uint64_t> over;
  try {
    for (const AnswerNotices::Call& call : due) {
      const auto missing = calls_->missing(call.token);
      if (!missing) over.insert(call.token);
      seen[{call.gateways, missing.has_value()}].push_back(
          {call.token, missing ? ranges_of(*missing) : std::vector<RankRange>()});
    }
  } catch (const std::bad_alloc&) {
    over.clear();  // those are told of the next time
    seen.clear();
  }
  {
    std::lock_guard lock(trees_->notices_mutex);
    for (const AnswerNotices::Call& call : due) {
      if (!over.contains(call.token)) trees_->notices.put_back(call, timers_.now_ns());
    }
    arm_notices();
  }
  for (const auto& [key, calls] : seen) tell_gateways(*key.first, calls, key.second);
}

// By frames of some size. Whoever holds up answers would hold up the word that they are missing, so that goes by no tree
// (`directly`), unless that would take too long. Who does not take what it is sent is left out: what is not ended is told
// of again.
void Node::tell_gateways(const std::vector<NodeId>& gateways, const std::vector<SeenCall>& calls, bool directly) {
  constexpr size_t kBodyMax = 64 << 10;
  constexpr size_t kDirectMax = 2048;  // 10 ms
  try {
    Members all;
    std::vector<std::shared_ptr<Link>> links;
    for (const NodeId gateway : gateways) {
      std::shared_ptr<Link> link = routes_->find(gateway);
      if (link == nullptr || backlog_to(*link) > kBacklogMax) continue;
      all.ids.push_back({gateway, 0});
      links.push_back(std::move(link));
    }
    directly = directly && links.size() <= kDirectMax;
    std::string body;
    const auto send = [&] {
      Outgoing notice{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
      notice.header.kind = FrameKind::kTreeSeen;
      notice.header.flags = kFlagQuiet;
      if (directly) {
        for (const auto& link : links) put(*link, notice, nullptr);
      } else {
        cast(all, notice, nullptr);
      }
      body.clear();
    };
    for (const SeenCall& call : calls) {
      body += encode_seen({call});
      if (body.size() > kBodyMax) send();
    }
    if (!body.empty()) send();
  } catch (const std::bad_alloc&) {
    // What has not ended is told of again, and what has is let go of by those gateways in time.
  }
}

}  // namespace monarch
