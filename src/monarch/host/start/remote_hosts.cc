#include "monarch/host/start/remote_hosts.h"

#include <openssl/crypto.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "monarch/base/log.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/wire/failure.h"

namespace monarch {

namespace {

constexpr int64_t kRetryNs = 20'000'000, kRetryMaxNs = 500'000'000;
constexpr int64_t kOrderLimitNs = 10'000'000'000;  // for a host to be started, once it has been asked for
constexpr int64_t kKillLimitNs = 1'000'000'000;

uint32_t wanted_of(const Channel& channel) {
  const uint32_t room = channel.wants_room() ? uint32_t{EPOLLOUT} : 0;
  return EPOLLIN | room;
}

Identity identity_of(const HelloIdentity& hello) {
  Identity identity;
  identity.node = hello.node;
  identity.key = hello.key;
  identity.job = hello.job;
  identity.token = hello.token;
  return identity;
}

}  // namespace

RemoteHosts::~RemoteHosts() = default;

void RemoteHosts::attach(HostdAddress address, Bootstrap order) {
  const NodeId node = order.key.id();
  // shared: a posted task must be copyable
  auto remote = std::make_shared<Remote>();
  remote->address = std::move(address);
  remote->order = std::move(order);
  reactor_.post([this, node, remote] {
    remote->until_ns = reactor_.now_ns() + remote->address.wait_ns;
    if (awaited() == 0) told_of_wait_ = false;
    remotes_.emplace(node, std::move(*remote));
    attempt(node);
  });
}

// One for each token, with the certificates that go with it, and the way.
Result<std::shared_ptr<TcpTransport>> RemoteHosts::dialer(const JobToken& token, const HostdAddress& address) {
  std::erase_if(dialers_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<TcpTransport>& known = dialers_[{token, address.trusts_all, address.credentials, address.through}];
  if (auto there = known.lock()) return there;
  auto made = make_hostd_dialer(reactor_, token, address);
  if (!made) return made.error();
  if (address.through) (*made)->go_by(by_way_of(reactor_, *address.through));
  known = *made;
  return made;
}

void RemoteHosts::attempt(NodeId node) {
  const auto found = remotes_.find(node);
  if (found == remotes_.end()) return;
  Remote& remote = found->second;
  auto token = read_token_file(remote.address.token_file);
  if (!token) return fail(node, no_token(token.error()).message);
  auto made = dialer(*token, remote.address);
  if (!made) return fail(node, made.error().message);
  remote.dialer = *made;
  if (auto set = remote.dialer->set_place(node, *remote.address.tcp); !set) return fail(node, set.error().message);
  const Identity identity = identity_of(hostd_identity(NodeKey::make(random_), *token));
  bool busy = false;
  auto channel = remote.dialer->connect(identity, node, &busy);
  if (!channel) return channel.error().code == ErrorCode::kUnsupported ? fail(node, channel.error().message)
                                                                       : again(node, channel.error().message);
  Greeting::Events events;
  events.on_proved = [this, node](const HelloPeer&) { on_proved(node); };
  events.on_setup = [](char, std::vector<UniqueFd>, bool) {};
  events.on_end = [this, node](const Error& why, bool) {
    // What is wrong for good: another token, or none that speaks this.
    const bool good = why.code == ErrorCode::kUnsupported || why.code == ErrorCode::kMalformed;
    const std::string what = why.message + hint(node, why);
    good ? fail(node, what) : again(node, what);
  };
  remote.greeting = std::make_unique<Greeting>(reactor_, std::move(*channel), HelloRole::kDialer, identity, random_,
                                               kHostdHelloLimitNs, std::move(events));
  remote.greeting->begin();
}

// What may be done about it. Who has certificates of his own sees no token at work.
std::string RemoteHosts::hint(NodeId node, const Error& why) const {
  const auto found = remotes_.find(node);
  if (why.code != ErrorCode::kUnsupported || found == remotes_.end() || found->second.address.credentials) return "";
  return " (" + found->second.address.token_file + " may not hold its token)";
}

void RemoteHosts::again(NodeId node, const std::string& why) {
  const auto found = remotes_.find(node);
  if (found == remotes_.end()) return;
  Remote& remote = found->second;
  const int64_t left_ns = remote.until_ns - reactor_.now_ns();
  if (left_ns <= 0) return fail(node, why);
  let_go(remote);
  const int64_t tried_ns = remote.address.wait_ns - left_ns;
  remote.is_awaited = true;
  if (tried_ns >= kSilentWaitNs) tell_of_wait(remote, left_ns, why);
  reactor_.after(std::clamp(tried_ns / 4, kRetryNs, kRetryMaxNs), [this, node] { attempt(node); });
}

ptrdiff_t RemoteHosts::awaited() const {
  return std::ranges::count_if(remotes_, [](const auto& each) { return each.second.is_awaited && !each.second.started; });
}

// Once for all that are waited for by then: hundreds may be started by the same command.
void RemoteHosts::tell_of_wait(const Remote& remote, int64_t left_ns, const std::string& why) {
  if (told_of_wait_) return;
  told_of_wait_ = true;
  const ptrdiff_t others = awaited() - 1;
  const std::string more = others > 0 ? " and " + std::to_string(others) + " more" : "";
  log_line(waits_for(remote.address, more, left_ns, why));
}

// Later: we may be inside one of its callbacks.
void RemoteHosts::let_go(Remote& remote) {
  if (remote.channel) reactor_.remove(remote.channel->fd());
  if (remote.greeting) remote.greeting->stop();
  auto channel = std::shared_ptr<Channel>(std::move(remote.channel));
  auto greeting = std::shared_ptr<Greeting>(std::move(remote.greeting));
  reactor_.post([channel, greeting] {});
}

void RemoteHosts::on_proved(NodeId node) {
  Remote& remote = remotes_.at(node);
  auto channel = remote.greeting->take_channel();
  let_go(remote);
  remote.channel = std::move(channel);
  std::string order = encode_order(AttachOrder{remote.order, remote.address.identity});
  const bool sent = remote.channel->send_all(as_byte_span(order.data(), order.size()), {});
  OPENSSL_cleanse(order.data(), order.size());
  if (!sent) return fail(node, "it closed the connection");
  reactor_.add(remote.channel->fd(), wanted_of(*remote.channel), [this, node](uint32_t) { on_ready(node); });
  reactor_.after(kOrderLimitNs, [this, node] {
    const auto found = remotes_.find(node);
    if (found != remotes_.end() && !found->second.started) fail(node, "it does not start what it is asked for");
  });
}

void RemoteHosts::on_ready(NodeId node) {
  Remote& remote = remotes_.at(node);
  static_cast<void>(remote.channel->flush());
  reactor_.modify(remote.channel->fd(), wanted_of(*remote.channel));
  const bool open = remote.reader.read(*remote.channel);
  while (const auto message = remote.reader.next()) {
    auto report = decode_report(as_byte_span(message->data(), message->size()));
    if (!report) return fail(node, "what it says cannot be read: " + report.error().message);
    on_report(node, *report);
    if (!has(node)) return;
  }
  if (open) return;
  if (!remote.started) return fail(node, "it closed the connection");
  let_go(remote);
  if (remote.killed) remote.link_lost = "the connection to its monarch-hostd has ended";
  if (remote.link_lost) give_up(node);
}

void RemoteHosts::on_report(NodeId node, const HostReport& report) {
  Remote& remote = remotes_.at(node);
  switch (report.kind) {
    case HostReport::kFailed:
      return fail(node, report.text);
    case HostReport::kConnected:
    case HostReport::kRefused:
    case HostReport::kUnreachable:
      return fail(node, "what it says answers no order for a host");
    case HostReport::kExited:
      drop(node);
      return events_.on_exited(node, report.status);
    case HostReport::kStarted:
      if (std::exchange(remote.started, true)) return;
      if (remote.killed) kill(node);
      // Where the client has found its monarch-hostd, whatever that takes itself for.
      events_.on_started(node, {{remote.address.tcp->dial.host, report.port}, std::nullopt}, report);
  }
}

void RemoteHosts::fail(NodeId node, const std::string& why) {
  const auto found = remotes_.find(node);
  if (found == remotes_.end()) return;
  const std::string what = not_attached(found->second.address.to_text(), why);
  const bool started = found->second.started;
  drop(node);
  started ? events_.on_lost(node, why) : events_.on_not_started(node, what);
}

void RemoteHosts::drop(NodeId node) {
  auto found = remotes_.find(node);
  if (found->second.dialer) found->second.dialer->forget_place(node);
  let_go(found->second);
  remotes_.erase(found);
}

void RemoteHosts::kill(NodeId node) {
  const auto found = remotes_.find(node);
  if (found == remotes_.end()) return;
  Remote& remote = found->second;
  remote.killed = true;
  if (!remote.started) return fail(node, "it is not wanted any more");
  if (!remote.channel || !remote.channel->send_all({&kKillByte, 1}, {})) {
    drop(node);
    return events_.on_lost(node, "the connection to its monarch-hostd has ended");
  }
  reactor_.after(kKillLimitNs, [this, node] {
    if (!has(node)) return;
    drop(node);
    events_.on_lost(node, "its monarch-hostd does not answer");
  });
}

void RemoteHosts::link_lost(NodeId node, const std::string& why) {
  reactor_.post([this, node, why] {
    const auto found = remotes_.find(node);
    if (found == remotes_.end()) return;
    found->second.link_lost = why;
    if (!found->second.channel) return give_up(node);  // nobody is there to say more
    reactor_.after(kReportLimitNs, [this, node] { give_up(node); });
  });
}

void RemoteHosts::give_up(NodeId node) {
  const auto found = remotes_.find(node);
  if (found == remotes_.end()) return;
  const std::string why = *found->second.link_lost;
  if (found->second.channel) static_cast<void>(found->second.channel->send_all({&kKillByte, 1}, {}));
  drop(node);
  events_.on_lost(node, why);
}

}  // namespace monarch
