#include "monarch/net/resuming_link.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <utility>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/net/sessions.h"

namespace monarch {

namespace {

// A lone frame is acknowledged this much later.
constexpr int64_t kAckNs = 20'000'000;
// Who says that it ends the session closes its link at once.
constexpr int64_t kOverNs = 5'000'000'000;
// So much at a time is worth further connections; each takes as long to be made as the first.
constexpr uint64_t kStripesFrom = 4 << 20;
constexpr int64_t kUnstripedNs = 60'000'000'000;
// What has come of a smaller frame is not kept: it comes again with what is left of its deadline then.
constexpr uint64_t kBegunMin = 64 << 10;

Outgoing bare(const FrameHeader& header) { return Outgoing{header, {}, {}}; }

// Behind all else; if it is lost with the link, the lease says it. `linked`: the other end knows whose the link is, or
// nothing may be said on its data lane.
void say_over(Link& link, uint64_t number, bool linked) {
  const FrameHeader over = encode_session({SessionWord::kOver, number, 0, {}});
  if (linked) static_cast<void>(link.send(bare(over)));
  static_cast<void>(link.send_control(bare(over)));
}

std::vector<ByteSpan> parts_of(const Message& message) {
  std::vector<ByteSpan> parts;
  parts.reserve(message.parts.size());
  for (const Part& part : message.parts) parts.emplace_back(part.data, part.size);
  return parts;
}

Outgoing outgoing_of(const Message& message, const FrameHeader& header, std::span<const ByteSpan> parts) {
  Outgoing outgoing{header, message.body, parts};
  outgoing.route = message.route();
  return outgoing;
}

uint64_t record_size_of(const Message& message) {
  return monarch::record_size_of(outgoing_of(message, message.header, parts_of(message)), {});
}

// Of which the peer has `begun` bytes.
// A link that has ended takes nothing: what is in the window goes on the next. False: there is no memory for it, and
// nothing may follow it on that link.
bool put_on(Link& link, bool control, const std::shared_ptr<const Message>& message, const FrameHeader& header,
            uint64_t begun = 0) try {
  const auto parts = parts_of(*message);
  const Outgoing outgoing = outgoing_of(*message, header, parts);
  if (control) {
    static_cast<void>(link.send_control(outgoing));
  } else {
    static_cast<void>(begun == 0 ? link.send_kept(outgoing, message) : link.send_rest(outgoing, message, begun));
  }
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// Sends `message` again. Of a deadline goes along what is left of it now.
bool send_again(Link& link, bool control, const std::shared_ptr<const Message>& message, int64_t now_ns,
                uint64_t begun) {
  FrameHeader header = message->header;
  if (message->deadline_ns != 0) {
    header.time_left_ns = static_cast<uint64_t>(std::max<int64_t>(1, message->deadline_ns - now_ns));
  }
  return put_on(link, control, message, header, begun);
}

}  // namespace

// ---- Carriers ----

Carrier::Carrier(std::shared_ptr<Sessions> sessions, std::shared_ptr<ResumingLink> session)
    : peer(session->peer()), sessions_(std::move(sessions)) {
  belongs_to(std::move(session));
}

Carrier::Carrier(std::shared_ptr<Sessions> sessions, NodeId of, bool is_guest, int64_t lease)
    : peer(of), guest(is_guest), lease_ns(lease), sessions_(std::move(sessions)) {}

Carrier::~Carrier() = default;

void Carrier::belongs_to(std::shared_ptr<ResumingLink> session) {
  owner_ = std::move(session);
  session_.store(owner_.get(), std::memory_order_release);
}

void Carrier::on_frame(Link& via, MessagePtr message) {
  ResumingLink* session = session_.load(std::memory_order_acquire);
  if (session != nullptr) return session->on_frame(*this, via, std::move(message));
  sessions_->drop(*this, "a frame before it is said which session it is for");
}

std::shared_ptr<std::byte> Carrier::memory_for(Link&, const FrameHeader& header, const FrameRoute& route, uint64_t size) {
  ResumingLink* session = session_.load(std::memory_order_acquire);
  return session == nullptr ? nullptr : session->memory_for(header, route, size);
}

void Carrier::on_control(Link& via, MessagePtr message) {
  ResumingLink* session = session_.load(std::memory_order_acquire);
  if (session != nullptr) return session->on_control(*this, via, std::move(message));
  sessions_->on_first(*this, via, *message);
}

void Carrier::on_closed(Link& via, const Error& why) {
  if (ResumingLink* session = session_.load(std::memory_order_acquire)) session->on_closed(*this, via, why);
}

// ---- The link upwards ----

ResumingLink::ResumingLink(std::shared_ptr<Sessions> sessions, NodeId peer, uint64_t number, int64_t lease_ns, Dial dial,
                           int64_t opening_ns)
    : Link(peer), sessions_(std::move(sessions)), timers_(sessions_->timers()), sink_(sessions_->sink()),
      number_(number), lease_ns_(lease_ns), dial_(std::move(dial)), peer_(lease_ns, dial_ != nullptr, opening_ns) {}

ResumingLink::~ResumingLink() = default;  // its timers and carriers do not need it

uint32_t ResumingLink::carriers() const {
  std::lock_guard lock(mutex_);
  return carriers_;
}

bool ResumingLink::send(const Outgoing& outgoing) { return transmit(data_, false, outgoing); }
bool ResumingLink::send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) {
  return transmit(data_, false, outgoing, std::move(keeper));
}
bool ResumingLink::send_control(const Outgoing& outgoing) { return transmit(control_, true, outgoing); }

uint64_t ResumingLink::data_frames_sent() const {
  std::lock_guard lock(data_.mutex);
  return data_.window.sent_count();
}

bool ResumingLink::transmit(Lane& lane, bool control, const Outgoing& outgoing, std::shared_ptr<const void> keeper) {
  if (in_forked_child() || closed()) return false;
  MessagePtr made = Message::copy_of(outgoing, 0, std::move(keeper));
  made->deadline_ns = 0;
  if (const uint64_t left_ns = outgoing.header.time_left_ns; left_ns != 0) {
    made->deadline_ns = timers_.now_ns() + static_cast<int64_t>(std::min<uint64_t>(left_ns, kNoDeadline / 2));
  }
  const std::shared_ptr<const Message> copy = std::move(made);  // shared: the window's, and of a link that sends it
  if (!control) want_stripes(std::max(copy->total_bytes(), backlog()));
  std::lock_guard lock(lane.mutex);
  if (closed()) return false;
  const uint64_t before = lane.window.bytes();
  lane.window.sent(copy);
  update_backlog(before, lane.window.bytes());
  if (lane.link && !put_on(*lane.link, control, copy, outgoing.header)) leave(std::exchange(lane.link, nullptr));
  return true;
}

void ResumingLink::want_stripes(uint64_t size) {
  if (size < kStripesFrom) return;
  int64_t from_ns = stripes_from_ns_.load(std::memory_order_relaxed);
  if (from_ns == kNever || timers_.now_ns() < from_ns || !stripes_from_ns_.compare_exchange_strong(from_ns, kNever)) return;
  timers_.after(0, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->open_stripes();
  });
}

// Each says on its own which link it is for, when it is there; if it never is, that is all.
void ResumingLink::open_stripes() {
  std::shared_ptr<Link> of;
  SessionFrame word{SessionWord::kStripe, number_, 0, {}};
  {
    Lock lock(mutex_);
    if (told_ || ending_ || !carrier_ || striped_ || peer_.state() != PeerState::kLinked) return;
    striped_ = true;
    stripes_from_ns_ = kNever;
    of = carrier_->link;
    word.link = carriers_;
  }
  const int wanted = of->stripes();
  if (wanted == 0 || !sys::expect_descriptors(static_cast<size_t>(wanted) + sys::kSpareDescriptors, "").ok()) return;
  for (int i = 0; i < wanted; ++i) {
    auto carrier = std::make_shared<Carrier>(sessions_, shared_from_this());
    const std::shared_ptr<Link> stripe = carrier->link = dial_(*carrier);
    if (!stripe) return;
    sessions_->keep_stripe(std::move(carrier));
    static_cast<void>(stripe->send_control(bare(encode_session(word))));
    static_cast<void>(stripe->become_stripe_of(of));
  }
}

bool ResumingLink::adopt_stripe(Link& link, uint32_t carrier) {
  std::shared_ptr<Link> of;
  {
    Lock lock(mutex_);
    if (told_ || ending_ || !carrier_ || carrier != carriers_ || peer_.state() != PeerState::kLinked) return false;
    of = carrier_->link;
  }
  return link.become_stripe_of(of);
}

// For want of memory. What the peer has not received goes on the next carrier.
void ResumingLink::leave(std::shared_ptr<Link> link) {
  timers_.after(0, [link = std::move(link)] {
    link->peer_died({ErrorCode::kUnavailable, "out of memory for what is sent to another host"});
  });
}

void ResumingLink::update_backlog(uint64_t before, uint64_t after) {
  unacknowledged_.fetch_add(after - before, std::memory_order_relaxed);
}

void ResumingLink::peer_died(const Error& why) {
  if (in_forked_child()) return;
  std::shared_ptr<Link> link;
  {
    Lock lock(mutex_);
    if (told_ || ending_) return;
    ending_ = why;
    if (carrier_ && peer_.state() == PeerState::kLinked) link = carrier_->link;
  }
  if (link) return link->peer_died(why);  // what it has brought comes first
  timers_.after(0, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    Lock lock(self->mutex_);
    self->end(lock, Error(*self->ending_));
  });
}

std::vector<std::shared_ptr<const Message>> ResumingLink::close_unfinished() {
  if (in_forked_child()) return {};
  Lock lock(mutex_);
  if (!std::exchange(told_, true)) {
    const std::shared_ptr<Link> link = tear_down(lock);
    if (link) link->close();
    over_.store(true, std::memory_order_release);
    lock.lock();
  }
  return std::exchange(lost_, {});
}

void ResumingLink::overtaken() {
  Lock lock(mutex_);
  end(lock, {ErrorCode::kClosed, "the process at its other end has given it up, and begun another one"});
}

// mutex_ is given back.
void ResumingLink::end(Lock& lock, const Error& why) {
  if (std::exchange(told_, true)) return lock.unlock();
  std::shared_ptr<Link> link = tear_down(lock);
  if (link) sessions_->close_later(std::move(link));  // we may be inside one of its callbacks
  sink_.on_closed(*this, why);
  over_.store(true, std::memory_order_release);
}

// Nothing is sent or heard any more. mutex_ is given back; returns the last link.
std::shared_ptr<Link> ResumingLink::tear_down(Lock& lock) {
  closed_.store(true, std::memory_order_release);  // first: then no lane takes anything
  const bool linked = peer_.state() == PeerState::kLinked;
  peer_.on(PeerEvent::kDeclared, 0);
  arm(0);
  const std::shared_ptr<Carrier> carrier = carrier_;
  std::shared_ptr<Link> link = carrier ? carrier->link : nullptr;
  drop_carrier();
  for (Lane* lane : {&data_, &control_}) {
    std::lock_guard lane_lock(lane->mutex);
    update_backlog(lane->window.bytes(), 0);
    auto unfinished = lane->window.take();
    if (lane == &data_) lost_ = std::move(unfinished);
  }
  lock.unlock();
  {
    std::lock_guard delivery(delivery_mutex_);
    hearing_ = nullptr;
    begun_ = nullptr;
    ack_link_ = nullptr;
    if (ack_timer_ != 0) timers_.cancel(std::exchange(ack_timer_, 0));
  }
  if (link) say_over(*link, number_, linked);
  sessions_->forget(*this);
  return link;
}

// mutex_ held.
void ResumingLink::drop_carrier() {
  carrier_ = nullptr;
  stripes_from_ns_ = kNever;
  if (std::exchange(striped_, false)) unstriped_until_ns_ = timers_.now_ns() + kUnstripedNs;
  for (Lane* lane : {&data_, &control_}) {
    std::lock_guard lock(lane->mutex);
    lane->link = nullptr;
  }
}

// ---- Redialling ----

void ResumingLink::begin() {
  Lock lock(mutex_);
  take(peer_.on(PeerEvent::kWanted, timers_.now_ns()), lock);
}

// mutex_ held; may be given back.
void ResumingLink::take(PeerStep step, Lock& lock) {
  arm(step.look_again_ns);
  if (step.action == PeerAction::kReport) {
    if (!opened_) return end(lock, Error(last_error_));
    if (silent_ns_ != 0) {
      char text[64];
      // By the name that people set it by.
      std::snprintf(text, sizeof text, "nothing has come from it for %g s (host_lease)",
                    static_cast<double>(silent_ns_ + lease_ns_) / 1e9);
      return end(lock, {ErrorCode::kClosed, text});
    }
    return end(lock, {ErrorCode::kClosed, "the connection to it broke and did not come back for " +
                                              std::to_string(lease_ns_ / 1'000'000) + " ms: " + last_error_.message});
  }
  if (step.action != PeerAction::kDial) return;
  lock.unlock();
  redial();
}

// mutex_ held. 0: never.
void ResumingLink::arm(int64_t at_ns) {
  if (timer_ != 0) timers_.cancel(std::exchange(timer_, 0));
  due_ns_ = at_ns;
  if (at_ns == 0) return;
  timer_ = timers_.after(std::max<int64_t>(at_ns - timers_.now_ns(), 0), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void ResumingLink::on_timer() {
  Lock lock(mutex_);
  if (told_ || due_ns_ == 0) return;
  if (timers_.now_ns() < due_ns_) return arm(due_ns_);  // one that was cancelled too late
  timer_ = 0;
  if (ending_) return end(lock, Error(*ending_));
  take(peer_.on(PeerEvent::kTimer, timers_.now_ns()), lock);
}

void ResumingLink::redial() {
  SessionFrame first;
  std::shared_ptr<Carrier> carrier;
  if (carriers() == 0) {
    // Nobody else has the session yet; who opens it may hold any lock of the layers above.
    carrier = new_carrier(&first);
  } else {
    std::lock_guard delivery(delivery_mutex_);
    carrier = new_carrier(&first);
  }
  if (carrier) connect(std::move(carrier), first);
}

// What older carriers still bring is not heard from here on, so that the counts in `first` are the last word.
std::shared_ptr<Carrier> ResumingLink::new_carrier(SessionFrame* first) {
  Lock lock(mutex_);
  if (told_ || ending_ || peer_.state() != PeerState::kResuming) return nullptr;
  if (carrier_ && carrier_->link) sessions_->close_later(carrier_->link);  // a dial that did not get through
  if (hearing_) stop_hearing(hearing_->link.get());
  hearing_ = carrier_ = std::make_shared<Carrier>(sessions_, shared_from_this());
  const ReceivedCounts so_far = received();
  const uint64_t begun = keep_begun();
  carrier_->begun = std::move(begun_);
  // Whatever has come has come of the session: the other end has it.
  const bool open = opened_ || so_far.data != 0 || so_far.control != 0;
  *first = {open ? SessionWord::kResume : SessionWord::kOpen, number_, ++carriers_, so_far, true, begun, true};
  return carrier_;
}

void ResumingLink::connect(std::shared_ptr<Carrier> carrier, const SessionFrame& first) {
  std::shared_ptr<Link> link = dial_(*carrier);
  Lock lock(mutex_);
  const bool current = carrier_ == carrier && !told_;
  if (!link) {
    if (!current) return;
    drop_carrier();
    return take(peer_.on(PeerEvent::kClosed, timers_.now_ns()), lock);
  }
  carrier->link = link;
  if (current && carrier->begun) link->go_on_with(std::move(carrier->begun));
  lock.unlock();
  sessions_->keep(std::move(carrier));
  if (!current) return sessions_->close_later(std::move(link));
  static_cast<void>(link->send_control(bare(encode_session(first))));  // if it has ended already, that is told
}

// delivery_mutex_ held, on the reactor. What it has brought of a frame stays; `link` is its, or null: there is none yet.
void ResumingLink::stop_hearing(Link* link) {
  const std::shared_ptr<Carrier> carrier = std::exchange(hearing_, nullptr);
  begun_ = carrier->begun ? std::move(carrier->begun) : link != nullptr ? link->take_begun() : nullptr;
  ack_link_ = nullptr;
}

// delivery_mutex_ and mutex_ held. How much of the next frame need not come again.
uint64_t ResumingLink::keep_begun() {
  if (begun_ && (!goes_on_inside_ || begun_->begun() < kBegunMin)) begun_ = nullptr;
  return begun_ ? begun_->begun() : 0;
}

void ResumingLink::on_closed(Carrier& carrier, Link& link, const Error& why) {
  {
    std::lock_guard delivery(delivery_mutex_);
    if (hearing_.get() == &carrier) stop_hearing(&link);
  }
  Lock lock(mutex_);
  if (carrier_.get() != &carrier || told_) return;
  drop_carrier();
  if (peer_.state() == PeerState::kLinked) silent_ns_ = link.silent_ns();
  if (ending_) return end(lock, Error(*ending_));
  if (why.code == ErrorCode::kMalformed) return end(lock, why);
  if (why.code == ErrorCode::kRefused) {
    last_error_ = {ErrorCode::kClosed, why.message};
    peer_.on(PeerEvent::kRefused, timers_.now_ns());
    return end(lock, Error(last_error_));
  }
  last_error_ = why;
  const bool shortage = why.code == ErrorCode::kUnavailable;
  take(peer_.on(shortage ? PeerEvent::kShortage : PeerEvent::kClosed, timers_.now_ns()), lock);
}

// ---- Going on ----

bool ResumingLink::adopt(const std::shared_ptr<Carrier>& carrier, const SessionFrame& frame) {
  Lock delivery(delivery_mutex_);
  Lock lock(mutex_);
  if (told_ || ending_) return false;
  if (frame.link <= carriers_) {  // an older one, that has been overtaken: the dialer has gone on
    sessions_->close_later(carrier->link);
    return true;
  }
  carriers_ = frame.link;
  const int64_t now_ns = timers_.now_ns();
  if (carrier_) sessions_->close_later(carrier_->link);
  drop_carrier();
  if (hearing_) stop_hearing(hearing_->link.get());
  hearing_ = carrier_ = carrier;
  goes_on_inside_ = frame.goes_on_inside;
  if (peer_.state() == PeerState::kLinked) peer_.on(PeerEvent::kClosed, now_ns);  // the dialer has noticed first
  peer_.on(PeerEvent::kLink, now_ns);
  arm(0);
  opened_ = true;
  const SessionFrame answer{SessionWord::kGoOn, number_, carriers_, received(), true, keep_begun(), true};
  static_cast<void>(carrier->link->send_control(bare(encode_session(answer))));
  const bool in_turn = begun_ == nullptr || carrier->link->go_on_with(std::move(begun_));
  delivery.unlock();
  const bool possible = in_turn && resume(carrier->link, frame);
  lock.unlock();
  if (!possible) malformed(*carrier, "a session cannot go on from where its peer says that it was");
  return true;
}

// mutex_ held. What the peer has not received goes on `link`, and from now on everything. False: what it says cannot be.
bool ResumingLink::resume(const std::shared_ptr<Link>& link, const SessionFrame& frame) {
  const int64_t now_ns = timers_.now_ns();
  for (Lane* lane : {&control_, &data_}) {
    const bool control = lane == &control_;
    std::lock_guard lock(lane->mutex);
    const uint64_t before = lane->window.bytes();
    const auto again = lane->window.resume(control ? frame.received.control : frame.received.data);
    if (!again) return false;
    update_backlog(before, lane->window.bytes());
    uint64_t begun = control ? 0 : frame.begun;
    if (begun != 0 && (again->empty() || begun >= record_size_of(*again->front()))) return false;
    const bool sent = std::all_of(again->begin(), again->end(), [&](const auto& message) {
      return send_again(*link, control, message, now_ns, std::exchange(begun, 0));
    });
    sent ? void(lane->link = link) : leave(link);
  }
  return true;
}

void ResumingLink::on_session_frame(Carrier& carrier, const SessionFrame& frame) {
  Lock lock(mutex_);
  if (carrier_.get() != &carrier || told_) return;
  if (frame.session != number_) return lock.unlock(), malformed(carrier, "a word about another session");
  if (frame.word == SessionWord::kOver) {
    if (!ending_) ending_ = Error{ErrorCode::kClosed, "the peer closed the connection"};
    return arm(timers_.now_ns() + kOverNs);  // usually its link ends first, behind all that it brings
  }
  const bool answer = frame.word == SessionWord::kGoOn || frame.word == SessionWord::kUnknown;
  if (!answer || !dial_ || peer_.state() != PeerState::kResuming || frame.link != carriers_) {
    return lock.unlock(), malformed(carrier, "a word about a session, out of turn");
  }
  if (frame.word == SessionWord::kUnknown) {
    peer_.on(PeerEvent::kRefused, timers_.now_ns());
    return end(lock, {ErrorCode::kClosed, "the process at its other end has given up the connection, or is another one"});
  }
  opened_ = true;
  goes_on_inside_ = frame.goes_on_inside;
  peer_.on(PeerEvent::kLink, timers_.now_ns());
  arm(0);
  stripes_from_ns_ = frame.takes_stripes && carrier.link->stripes() > 0 ? unstriped_until_ns_ : kNever;
  if (resume(carrier.link, frame)) return;
  lock.unlock();
  malformed(carrier, "a session cannot go on from where its peer says that it was");
}

void ResumingLink::on_acknowledge(Carrier& carrier, const ReceivedCounts& received) {
  Lock lock(mutex_);
  if (carrier_.get() != &carrier || told_) return;
  for (Lane* lane : {&control_, &data_}) {
    std::lock_guard lane_lock(lane->mutex);
    const uint64_t before = lane->window.bytes();
    const bool possible = lane->window.acknowledged(lane == &control_ ? received.control : received.data);
    update_backlog(before, lane->window.bytes());
    if (possible) continue;
    ending_ = Error{ErrorCode::kMalformed, "it acknowledges what it cannot have received"};
    break;
  }
  if (!ending_ || ending_->code != ErrorCode::kMalformed) return;
  log_malformed(ending_->message);
  end(lock, Error(*ending_));
}

void ResumingLink::malformed(Carrier& carrier, const char* what) {
  Lock lock(mutex_);
  if (carrier_.get() != &carrier || told_) return;
  log_malformed(what);
  end(lock, {ErrorCode::kMalformed, what});
}

// ---- What arrives ----

void ResumingLink::on_frame(Carrier& carrier, Link& link, MessagePtr message) {
  if (is_session_frame(message->header.kind)) {
    const auto frame = decode_session(message->header);
    if (!frame || frame->word != SessionWord::kOver) return malformed(carrier, "a word about a session among data");
    return on_session_frame(carrier, *frame);
  }
  std::lock_guard lock(delivery_mutex_);
  if (hearing_.get() != &carrier) return;
  want_stripes(message->total_bytes());
  count(received_data_, *message, link);
  sink_.on_frame(*this, std::move(message));
}

void ResumingLink::on_control(Carrier& carrier, Link& link, MessagePtr message) {
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kSession) {
    const auto frame = decode_session(header);
    return frame ? on_session_frame(carrier, *frame) : malformed(carrier, "a word about a session that is none");
  }
  if (header.kind == FrameKind::kAcknowledge) {
    const auto received = decode_acknowledge(header);
    return received ? on_acknowledge(carrier, *received) : malformed(carrier, "an acknowledgement that is none");
  }
  std::lock_guard lock(delivery_mutex_);
  if (hearing_.get() != &carrier) return;
  count(received_control_, *message, link);
  sink_.on_control(*this, std::move(message));
}

// delivery_mutex_ held, as in the next.
void ResumingLink::count(ReceivedCount& lane, const Message& message, Link& link) {
  lane.received(message.total_bytes());
  if (lane.ack_due()) return acknowledge(link);
  ack_link_ = &link;
  if (ack_timer_ != 0) return;
  ack_timer_ = timers_.after(kAckNs, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_ack_timer();
  });
}

void ResumingLink::acknowledge(Link& link) {
  static_cast<void>(link.send_control(bare(encode_acknowledge(received()))));  // if it is lost, the next link says it
  received_data_.note_acknowledged();
  received_control_.note_acknowledged();
  ack_link_ = nullptr;
}

void ResumingLink::on_ack_timer() {
  std::lock_guard lock(delivery_mutex_);
  ack_timer_ = 0;
  if (ack_link_ != nullptr) acknowledge(*ack_link_);
}

}  // namespace monarch
