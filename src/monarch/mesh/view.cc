#include "monarch/mesh/view.h"

#include <algorithm>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/room_wait.h"
#include "monarch/wire/value.h"

namespace monarch {

View View::of(std::shared_ptr<const Members> members, const Region& region, bool whole) {
  View view{std::move(members), 0, {}};
  if (region.labels().empty()) {
    view.flags = kFlagScalarView;
  } else if (!whole) {
    view.flags = kFlagView;
    ValueWriter shape;
    shape.begin_tuple(2);
    shape.begin_tuple(static_cast<uint32_t>(region.labels().size()));
    for (const std::string& label : region.labels()) shape.str(label);
    shape.begin_tuple(static_cast<uint32_t>(region.labels().size()));
    for (const int64_t size : region.extent().sizes()) shape.integer(size);
    view.shape.assign(shape.written().begin(), shape.written().end());
  }
  return view;
}

void View::cast(Node& node, Outgoing outgoing, const std::shared_ptr<PendingCall>& call) const {
  outgoing.header.flags |= flags;
  if ((flags & kFlagView) == 0) return node.cast(*members, outgoing, call);
  std::vector<ByteSpan> parts;
  parts.reserve(outgoing.parts.size() + 1);
  parts.assign(outgoing.parts.begin(), outgoing.parts.end());
  parts.push_back(shape);
  outgoing.parts = parts;
  node.cast(*members, outgoing, call);
}

std::shared_ptr<PendingCall> View::new_call() const { return std::make_shared<PendingCall>(members); }

const ActorId* find_own(const Members& members, const OneThread& waiting) {
  const auto found =
      std::find_if(members.ids.begin(), members.ids.end(), [&waiting](const ActorId& id) { return waiting.has(id); });
  return found == members.ids.end() ? nullptr : &*found;
}

RoomOutcome wait_for_room(Node& node, const Members& members, bool counts, int64_t deadline_ns, RoomSleep& sleep) {
  struct Wait {
    RoomWait room;
    const RoomSleep& sleep;
    static bool over(const void* self) {
      const Wait& wait = *static_cast<const Wait*>(self);
      return wait.room.over() || wait.sleep.has_no_time();
    }
  };
  Wait wait{RoomWait(node, members, counts), sleep};
  while (!Wait::over(&wait)) {
    if (deadline_ns != 0 && node.clock().now_ns() >= deadline_ns) return RoomOutcome::kTooLate;
    const WaitResult result = sleep.sleep(&Wait::over, &wait, wait.room.next_look_ns());
    if (result == WaitResult::kInterrupted) return RoomOutcome::kGivenUp;
    if (result == WaitResult::kTimeout && wait.room.is_slow()) wait.room.say_slow(sleep.receiver());
  }
  return RoomOutcome::kRoom;
}

}  // namespace monarch
