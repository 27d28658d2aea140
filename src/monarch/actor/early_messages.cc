#include "monarch/actor/early_messages.h"

#include <iterator>
#include <utility>

namespace monarch {

bool EarlyMessages::add(MessagePtr message) {
  ++count_;
  bytes_ += message->total_bytes();
  auto [actor, first] = actors_.try_emplace(message->header.dest);
  actor->second.messages.push_back(std::move(message));
  return first;
}

std::vector<MessagePtr> EarlyMessages::take_stops(ActorIndex index, uint32_t epoch) {
  std::vector<MessagePtr> stops;
  const auto found = actors_.find(index);
  if (found == actors_.end()) return stops;
  for (MessagePtr& message : std::exchange(found->second.messages, {})) {
    const bool is_stop = message->header.kind == FrameKind::kStopActor && message->header.epoch < epoch;
    if (is_stop) {
      --count_;
      bytes_ -= message->total_bytes();
    }
    (is_stop ? stops : found->second.messages).push_back(std::move(message));
  }
  return stops;
}

bool EarlyMessages::take_some(ActorIndex index, std::vector<MessagePtr>* messages) {
  auto actor = actors_.find(index);
  if (actor == actors_.end() || actor->second.messages.empty()) return false;
  messages->swap(actor->second.messages);
  actor->second.messages.clear();
  count_ -= messages->size();
  for (const MessagePtr& message : *messages) bytes_ -= message->total_bytes();
  return true;
}

EarlyMessages::Actors::iterator EarlyMessages::take(Actors::iterator actor, Taken* taken) {
  for (MessagePtr& message : actor->second.messages) {
    --count_;
    bytes_ -= message->total_bytes();
    taken->messages.push_back(std::move(message));
  }
  taken->timers.push_back(actor->second.timer);
  return actors_.erase(actor);
}

EarlyMessages::Taken EarlyMessages::take(ActorIndex index) {
  Taken taken;
  if (auto actor = actors_.find(index); actor != actors_.end()) take(actor, &taken);
  return taken;
}

EarlyMessages::Taken EarlyMessages::take_of(NodeId creator) {
  Taken taken;
  for (auto actor = actors_.lower_bound(creator); actor != actors_.end() && may_have_created(creator, actor->first);) {
    actor = take(actor, &taken);
  }
  // Those that were counted beyond the last integer.
  for (auto actor = actors_.begin(); actor != actors_.end() && may_have_created(creator, actor->first);) {
    actor = take(actor, &taken);
  }
  return taken;
}

EarlyMessages::Taken EarlyMessages::take_if(const std::function<bool(ActorIndex)>& wanted) {
  Taken taken;
  for (auto actor = actors_.begin(); actor != actors_.end();) {
    actor = wanted(actor->first) ? take(actor, &taken) : std::next(actor);
  }
  return taken;
}

EarlyMessages::Taken EarlyMessages::take_all() {
  return take_if([](ActorIndex) { return true; });
}

}  // namespace monarch
