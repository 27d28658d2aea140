#include "monarch/net/sessions.h"

#include <utility>

namespace monarch {

std::shared_ptr<Link> Sessions::dial(NodeId peer, int64_t lease_ns, ResumingLink::Dial dial) {
  auto session = make_session(peer, lease_ns, std::move(dial));
  session->begin();
  return session;
}

std::shared_ptr<ResumingLink> Sessions::make_session(NodeId peer, int64_t lease_ns, ResumingLink::Dial dial,
                                                     int64_t opening_ns) {
  return std::make_shared<ResumingLink>(shared_from_this(), peer, random_.next_u64(), lease_ns, std::move(dial),
                                        opening_ns);
}

std::shared_ptr<Link> Sessions::accepted(NodeId peer, bool guest, int64_t lease_ns, const ResumingLink::Dial& make) {
  auto carrier = std::make_shared<Carrier>(shared_from_this(), peer, guest, lease_ns);
  std::shared_ptr<Link> link = carrier->link = make(*carrier);
  end_unless_used(carrier, kFirstFrameNs);
  keep(std::move(carrier));
  return link;
}

void Sessions::end_unless_used(const std::shared_ptr<Carrier>& carrier, int64_t after_ns) {
  timers_.after(after_ns, [self = weak_from_this(), weak = std::weak_ptr<Carrier>(carrier)] {
    auto waiting = weak.lock();
    if (!waiting || (!waiting->refused && waiting->has_session())) return;
    waiting->link->close();
    waiting = nullptr;
    if (const auto kept = self.lock()) kept->take_over();
  });
}

void Sessions::keep_stripe(std::shared_ptr<Carrier> carrier) {
  carrier->refused = true;
  // Later than its other end gives it up, which would otherwise see the end of a stripe.
  end_unless_used(carrier, 4 * kFirstFrameNs);
  timers_.after(kFirstFrameNs, [self = weak_from_this()] {
    if (const auto kept = self.lock()) kept->take_over();
  });
  keep(std::move(carrier));
}

void Sessions::on_first(Carrier& carrier, Link& link, const Message& message) {
  if (carrier.refused) return;  // it goes when the dialer has heard so
  const auto frame = decode_session(message.header);
  if (frame && frame->word == SessionWord::kStripe) return on_stripe(carrier, link, *frame);
  if (!frame || (frame->word != SessionWord::kOpen && frame->word != SessionWord::kResume)) {
    return drop(carrier, "it does not say which session it is for");
  }
  bool made = false;
  const std::shared_ptr<ResumingLink> session = find_or_make(carrier, *frame, &made);
  if (session) {
    carrier.belongs_to(session);
    if (made) {
      end_older(*session);
      events_.on_accepted(session, carrier.guest);  // first: answers to what arrives go back on it
    }
    if (session->adopt(carrier.shared_from_this(), *frame)) return;
  }
  carrier.refused = true;
  const FrameHeader unknown = encode_session({SessionWord::kUnknown, frame->session, frame->link, {}});
  static_cast<void>(link.send_control(Outgoing{unknown, {}, {}}));
}

void Sessions::on_stripe(Carrier& carrier, Link& link, const SessionFrame& frame) {
  carrier.refused = true;  // it has nothing more to say; what is no stripe in time ends
  std::shared_ptr<ResumingLink> session;
  {
    std::lock_guard lock(mutex_);
    if (auto found = opened_.find({carrier.peer, frame.session}); found != opened_.end()) session = found->second.lock();
  }
  if (session && session->adopt_stripe(link, frame.link)) return;
  static_cast<void>(link.become_stripe_of(nullptr));
  close_later(carrier.link);
}

std::shared_ptr<ResumingLink> Sessions::find_or_make(const Carrier& carrier, const SessionFrame& frame, bool* made) {
  const bool welcome = frame.word == SessionWord::kOpen && !(events_.is_down && events_.is_down(carrier.peer));
  std::shared_ptr<ResumingLink> session;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  const std::pair key(carrier.peer, frame.session);
  if (auto found = opened_.find(key); found != opened_.end()) session = found->second.lock();
  if (session || !welcome) return session;
  session = std::make_shared<ResumingLink>(shared_from_this(), carrier.peer, frame.session, carrier.lease_ns, nullptr, 0);
  opened_[key] = session;
  *made = true;
  return session;
}

// A process has opened one at a time: who opens another has done with the first, and does not wait for its lease here.
void Sessions::end_older(const ResumingLink& session) {
  std::vector<std::shared_ptr<ResumingLink>> older;
  {
    std::lock_guard lock(mutex_);
    auto it = opened_.lower_bound({session.peer(), 0});
    for (; it != opened_.end() && it->first.first == session.peer(); ++it) {
      auto other = it->second.lock();
      if (other && other.get() != &session) older.push_back(std::move(other));
    }
  }
  for (const auto& other : older) other->overtaken();
}

void Sessions::forget(const ResumingLink& session) {
  std::lock_guard lock(mutex_);
  auto found = opened_.find({session.peer(), session.number()});
  if (found != opened_.end() && (found->second.expired() || found->second.lock().get() == &session)) opened_.erase(found);
}

// ---- Carriers ----

void Sessions::drop(Carrier& carrier, const char* what) {
  if (carrier.refused.exchange(true)) return;
  log_malformed(what);
  close_later(carrier.link);
}

void Sessions::close_later(std::shared_ptr<Link> link) {
  timers_.after(0, [self = shared_from_this(), link = std::move(link)]() mutable {
    link->close();
    link = nullptr;
    self->take_over();
  });
}

void Sessions::keep(std::shared_ptr<Carrier> carrier) {
  const auto gone = take_over();
  std::lock_guard lock(mutex_);
  carriers_.push_back(std::move(carrier));
}

// Those whose link is over, and of which nothing is under way: whatever tells something holds its link.
std::vector<std::shared_ptr<Carrier>> Sessions::take_over() {
  std::vector<std::shared_ptr<Carrier>> gone;
  std::lock_guard lock(mutex_);
  std::erase_if(carriers_, [&](std::shared_ptr<Carrier>& carrier) {
    if (!carrier->link->over() || carrier->link.use_count() != 1 || carrier.use_count() != 1) return false;
    gone.push_back(std::move(carrier));
    return true;
  });
  return gone;
}

size_t Sessions::carriers() const {
  std::lock_guard lock(mutex_);
  return carriers_.size();
}

void Sessions::end() {
  std::vector<std::shared_ptr<Carrier>> all;
  {
    std::lock_guard lock(mutex_);
    all = std::exchange(carriers_, {});
    opened_.clear();
  }
  for (const auto& carrier : all) carrier->link->close();
}

}  // namespace monarch
