#include "monarch/host/connector.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <vector>

#include "monarch/base/hex.h"
#include "monarch/base/log.h"

namespace monarch {

namespace {

// A stranger has this long to prove itself. A peer that was dialled may take long to start, but is known to live.
constexpr int64_t kAcceptLimitNs = 5'000'000'000;
constexpr int64_t kDialLimitNs = 120'000'000'000;
// How often a dialer tries again whose peer has too many others waiting.
constexpr int kDialRetryMax = 1000;
constexpr int64_t kDialRetryNs = 5'000'000;

// The abstract name under which a node of the job listens.
socklen_t listen_address(const JobId& job, NodeId node, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string name = "monarch-" + to_hex(job.data(), job.size()) + "-" + to_hex(&node, sizeof node);
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Result<UniqueFd> make_listener(const JobId& job, NodeId node) {
  sockaddr_un address;
  const socklen_t size = listen_address(job, node, &address);
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), 512) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("cannot listen for peers: ") + std::strerror(errno)};
  }
  return listener;
}

UniqueFd duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

// A byte with up to three descriptors beside it: what follows the hello.
bool send_fds(int socket, char byte, std::initializer_list<int> fds) {
  iovec iov{&byte, 1};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 3)] = {};
  if (fds.size() != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), std::data(fds), sizeof(int) * fds.size());
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

bool same_user(int socket) {
  ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

Result<OwnBell> OwnBell::make() {
  auto fd = make_shared_memory("monarch-bell", 4096);
  if (!fd) return fd.error();
  return adopt(std::move(*fd), UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
}

Result<OwnBell> OwnBell::adopt(UniqueFd page_fd, UniqueFd event_fd) {
  auto page = map_shared_memory(page_fd.get(), sizeof(BellPage));
  if (!page) return page.error();
  return OwnBell{std::move(page_fd), std::move(event_fd), std::move(*page)};
}

// ---- Greeting: one connection between connect() and its link ----

class Connector::Greeting {
 public:
  // With a link: to its peer, which we have dialled as `identity`.
  Greeting(Connector& connector, UniqueFd socket, const Identity& identity, std::shared_ptr<Link> link)
      : connector_(connector),
        socket_(std::move(socket)),
        role_(link ? HelloRole::kDialer : HelloRole::kAcceptor),
        link_(std::move(link)),
        hello_(role_, hello_identity(identity), connector.random_),
        wanted_(hello_.bytes_wanted()) {
    Reactor& reactor = connector_.context_.reactor;
    reactor.add(socket_.get(), EPOLLIN, [this](uint32_t) { on_readable(); });
    const int64_t limit_ns = role_ == HelloRole::kDialer ? kDialLimitNs : kAcceptLimitNs;
    limit_ = reactor.after(limit_ns, [this] { end({ErrorCode::kDeadline, "no hello in time"}); });
    // A dialer that has died since has left its own open: read first, to know who it was.
    if (!send_bytes(hello_.open_bytes()) && role_ == HelloRole::kDialer) end("the peer went away");
  }
  ~Greeting() {
    connector_.context_.reactor.cancel(limit_);
    if (socket_) connector_.context_.reactor.remove(socket_.get());
  }

  void abandon() {
    if (link_) fail_link(Error{ErrorCode::kClosed, "this process is ending"});
  }

 private:
  static HelloIdentity hello_identity(const Identity& identity) {
    HelloIdentity hello;
    hello.node = identity.node;
    hello.job = identity.job;
    hello.token = identity.token;
    hello.features = kFeatureShm | kFeatureArena | (identity.guest ? kFeatureGuest : 0);
    return hello;
  }

  bool send_bytes(ByteSpan bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  void on_readable() {
    while (!over_) {
      std::byte buffer[128];
      iovec iov{buffer, wanted_ - have_.size()};
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 3)];
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count <= 0) return gone("the peer closed the connection during the hello");
      for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const size_t fd_count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fd_count; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
          fds_.emplace_back(fd);
        }
      }
      // They belong beside the one byte that follows a good hello, three at most.
      if (!fds_.empty() && (peer_.node == 0 || fds_.size() > 3)) return end("descriptors out of turn");
      have_.insert(have_.end(), buffer, buffer + count);
      if (have_.size() < wanted_) continue;
      std::vector<std::byte> bytes = std::move(have_);
      have_.clear();
      step(bytes);
    }
  }

  // One complete piece has come: the peer's open, its proof, or the byte with the descriptors.
  void step(const std::vector<std::byte>& bytes) {
    if (peer_.node != 0) return on_setup(static_cast<char>(bytes[0]));
    if (hello_.state() == Handshake::State::kAwaitingOpen) {
      auto proof = hello_.on_open(bytes);
      if (!proof) return end(proof.error());
      if (!send_bytes(*proof)) return gone("the peer went away");
      wanted_ = hello_.bytes_wanted();
      return;
    }
    auto peer = hello_.on_proof(bytes);
    if (!peer) return end(peer.error());
    peer_ = *peer;
    wanted_ = 1;
    if (role_ != HelloRole::kDialer) return;
    if (link_->peer() != peer_.node) return end("another node answered");
    if (!offer()) end("cannot offer a transport");
  }

  // Dialer: the transport that this process wants, and what it needs.
  bool offer() {
    OwnBell& own = connector_.bell_;
    if (connector_.transport_ == Transport::kUnix) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
      data_.reset(pair[0]);
      UniqueFd theirs(pair[1]);
      return send_fds(socket_.get(), 'u', {theirs.get()});
    }
    auto rings = make_shared_memory("monarch-ring", sizeof(RingPair));
    if (!rings) return false;
    auto mapping = map_shared_memory(rings->get(), sizeof(RingPair));
    if (!mapping) return false;
    rings_ = std::move(*mapping);
    return send_fds(socket_.get(), 's', {rings->get(), own.page_fd.get(), own.event_fd.get()});
  }

  void on_setup(char byte) {
    if (role_ == HelloRole::kDialer) return byte == 'k' ? on_agreed() : end("the peer refused the transport");
    link_ = connector_.new_link_for(byte == 'u' ? Transport::kUnix : Transport::kShm, peer_.node);
    if (byte == 'u' && fds_.size() == 1) {
      if (!send_fds(socket_.get(), 'k', {})) return gone("the peer went away");
      data_ = std::move(fds_[0]);
      return accepted();
    }
    if (byte == 's' && fds_.size() == 3) {
      auto rings = map_shared_memory(fds_[0].get(), sizeof(RingPair));
      auto page = map_shared_memory(fds_[1].get(), sizeof(BellPage));
      if (!rings || !page) return end("bad shared memory");
      OwnBell& own = connector_.bell_;
      if (!send_fds(socket_.get(), 'k', {own.page_fd.get(), own.event_fd.get()})) return gone("the peer went away");
      rings_ = std::move(*rings);
      bell_ = PeerBell{std::move(*page), std::move(fds_[2])};
      return accepted();
    }
    end("unknown transport");
  }

  void on_agreed() {
    if (connector_.transport_ == Transport::kShm) {
      if (fds_.size() != 2) return end("bad answer");
      auto page = map_shared_memory(fds_[0].get(), sizeof(BellPage));
      if (!page) return end("bad shared memory");
      bell_ = PeerBell{std::move(*page), std::move(fds_[1])};
    }
    start_link(0);
    finish();
  }

  void accepted() {
    connector_.events_.on_accepted(link_, peer_.guest);  // first: answers to what arrives go back on this link
    start_link(1);
    finish();
  }

  void start_link(int side) {
    connector_.context_.reactor.remove(socket_.get());
    if (data_) {
      static_cast<UnixLink&>(*link_).start(std::move(data_), std::move(socket_));
    } else {
      static_cast<ShmLink&>(*link_).start(
          {peer_.node, side, std::move(rings_), std::move(bell_), std::move(socket_)});
    }
  }

  void fail_link(const Error& why) {
    if (auto* shm = dynamic_cast<ShmLink*>(link_.get())) shm->fail(why);
    if (auto* unix_link = dynamic_cast<UnixLink*>(link_.get())) unix_link->fail(why);
  }

  // A process that dies in the middle of a hello that was good so far is no news here: who has started it says so.
  void gone(const char* why) {
    if (role_ == HelloRole::kAcceptor && hello_.state() != Handshake::State::kAwaitingOpen) return finish();
    end(why);
  }
  void end(const char* why) { end({ErrorCode::kClosed, why}); }
  void end(const Error& why) {
    if (over_) return;
    if (role_ == HelloRole::kAcceptor) {
      log_line("refused a connection: " + why.message);
    } else {
      fail_link(why);
    }
    finish();
  }

  void finish() {
    over_ = true;
    connector_.end_greeting(this);
  }

  Connector& connector_;
  UniqueFd socket_;
  const HelloRole role_;
  std::shared_ptr<Link> link_;  // dialer: from the start; acceptor: once the peer has proved itself
  Handshake hello_;
  size_t wanted_;
  std::vector<std::byte> have_;
  std::vector<UniqueFd> fds_;
  HelloPeer peer_;
  Mapping rings_;
  PeerBell bell_;
  UniqueFd data_;
  Reactor::TimerId limit_ = 0;
  bool over_ = false;
};

// ---- Connector ----

Connector::Connector(ShmContext context, OwnBell& bell, const Identity& identity, Transport transport)
    : context_(std::move(context)), bell_(bell), identity_(identity), transport_(transport) {}

Connector::~Connector() = default;

void Connector::set_sink(LinkSink& sink, Events events) {
  sink_ = &sink;
  events_ = std::move(events);
}

std::shared_ptr<Link> Connector::new_link_for(Transport transport, NodeId peer) {
  if (transport == Transport::kUnix) return std::make_shared<UnixLink>(context_.reactor, *sink_, peer);
  return std::make_shared<ShmLink>(context_, *sink_, peer);
}

Result<std::shared_ptr<Link>> Connector::make_child(NodeId child, BootstrapFds& fds) {
  const Error no_sockets{ErrorCode::kUnavailable, "cannot make sockets for a new process"};
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return no_sockets;
  UniqueFd socket(pair[0]);
  fds[kFdSocket].reset(pair[1]);
  auto listener = make_listener(identity_.job, child);
  if (!listener) return listener.error();
  fds[kFdListener] = std::move(*listener);
  auto bell = OwnBell::make();
  if (!bell) return bell.error();
  fds[kFdParentBell] = duplicate(bell_.page_fd.get());
  fds[kFdParentEvent] = duplicate(bell_.event_fd.get());
  std::shared_ptr<Link> link = new_link_for(transport_, child);
  if (transport_ == Transport::kUnix) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return no_sockets;
    fds[kFdData].reset(pair[1]);
    static_cast<UnixLink&>(*link).start(UniqueFd(pair[0]), std::move(socket));
  } else {
    auto rings = make_shared_memory("monarch-ring", sizeof(RingPair));
    if (!rings) return rings.error();
    auto mapping = map_shared_memory(rings->get(), sizeof(RingPair));
    if (!mapping) return mapping.error();
    fds[kFdData] = std::move(*rings);
    PeerBell peer{std::move(bell->page), duplicate(bell->event_fd.get())};
    static_cast<ShmLink&>(*link).start({child, 0, std::move(*mapping), std::move(peer), std::move(socket)});
  }
  fds[kFdBell] = std::move(bell->page_fd);
  fds[kFdEvent] = std::move(bell->event_fd);
  return link;
}

Result<std::shared_ptr<Link>> Connector::adopt_parent(const Bootstrap& bootstrap, BootstrapFds& fds) {
  std::shared_ptr<Link> link = new_link_for(transport_, bootstrap.parent);
  if (transport_ == Transport::kUnix) {
    static_cast<UnixLink&>(*link).start(std::move(fds[kFdData]), std::move(fds[kFdSocket]));
    return link;
  }
  auto rings = map_shared_memory(fds[kFdData].get(), sizeof(RingPair));
  if (!rings) return rings.error();
  auto page = map_shared_memory(fds[kFdParentBell].get(), sizeof(BellPage));
  if (!page) return page.error();
  PeerBell peer{std::move(*page), std::move(fds[kFdParentEvent])};
  static_cast<ShmLink&>(*link).start(
      {bootstrap.parent, 1, std::move(*rings), std::move(peer), std::move(fds[kFdSocket])});
  fds[kFdData].reset();
  return link;
}

Status Connector::listen(UniqueFd listener) {
  if (!listener) {
    auto made = make_listener(identity_.job, identity_.node);
    if (!made) return made.error();
    listener = std::move(*made);
  }
  listener_ = std::move(listener);
  context_.reactor.add(listener_.get(), EPOLLIN, [this](uint32_t) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (!same_user(socket.get())) {
      log_line("refused a connection: it comes from another user");
      return;
    }
    start_greeting(std::move(socket), identity_, nullptr);
  });
  return Ok{};
}

void Connector::start_greeting(UniqueFd socket, const Identity& identity, std::shared_ptr<Link> link) {
  auto greeting = std::make_unique<Greeting>(*this, std::move(socket), identity, std::move(link));
  Greeting* key = greeting.get();
  greetings_.emplace(key, std::move(greeting));
}

void Connector::end_greeting(Greeting* greeting) {
  // Later: we may be inside one of its callbacks.
  context_.reactor.post([this, greeting] { greetings_.erase(greeting); });
}

std::shared_ptr<Link> Connector::dial(NodeId node) {
  std::shared_ptr<Link> link = new_link_for(transport_, node);
  context_.reactor.post([this, link] { try_dial(link, 0); });
  return link;
}

void Connector::try_dial(const std::shared_ptr<Link>& link, int attempt) {
  if (link->closed()) return;  // the peer was declared dead meanwhile
  const Identity identity = events_.identity_for ? events_.identity_for(link->peer()) : identity_;
  sockaddr_un address;
  const socklen_t size = listen_address(identity.job, link->peer(), &address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket && connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) {
    return start_greeting(std::move(socket), identity, link);
  }
  const int error = errno;
  // Its queue is full. If it were refused, it would be dead: it listens from before it exists to its end.
  if (error == EAGAIN && attempt < kDialRetryMax) {
    context_.reactor.after(kDialRetryNs, [this, link, attempt] { try_dial(link, attempt + 1); });
    return;
  }
  const Error why{ErrorCode::kClosed, std::string("the process cannot be reached: ") + std::strerror(error)};
  if (auto* shm = dynamic_cast<ShmLink*>(link.get())) shm->fail(why);
  if (auto* unix_link = dynamic_cast<UnixLink*>(link.get())) unix_link->fail(why);
}

void Connector::close() {
  if (listener_) context_.reactor.remove(listener_.get());
  listener_.reset();
  for (auto& [key, greeting] : greetings_) greeting->abandon();
  greetings_.clear();
}

}  // namespace monarch
