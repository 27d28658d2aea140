#include "monarch/net/connector.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/net/greeting.h"
#include "monarch/net/sessions.h"

namespace monarch {

namespace {

// So many may be proving themselves at one listener; the others wait in the kernel's queue.
constexpr size_t kStrangersMax = 256;
// So long each of them may take, however many wait; and when to look again whether one has.
constexpr int64_t kStrangerNs = 500'000'000;
constexpr int64_t kRoomLookNs = 20'000'000;
// How often a dialer tries again whose peer has too many others waiting.
constexpr int kBusyRetryMax = 1000;
constexpr int64_t kBusyRetryNs = 5'000'000;
// When something is short: when to look again.
constexpr int64_t kShortageRetryNs = 10'000'000;
constexpr int64_t kShortageRetryMaxNs = 500'000'000;

}  // namespace

// ---- Joining: one connection, from connect() or accept() to its link ----

class Connector::Joining {
 public:
  // `listener`: where they have dialled us; null: we them.
  Joining(Connector& connector, std::unique_ptr<Channel> channel, const Identity& identity, Transport* transport, Dial dial,
          Listener* listener)
      : connector_(connector), listener_(listener), began_ns_(connector.reactor_.now_ns()), dial_(std::move(dial)),
        transport_(transport) {
    Greeting::Events events;
    events.on_proved = [this](const HelloPeer& peer) { on_proved(peer); };
    events.on_setup = [this](char byte, std::vector<UniqueFd> fds, bool lost) { on_setup(byte, std::move(fds), lost); };
    events.on_end = [this](const Error& why, bool news) { of_stranger() ? on_end(why, news) : on_cut_short(why); };
    const HelloRole role = dial_.link ? HelloRole::kDialer : HelloRole::kAcceptor;
    const int64_t limit_ns =
        dial_.link ? std::min(connector.limits_.dial_ns, std::max(transport_->dial_limit_ns(), dial_.limit_ns))
                   : connector.limits_.accept_ns;
    greeting_.emplace(connector.reactor_, std::move(channel), role, identity, connector.random_, limit_ns,
                      std::move(events));
  }

  void begin() { greeting_->begin(); }
  bool of_stranger() const { return listener_ != nullptr; }
  bool is_counted() const { return listener_ != nullptr && !answered_; }
  Listener* listener() const { return listener_; }
  void give_way(int64_t begun_before_ns) {
    if (began_ns_ < begun_before_ns) on_end({ErrorCode::kDeadline, "no hello in time, while many others wait"}, true);
  }
  void abandon() {
    if (dial_.link) connector_.dial_failed(dial_, {ErrorCode::kClosed, "this process is ending"}, true);
  }

 private:
  void on_proved(const HelloPeer& peer) {
    peer_ = peer;
    if (of_stranger()) return;
    if (dial_.link->peer() != peer_.node) return on_end({ErrorCode::kClosed, "another node answered"}, true);
    setup_ = transport_->new_setup();
    auto fds = setup_->offer();
    if (!fds) return again(fds.error());
    if (!greeting_->send(transport_->code(), *fds)) send_failed("offer a link to another process");
  }

  void on_setup(char byte, std::vector<UniqueFd> fds, bool lost) {
    const Error no_descriptors{ErrorCode::kUnavailable, "out of file descriptors for a link to another process"};
    if (of_stranger()) {
      if (answered_) return on_done(byte);
      // What it has offered did not arrive, for want of descriptors here: it comes again.
      if (lost) return not_now(no_descriptors);
      return on_offer(byte, std::move(fds));
    }
    if (byte == kSetupNotNow) {
      return again({ErrorCode::kUnavailable, "the other process has no room for a link now (descriptors, memory, links)"});
    }
    if (byte != kSetupAgreed) return on_end({ErrorCode::kClosed, "the peer refused the transport"}, true);
    if (lost) return again(no_descriptors);
    if (auto agreed = setup_->agree(std::move(fds)); !agreed) return failed(agreed.error());
    if (!greeting_->send(kSetupDone, {})) return send_failed("set up a link to another process");
    start(*dial_.link);
  }

  void on_offer(char code, std::vector<UniqueFd> fds) {
    transport_ = connector_.transport_of(code);
    if (transport_ == nullptr) return on_end({ErrorCode::kUnsupported, "unknown transport"}, true);
    setup_ = transport_->new_setup();
    auto answer = setup_->accept(std::move(fds));
    if (!answer) return answer.error().code == ErrorCode::kUnavailable ? not_now(answer.error())
                                                                        : on_end(answer.error(), true);
    if (!greeting_->send(kSetupAgreed, *answer)) return send_failed("answer an offer of a link");
    // From now on nothing but its end says that it will not come: a limit could be over as it says that it has. (Where
    // nobody hears of an end, a session dials again.)
    if (transport_->lease_ns() == 0) greeting_->lift_limit();
    connector_.no_stranger_any_more(*this);
    answered_ = true;
  }

  // Before this there is no link: a dialer that lacks something for it, and dials again, is not one that dies.
  void on_done(char byte) {
    if (byte != kSetupDone) return on_end({ErrorCode::kMalformed, "that is no way to begin a link"}, true);
    start(*new_link());
  }

  std::shared_ptr<Link> new_link() {
    auto make = [this](LinkSink& sink) { return transport_->new_link(sink, peer_.node); };
    if (const int64_t lease_ns = transport_->lease_ns(); lease_ns != 0) {
      return connector_.sessions_->accepted(peer_.node, peer_.guest, lease_ns, make);
    }
    std::shared_ptr<Link> link = make(*connector_.sink_);
    connector_.events_.on_accepted(link, peer_.guest);  // first: answers to what arrives go back on this link
    return link;
  }

  void start(Link& link) {
    setup_->start(link, greeting_->take_channel());
    connector_.end_joining(this);
  }

  void send_failed(const char* what) {
    if (errno == EPIPE || errno == ECONNRESET) {
      const Error gone{ErrorCode::kClosed, "the peer went away"};
      return of_stranger() ? on_end(gone, false) : on_cut_short(gone);
    }
    const Error why = sys::shortage_error(what);
    of_stranger() ? not_now(why) : again(why);
  }
  // Dialer: `why` is a shortage, or the end of it.
  void failed(const Error& why) { why.code == ErrorCode::kUnavailable ? again(why) : on_end(why, true); }
  void again(const Error& why, bool tell = true) {
    greeting_->stop();
    connector_.dial_again(std::exchange(dial_, {}), why, tell);
    connector_.end_joining(this);
  }
  // Dialer. That a connection ends before there is a link is nobody's death: the acceptor drops who is silent for long, as
  // a stopped process is. If the peer is dead, the kernel refuses the next connection.
  void on_cut_short(const Error& why) {
    const bool refused = why.code != ErrorCode::kClosed && why.code != ErrorCode::kDeadline;
    if (refused || dial_.of_session) return on_end(why, true, refused);
    if (why.code == ErrorCode::kClosed) return again({ErrorCode::kUnavailable, why.message}, false);
    on_end({ErrorCode::kUnavailable, "the process does not answer; is it stopped?"}, true);
  }
  // Acceptor: the dialer tries again later.
  void not_now(const Error& why) {
    greeting_->send(kSetupNotNow, {});
    on_end(why, true);
  }

  // `news`: worth a line, where a peer that dialled us is concerned.
  // `for_good`: it is no use to dial again.
  void on_end(const Error& why, bool news, bool for_good = true) {
    if (dial_.link) {
      connector_.dial_failed(dial_, why, for_good);
    } else if (news) {
      log_line_limited("refused a connection", "refused a connection: " + why.message);
    }
    greeting_->stop();
    connector_.end_joining(this);
  }

  Connector& connector_;
  Listener* const listener_;
  const int64_t began_ns_;
  bool answered_ = false;  // acceptor: the offer
  Dial dial_;
  Transport* transport_;  // acceptor: once the peer has named it
  std::optional<Greeting> greeting_;
  std::unique_ptr<LinkSetup> setup_;
  HelloPeer peer_;
};

// ---- Connector ----

Connector::Connector(Reactor& reactor, std::vector<std::unique_ptr<Transport>> transports, std::string_view preferred,
                     const Identity& identity, const Limits& limits)
    : reactor_(reactor), transports_(std::move(transports)), preferred_(nullptr), identity_(identity), limits_(limits) {
  for (const auto& transport : transports_) {
    if (transport->name() == preferred) preferred_ = transport.get();
  }
  MONARCH_CHECK(preferred_ != nullptr);
}

Connector::~Connector() {
  if (sessions_) sessions_->end();
}

size_t Connector::carriers() const { return sessions_->carriers(); }

void Connector::set_sink(LinkSink& sink, Events events) {
  sink_ = &sink;
  events_ = std::move(events);
  sessions_ = Sessions::make(reactor_, random_, sink,
                             {[this](std::shared_ptr<Link> link, bool guest) {
                                events_.on_accepted(std::move(link), guest);
                              },
                              events_.is_down});
}

Transport* Connector::transport_of(char code) const {
  for (const auto& transport : transports_) {
    if (transport->code() == code) return transport.get();
  }
  return nullptr;
}

Result<Connector::NewChild> Connector::new_child(NodeId child) {
  auto listener = preferred_->listen(identity_.job, child);
  if (!listener) return listener.error();
  return NewChild{preferred_->new_link(*sink_, child), std::move(*listener)};
}

Result<std::shared_ptr<Link>> Connector::adopt_parent(NodeId parent, ChildEnds ends) {
  std::shared_ptr<Link> link = preferred_->new_link(*sink_, parent);
  if (auto started = preferred_->start_to_parent(*link, std::move(ends)); !started) return started.error();
  return link;
}

// ---- Accepting ----

Status Connector::listen(UniqueFd given) {
  std::vector<std::string> places;
  for (const auto& transport : transports_) {
    std::string place = transport->describe(identity_);
    if (place.empty() || std::find(places.begin(), places.end(), place) != places.end()) continue;  // they share a listener
    places.push_back(std::move(place));
    auto listener = std::make_unique<Listener>(Listener{transport.get(), std::move(given)});
    if (!listener->socket) {
      auto made = transport->listen(identity_.job, identity_.node);
      if (!made) return made.error();
      listener->socket = std::move(*made);
    }
    Listener* key = listener.get();
    listeners_.push_back(std::move(listener));
    reactor_.add(key->socket.get(), EPOLLIN, [this, key](uint32_t) { accept(*key); });
  }
  return Ok{};
}

void Connector::accept(Listener& listener) {
  UniqueFd socket = sys::accept(listener.socket.get());
  if (!socket) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // It stays in the kernel's queue, and would wake us for ever.
    if (!std::exchange(listener.short_said, true)) log_line(sys::shortage_error("accept a connection").message);
    return pause(listener, kShortageRetryMaxNs);
  }
  listener.short_said = false;
  auto admitted = listener.transport->admit(std::move(socket));
  if (!admitted) {
    return log_line_limited("refused a connection", "refused a connection: " + admitted.error().message);
  }
  start_joining(std::move(*admitted), identity_, nullptr, {}, &listener);
  if (listener.strangers < kStrangersMax) return;
  pause(listener, 0);
  if (listener.transport->open_to_strangers() && !listener.looks_for_room) look_for_room(listener);
}

// Who has had the time to prove itself and has not goes: else a few hundred that say nothing keep everybody out.
void Connector::look_for_room(Listener& listener) {
  for (const auto& [joining, owned] : joinings_) {
    if (joining->listener() == &listener && joining->is_counted()) joining->give_way(reactor_.now_ns() - kStrangerNs);
  }
  listener.looks_for_room = true;
  reactor_.after(kRoomLookNs, [this, &listener] {
    if (closed_) return;
    listener.looks_for_room = false;
    if (listener.strangers >= kStrangersMax) look_for_room(listener);
  });
}

// Until `delay_ns` are over; 0: until there is room for one more stranger.
void Connector::pause(Listener& listener, int64_t delay_ns) {
  listener.paused = true;
  reactor_.modify(listener.socket.get(), 0);
  if (delay_ns != 0) reactor_.after(delay_ns, [this] { resume_listeners(); });
}

void Connector::resume_listeners() {
  if (closed_) return;
  for (const auto& listener : listeners_) {
    if (listener->strangers >= kStrangersMax || !std::exchange(listener->paused, false)) continue;
    reactor_.modify(listener->socket.get(), EPOLLIN);
  }
}

void Connector::start_joining(std::unique_ptr<Channel> channel, const Identity& identity, Transport* transport, Dial dial,
                              Listener* listener) {
  auto joining = std::make_unique<Joining>(*this, std::move(channel), identity, transport, std::move(dial), listener);
  Joining* key = joining.get();
  if (listener != nullptr) ++listener->strangers;
  joinings_.emplace(key, std::move(joining));
  key->begin();
}

void Connector::end_joining(Joining* joining) {
  // Later: we may be inside one of its callbacks.
  reactor_.post([this, joining] {
    auto found = joinings_.find(joining);
    if (found == joinings_.end()) return;
    if (found->second->is_counted()) --found->second->listener()->strangers;
    joinings_.erase(found);
    resume_listeners();
  });
}

void Connector::no_stranger_any_more(const Joining& joining) {
  MONARCH_CHECK(joining.is_counted());
  --joining.listener()->strangers;
  resume_listeners();
}

// ---- Dialling ----

std::shared_ptr<Link> Connector::dial(NodeId node) {
  const Identity as = events_.identity_for ? events_.identity_for(node) : identity_;
  const bool elsewhere = as.job == identity_.job && host_number(node) != host_number(identity_.node);
  const auto reaches = [&](const Transport& transport) {
    return (!elsewhere || transport.lease_ns() != 0) && transport.reaches(as, node);
  };
  Transport* transport = reaches(*preferred_) ? preferred_ : nullptr;
  for (const auto& other : transports_) {
    if (transport == nullptr && reaches(*other)) transport = other.get();
  }
  if (transport == nullptr) return nullptr;
  if (transport->lease_ns() == 0) return connect(*transport, node, *sink_, false, 0);
  auto session = new_session(*transport, node, 0);
  session->begin();
  return session;
}

std::shared_ptr<Link> Connector::connect(Transport& transport, NodeId node, LinkSink& sink, bool of_session,
                                         int64_t limit_ns) {
  Dial dial{transport.new_link(sink, node), &transport};
  dial.of_session = of_session;
  dial.limit_ns = limit_ns;
  std::shared_ptr<Link> link = dial.link;
  reactor_.post([this, dial = std::move(dial)] { try_dial(dial); });
  return link;
}

std::shared_ptr<ResumingLink> Connector::new_session(Transport& transport, NodeId node, int64_t opening_ns) {
  const auto dial = [this, &transport, node, limit_ns = opening_ns / 2](LinkSink& sink) {
    return connect(transport, node, sink, true, limit_ns);
  };
  return sessions_->make_session(node, transport.lease_ns(), dial, std::max(transport.opening_ns(), opening_ns));
}

std::shared_ptr<ResumingLink> Connector::new_remote(NodeId node, int64_t opening_ns) {
  for (const auto& transport : transports_) {
    if (transport->lease_ns() != 0) return new_session(*transport, node, opening_ns);
  }
  MONARCH_CHECK(!"a process of another host, without a transport that goes there");
}

void Connector::dial_failed(const Dial& dial, const Error& why, bool for_good) {
  if (!dial.of_session || !for_good) return dial.link->peer_died(why);
  dial.link->peer_died(Error{ErrorCode::kRefused, why.message});
}

void Connector::try_dial(Dial dial) {
  if (dial.link->closed()) return;  // the peer was declared dead meanwhile
  if (closed_) return dial_failed(dial, {ErrorCode::kClosed, "this process is ending"}, true);
  const NodeId peer = dial.link->peer();
  const Identity as = events_.identity_for ? events_.identity_for(peer) : identity_;
  bool busy = false;
  auto channel = dial.transport->connect(as, peer, &busy);
  if (channel) return start_joining(std::move(*channel), as, dial.transport, std::move(dial), nullptr);
  if (channel.error().code != ErrorCode::kUnavailable) return dial_failed(dial, channel.error(), true);
  if (!busy) return dial_again(std::move(dial), channel.error());
  if (dial.attempt >= kBusyRetryMax) return dial.link->peer_died(channel.error());
  ++dial.attempt;
  reactor_.after(kBusyRetryNs, [this, dial = std::move(dial)] { try_dial(dial); });
}

// `tell`: a line says what is short.
void Connector::dial_again(Dial dial, const Error& why, bool tell) {
  if (dial.of_session) return dial.link->peer_died(why);  // it has a time of its own for that
  const int64_t now_ns = reactor_.now_ns();
  if (dial.failing_since_ns == 0) {
    dial.failing_since_ns = now_ns;
    dial.attempt = 0;
  } else if (now_ns - dial.failing_since_ns > kShortageLimitNs) {
    return dial.link->peer_died(why);
  }
  if (tell && !std::exchange(dial.told, true)) {
    log_line(why.message + "; trying again for " + std::to_string(kShortageLimitNs / 1'000'000'000) + " s");
  }
  const int64_t delay_ns = std::min(kShortageRetryNs << std::min(dial.attempt++, 16), kShortageRetryMaxNs);
  reactor_.after(delay_ns, [this, dial = std::move(dial)] { try_dial(dial); });
}

void Connector::close() {
  closed_ = true;
  for (const auto& listener : listeners_) reactor_.remove(listener->socket.get());
  listeners_.clear();
  for (auto& [key, greeting] : joinings_) greeting->abandon();
  joinings_.clear();
}

}  // namespace monarch
