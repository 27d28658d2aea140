#include "monarch/host/hostd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/base/random.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/runtime.h"
#include "monarch/host/stacks/crash_handler.h"
#include "monarch/host/start/attach.h"
#include "monarch/host/start/bootstrap.h"
#include "monarch/host/start/fork_server.h"
#include "monarch/host/start/life.h"
#include "monarch/host/start/memory_events.h"
#include "monarch/host/start/relay.h"

namespace monarch {

namespace {

// A client that ends it stops its host first, which is then an end that it has asked for.
constexpr int64_t kEndAfterNs = 1'000'000'000;
constexpr int kTellLimitMs = 5000;  // how long a client may take to hear of its host
constexpr int kMemoryLookMs = 2'000;  // how old what is known of kills by the OOM killer may be, or twice that
constexpr int kBlindWaitMs = 50;    // where there is no descriptor to hear of an end
constexpr int64_t kSayEveryNs = 1'000'000'000;
constexpr int64_t kShortageNs = 100'000'000;  // until it is tried again
constexpr int kServed = 1;  // the exit status of a keeper whose client had a host
// Who has gone may have been the last, and the daemon about to end.
constexpr int64_t kWarmAfterNs = 20'000'000;
constexpr int64_t kKillLimitNs = 3'000'000'000;  // for keepers to end all that they have
// What a host's processes have when it ends, before they are killed.
constexpr int64_t kHostGraceNs = HostDaemon::kEndLimitNs * 3 / 5;
// What they have printed, to reach a script that is slow.
constexpr int64_t kOutputLimitNs = 1'000'000'000;

bool is_ours(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool is_socket(const std::string& path) {
  struct stat found;
  return path[0] == '@' || (lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode));
}

// Whether what is there is the socket of a daemon that was killed. Nothing else is to be removed.
bool is_left(const std::string& path, const sockaddr_un& address, socklen_t size) {
  if (path[0] == '@' || !is_socket(path)) return false;
  const UniqueFd probe = sys::make_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
  return probe && connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 && errno == ECONNREFUSED;
}

void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// A child ends with its parent, which may have ended before that could be said.
void end_with_parent(pid_t parent, int signal) {
  prctl(PR_SET_PDEATHSIG, signal);
  if (getppid() != parent) _exit(1);
}

// Those that have come to this process when what had started them ended.
void reap_orphans(pid_t but) {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && info.si_pid != but) {
    waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED);
    info = {};
  }
}

}  // namespace

// ---- The daemon ----

Result<std::unique_ptr<HostDaemon>> HostDaemon::make(Reactor& reactor, Options options) {
  std::unique_ptr<HostDaemon> daemon(new HostDaemon(reactor, std::move(options)));
  auto& given = daemon->options_.token;
  auto token = given ? Result<JobToken>(*given) : read_or_make_token_file(daemon->options_.address.token_file);
  if (!token) return token.error();
  daemon->token_ = *token;
  if (given) explicit_bzero(given->data(), given->size());
  if (auto listening = daemon->listen(); !listening) return listening.error();
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  daemon->signals_ = sys::make_signalfd(&wanted);
  if (!daemon->signals_ || !sys::make_pipe(daemon->alive_) || !sys::make_pipe(daemon->orders_, O_NONBLOCK)) {
    return sys::shortage_error("start a host");
  }
  return daemon;
}

HostDaemon::~HostDaemon() = default;

Status HostDaemon::listen_tcp() {
  TcpTransport::Options tcp;
  tcp.listen = options_.address.tcp;
  const auto& own = options_.address.credentials;
  const auto trust = options_.address.trusts_all ? TlsContext::Trust::kAnybody : TlsContext::Trust::kAuthority;
  auto tls = own ? TlsContext::make(*own, trust) : TlsContext::of_secret(token_, host_name());
  if (!tls) return tls.error();
  tcp.tls = std::move(*tls);
  tcp_ = std::make_unique<TcpTransport>(reactor_, std::move(tcp));
  auto listener = tcp_->listen({}, 0);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  if (const auto place = tcp_->place()) options_.address.tcp = place;
  hosts_listen_ = {SocketAddress::of_socket(listener_.get()).host(), 0};
  return Ok{};
}

Status HostDaemon::listen() {
  if (options_.address.tcp) return listen_tcp();
  const std::string& path = options_.address.path;
  sockaddr_un address;
  auto size = socket_address(path, address);
  if (!size) return size.error();
  listener_ = sys::make_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
  if (!listener_) return sys::shortage_error("make a socket");
  const mode_t mask = umask(0177);
  const auto bind_it = [&] { return bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), *size) == 0; };
  bool bound = bind_it();
  int error = errno;
  if (!bound && error == EADDRINUSE && is_left(path, address, *size)) {
    unlink(path.c_str());
    bound = bind_it();
    error = errno;
  }
  umask(mask);
  if (bound && ::listen(listener_.get(), SOMAXCONN) == 0) return Ok{};
  if (bound) error = errno;
  const std::string why = error != EADDRINUSE ? std::strerror(error)
                          : is_socket(path)   ? "another one does"
                                              : "something else is there, which is no socket";
  return Error{ErrorCode::kUnavailable, "cannot listen at ipc://" + path + ": " + why};
}

// Lines that strangers bring about are few, however many strangers there are. No thread: this process forks.
void HostDaemon::say(const std::string& line) {
  const int64_t now_ns = clock_.now_ns();
  if (said_ns_ != 0 && now_ns - said_ns_ < kSayEveryNs) {
    ++unsaid_;
    return;
  }
  said_ns_ = now_ns;
  const std::string more = unsaid_ == 0 ? "" : " (and " + std::to_string(std::exchange(unsaid_, 0)) + " more)";
  dprintf(STDERR_FILENO, "%smonarch-hostd: %s%s\n", line_time().c_str(), line.c_str(), more.c_str());
}

// How long each of them has to prove itself.
int64_t HostDaemon::stranger_limit_ns() const {
  return strangers_.size() < kStrangersMax ? kHostdHelloLimitNs : kGiveWayNs;
}

int64_t HostDaemon::next_ns() const {
  int64_t next = INT64_MAX;
  for (const Stranger& stranger : strangers_) next = std::min(next, stranger.began_ns + stranger_limit_ns());
  for (const int64_t time_ns : {accept_after_ns_, warm_change_ns_}) {
    if (time_ns != 0) next = std::min(next, time_ns);
  }
  return next;
}

int HostDaemon::run() {
  for (;;) {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0},
                               {orders_[0].get(), POLLIN, 0},
                               {options_.lifeline ? options_.lifeline.get() : -1, POLLIN, 0},
                               {may_accept() ? listener_.get() : -1, POLLIN, 0}};
    const size_t first_stranger = fds.size();
    for (const Stranger& stranger : strangers_) {
      const Channel& channel = *stranger.channel;
      fds.push_back({channel.fd(), static_cast<short>(POLLIN | (channel.wants_room() ? POLLOUT : 0)), 0});
    }
    const int64_t next = next_ns();
    const int64_t wait_ms = next == INT64_MAX ? -1 : std::max<int64_t>(0, (next - clock_.now_ns()) / 1'000'000 + 1);
    if (poll(fds.data(), fds.size(), static_cast<int>(wait_ms)) < 0) continue;  // a signal that says nothing
    signalfd_siginfo info;
    bool ends = fds[1].revents != 0 || (fds[2].revents != 0 && lifeline_ended());
    while (fds[0].revents != 0 && read(signals_.get(), &info, sizeof info) == sizeof info) {
      ends = ends || info.ssi_signo != SIGCHLD;
    }
    if (fds[0].revents != 0) reap();
    if (ends) break;
    if (warm_change_ns_ != 0 && clock_.now_ns() >= warm_change_ns_) warm_up();
    const int64_t late_before_ns = clock_.now_ns() - stranger_limit_ns();
    heard_ = std::exchange(strangers_, {});
    for (size_t i = 0; i < heard_.size(); ++i) {
      Stranger& stranger = heard_[i];
      const bool late = stranger.began_ns <= late_before_ns;
      if (late) say("a connection did not prove itself in time");
      if (!late && (fds[first_stranger + i].revents == 0 || hear(stranger))) strangers_.push_back(std::move(stranger));
    }
    heard_.clear();
    if (fds[3].revents != 0) accept();
  }
  end();
  return 0;
}

// A byte: whoever holds the other end has seen to it that the daemon is found again, and lets go of it.
bool HostDaemon::lifeline_ended() {
  char byte;
  const ssize_t count = read(options_.lifeline.get(), &byte, 1);
  if (count == 1) options_.lifeline.reset();
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

bool HostDaemon::may_accept() {
  if (accept_after_ns_ != 0 && clock_.now_ns() >= accept_after_ns_) accept_after_ns_ = 0;
  return accept_after_ns_ == 0 && strangers_.size() < kStrangersMax;
}

void HostDaemon::accept() {
  UniqueFd socket = sys::accept(listener_.get());
  if (!socket && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {  // who waits there is told of again at once
    say("cannot take a connection: " + std::string(std::strerror(errno)));
    accept_after_ns_ = clock_.now_ns() + kShortageNs;
  }
  if (!socket) return;
  if (!tcp_ && !is_ours(socket.get())) return say("refused a connection of another user");
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  std::unique_ptr<Channel> channel;
  if (tcp_) {
    auto admitted = tcp_->admit(std::move(socket));
    if (!admitted) return say("refused a connection: " + admitted.error().message);
    channel = std::move(*admitted);
  } else {
    channel = std::make_unique<SocketChannel>(std::move(socket));
  }
  SystemRandom random;
  auto hello = std::make_unique<Handshake>(HelloRole::kAcceptor, hostd_identity(NodeKey::make(random), token_), random);
  Stranger stranger{std::move(channel), std::move(hello), clock_.now_ns()};
  if (hear(stranger)) strangers_.push_back(std::move(stranger));
}

// False: it is no stranger any more.
bool HostDaemon::hear(Stranger& stranger) {
  Channel& channel = *stranger.channel;
  Handshake& hello = *stranger.hello;
  const auto refuse = [&](const std::string& why) {
    say("refused a connection: " + why);
    return false;
  };
  // Over TCP TLS has said by now that it is none of those who are worth a line.
  const auto gone = [&](const std::string& why) { return tcp_ ? false : refuse(why); };
  if (!stranger.established) {
    auto established = channel.establish();
    if (!established) return refuse(established.error().message);
    if (!*established) return true;
    stranger.established = true;
    if (const auto binding = channel.binding()) hello.bind_to(*binding);
    if (!channel.send_all(hello.open_bytes(), {})) return gone("it went away");
  }
  static_cast<void>(channel.flush());
  while (hello.state() == Handshake::State::kAwaitingOpen || hello.state() == Handshake::State::kAwaitingProof) {
    std::byte bytes[256];
    const size_t wanted = hello.bytes_wanted() - stranger.have.size();
    const auto got = channel.receive(std::span(bytes).first(wanted));
    if (got.size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got.size <= 0) return gone("it ended in the middle of its hello");
    stranger.have.insert(stranger.have.end(), bytes, bytes + got.size);
    if (!hello.may_begin_with(stranger.have)) return refuse("not a monarch peer");
    if (stranger.have.size() < hello.bytes_wanted()) continue;
    const std::vector<std::byte> packet = std::exchange(stranger.have, {});
    if (hello.state() == Handshake::State::kAwaitingOpen) {
      auto proof = hello.on_open(packet);
      if (!proof) return refuse(proof.error().message);
      if (!channel.send_all(*proof, {})) return gone("it went away");
    } else if (auto peer = hello.on_proof(packet); !peer) {
      return refuse(peer.error().message);
    }
  }
  admit(std::move(stranger.channel));
  return false;
}

void HostDaemon::admit(std::unique_ptr<Channel> channel) {
  if (warm_ && warm_.traits() != inherited_traits()) warm_ = {};  // it would not be as what this daemon starts now
  const pid_t daemon = getpid();
  const pid_t keeper = fork();
  if (keeper < 0) return say("cannot serve a client: " + std::string(std::strerror(errno)));
  if (keeper == 0) {
    end_with_parent(daemon, SIGTERM);
    be_keeper();
    if (tcp_) keep_remote(*channel);
    keep(channel->take_socket());
  }
  keepers_.push_back(keeper);
  // The keeper's, or not to be started beside it. If it serves nobody there is one again.
  if (warm_ || warm_change_ns_ != 0) without_warm_ = keeper;
  warm_ = {};
  warm_change_ns_ = 0;
}

// Or lets go of the one that has waited long enough.
void HostDaemon::warm_up() {
  warm_change_ns_ = 0;
  if (warm_) return void(warm_ = {});
  ProcessSpec command;
  command.argv = options_.defaults.fork_server;
  command.env = options_.defaults.env;
  command.death_signal = SIGTERM;
  if (tcp_) command.oom_score = raised_oom_score(Starter::kWorkersOomScore);  // as be_host()
  warm_ = WarmServer::start(command, clock_, [this](pid_t daemon) {
    end_with_parent(daemon, SIGTERM);
    be_keeper();
    for (UniqueFd* each : {&alive_[0], &orders_[1]}) each->reset();
    unblock_signals();
  });
  if (!warm_) return;  // there was a shortage: the next client waits
  holders_.push_back(warm_.holder());
  warm_change_ns_ = clock_.now_ns() + kWarmLimitNs;
}

void HostDaemon::reap() {
  bool has_served = false;
  std::erase_if(keepers_, [&](pid_t keeper) {
    int status = 0;
    if (waitpid(keeper, &status, WNOHANG) != keeper) return false;
    has_served = has_served || status != 0 || keeper == without_warm_;
    return true;
  });
  std::erase_if(holders_, [&](pid_t holder) {
    if (waitpid(holder, nullptr, WNOHANG) != holder) return false;
    if (warm_ && warm_.holder() == holder) {
      warm_ = {};
      warm_change_ns_ = 0;  // not again before the next client has gone: it may not be possible
    }
    return true;
  });
  if (!has_served || options_.defaults.fork_server.empty()) return;
  warm_change_ns_ = clock_.now_ns() + (warm_ ? kWarmLimitNs : kWarmAfterNs);
}

void HostDaemon::end() {
  warm_ = {};
  listener_.reset();
  if (!tcp_ && options_.address.path[0] != '@') unlink(options_.address.path.c_str());
  strangers_.clear();
  // Hosts end, and their clients let go of their keepers. A byte, which nobody takes: it is an end in order.
  if (write(alive_[1].get(), "", 1) < 0) errno = 0;
  alive_[1].reset();
  const auto wait_for_keepers = [this](int64_t limit_ns) {
    const int64_t until_ns = clock_.now_ns() + limit_ns;
    for (reap(); !(keepers_.empty() && holders_.empty()) && clock_.now_ns() < until_ns; reap()) {
      pollfd signal{signals_.get(), POLLIN, 0};
      poll(&signal, 1, static_cast<int>((until_ns - clock_.now_ns()) / 1'000'000 + 1));
      signalfd_siginfo info;
      while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      }
    }
  };
  wait_for_keepers(kEndLimitNs);
  for (const auto* children : {&keepers_, &holders_}) {
    for (const pid_t child : *children) kill(child, SIGTERM), kill(child, SIGCONT);
  }
  wait_for_keepers(kKillLimitNs);
}

// ---- A keeper ----

void HostDaemon::be_keeper() {
  explicit_bzero(token_.data(), token_.size());  // what it keeps needs that of its own job only
  listener_.reset();
  signals_.reset();
  options_.lifeline.reset();
  alive_[1].reset();
  orders_[0].reset();
  strangers_.clear();
  heard_.clear();
  // Who has started the daemon reads an address there, and perhaps nothing more.
  dup2(STDERR_FILENO, STDOUT_FILENO);
  signal(SIGINT, SIG_IGN);
}

void HostDaemon::keep(UniqueFd socket) {
  fcntl(socket.get(), F_SETFL, 0);  // it waits for who does not read
  unblock_signals();
  if (!is_meant(socket.get())) _exit(0);
  ForkServer server(socket.get(), clock_);
  int status = 0;
  while (auto request = server.next()) {
    const pid_t keeper = getpid();
    const pid_t host = fork();
    if (host == 0) {
      socket.reset();
      leave_fork_server();
      end_with_parent(keeper, SIGKILL);
      be_host(std::move(request->fds));
    }
    warm_ = {};  // the host's
    status = kServed;
    host < 0 ? server.report_failed(request->node, errno) : server.report_spawned(request->node, host);
  }
  _exit(status);
}

// Whether its client wants this host, and not another one that it takes this for.
bool HostDaemon::is_meant(int socket) {
  pollfd readable{socket, POLLIN, 0};
  std::byte bytes[256];
  if (poll(&readable, 1, static_cast<int>(kHostdHelloLimitNs / 1'000'000)) != 1) return false;
  const auto got = sys::receive_message(socket, bytes, MSG_DONTWAIT);
  const std::string_view means(reinterpret_cast<const char*>(bytes), static_cast<size_t>(std::max<ssize_t>(got.size, 0)));
  if (!means.starts_with(kMeans)) return false;
  const auto refusal = options_.address.refuses(std::string(means.substr(1)));
  const std::string answer = refusal ? kRefuses + *refusal : std::string(1, kServes);
  return sys::send_message(socket, as_byte_span(answer.data(), answer.size()), {}, MSG_NOSIGNAL) >= 0 && !refusal;
}

// Over TCP: one host, whose client may be out of reach for a while.
void HostDaemon::keep_remote(Channel& channel) {
  become_subreaper(clock_);
  unblock_signals();
  const auto fail = [&](const std::string& why) {
    static_cast<void>(write_all(channel, encode_report({.kind = HostReport::kFailed, .text = why}), kTellLimitMs));
    channel.end_output();
    end_descendants();
    _exit(0);
  };
  AttachReader reader;
  std::optional<std::string> message;
  const int64_t until_ns = clock_.now_ns() + kHostdHelloLimitNs;
  while (!message) {
    if (!reader.read(channel)) _exit(0);
    message = reader.next();
    if (message) break;
    pollfd readable{channel.fd(), POLLIN, 0};
    const int64_t left_ms = (until_ns - clock_.now_ns()) / 1'000'000;
    if (left_ms <= 0 || (poll(&readable, 1, static_cast<int>(left_ms)) == 0)) _exit(0);  // it may come again
  }
  auto order = decode_order(as_byte_span(message->data(), message->size()));
  if (!order) fail(order.error().message);
  const auto& meant = std::visit([](const auto& one) -> const std::string& { return one.identity; }, *order);
  if (const auto refusal = options_.address.refuses(meant)) fail(*refusal);
  if (const auto* relay = std::get_if<RelayOrder>(&*order)) {
    warm_ = {};
    pass_on(channel, *relay, alive_[0].get(), clock_);
    _exit(0);
  }
  Bootstrap& bootstrap = std::get<AttachOrder>(*order).host;
  BootstrapFds fds;
  bootstrap.parent_pid = getpid();
  auto record = write_bootstrap(bootstrap, {});
  UniqueFd started[2], client[2];
  if (!record) fail(record.error().message);
  if (!sys::make_pipe(started) || !sys::make_pipe(client)) fail(sys::shortage_error("start a host").message);
  fds[kFdRecord] = std::move(*record);
  const pid_t keeper = getpid();
  const pid_t host = fork();
  if (host < 0) fail(sys::shortage_error("start a host").message);
  if (host == 0) {
    leave_fork_server();
    end_with_parent(keeper, SIGKILL);
    close(channel.fd());
    started[0].reset();
    client[1].reset();
    be_host(std::move(fds), started[1].get(), client[0].get());
  }
  started[1].reset();
  client[0].reset();
  warm_ = {};  // the host's
  tell_of(channel, host, started[0].get(), std::move(client[1]));
  end_descendants();
  _exit(kServed);
}

// What the client is to know of its host, until that has ended and been reaped. `client`: the host sees its end when the
// connection to the client is over.
void HostDaemon::tell_of(Channel& channel, pid_t host, int started, UniqueFd client) {
  const auto tell = [&](const HostReport& report) {
    return write_all(channel, encode_report(report), kTellLimitMs);
  };
  const UniqueFd ended = sys::open_pidfd(host);
  MemoryEventsReader memory;
  MemoryEvents last = memory.read(), before = last;
  int64_t looked_ns = clock_.now_ns();
  signal(SIGCHLD, [](int) {});  // it ends a wait
  bool told = false, open = true;
  std::string said;
  for (bool running = true; running;) {
    pollfd fds[] = {{ended.get(), POLLIN, 0}, {told ? -1 : started, POLLIN, 0}, {open ? channel.fd() : -1, POLLIN, 0}};
    // What is killed for want of memory here accounts for this host if it ends then, and not some time later.
    const int ready = poll(fds, 3, ended ? kMemoryLookMs : kBlindWaitMs);
    if (ready < 0 && errno != EINTR) break;
    if (clock_.now_ns() - looked_ns >= kMemoryLookMs * int64_t{1'000'000}) {
      before = std::exchange(last, memory.read());
      looked_ns = clock_.now_ns();
    }
    if (fds[2].revents != 0) {
      std::byte order{};
      const iovec into{&order, 1};
      const ssize_t count = channel.read({&into, 1});
      open = count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
      if (count == 1 && order == kKillByte) kill(host, SIGKILL);
      if (!open) client.reset();
    }
    char piece[4096];
    const ssize_t count = fds[1].revents != 0 ? read(started, piece, sizeof piece) : -1;
    if (count > 0) said.append(piece, static_cast<size_t>(count));
    if (count == 0) {  // all that it has to say: its port, or why it cannot be
      told = true;
      uint16_t port = 0;
      const bool good = std::from_chars(said.data(), said.data() + said.size(), port).ptr == said.data() + said.size();
      const HostReport is_up{.kind = HostReport::kStarted, .port = port, .host = host_name(), .pid = host};
      const HostReport is_not{.kind = HostReport::kFailed, .text = said};
      open = open && tell(good && port != 0 ? is_up : is_not);
    }
    reap_orphans(host);
    siginfo_t info{};
    running = !(waitid(P_PID, static_cast<id_t>(host), &info, WEXITED | WNOHANG) == 0 && info.si_pid == host);
    // It has ended, and who traces it has not looked.
    if (running && (fds[0].revents & POLLIN) != 0) poll(nullptr, 0, kBlindWaitMs);
    if (running) continue;
    HostReport report{.kind = HostReport::kExited};
    (info.si_code == CLD_EXITED ? report.status.code : report.status.signal) = info.si_status;
    if (report.status.signal == SIGKILL) report.status.out_of_memory = judge_kill(before, memory.read());
    if (open) static_cast<void>(tell(report));
  }
  channel.end_output();
}

// ---- A host ----

// Of a host that is reached over TCP, `started`: to be told on which port it is dialled, or why it is not; `client`: ends
// when the client, or its connection to the keeper, has.
void HostDaemon::be_host(BootstrapFds fds, int started, int client) {
  const auto say_once = [&started](const std::string& text) {
    if (started >= 0 && write(started, text.data(), text.size()) < 0) errno = 0;
    if (started >= 0) close(std::exchange(started, -1));
  };
  const auto fail = [&](const std::string& why) {
    log_line("a host cannot start: " + why);
    say_once("it cannot start: " + why);
    flush_log();
    _exit(1);
  };
  setsid();
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  sigprocmask(SIG_BLOCK, &terminate, nullptr);
  const UniqueFd signals = sys::make_signalfd(&terminate);
  const int record = fds[kFdRecord].get();
  hold_life(record);
  LastWords* const last_words = map_own_last_words(record);
  if (last_words != nullptr) note_crashes(*last_words, -1, 0);
  std::vector<int> none;
  auto bootstrap = read_bootstrap(record, &none);
  if (!bootstrap) fail(bootstrap.error().message);
  take_up_output(fds);
  fds[kFdGuard].reset();  // of the client: the keeper does here what that one does there
  const UniqueFd stopped = sys::make_eventfd();
  if (!signals || !stopped) fail(sys::shortage_error("wait for its end").message);
  ProcessRuntime::Options options;
  options.on_stop = [fd = stopped.get()] {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof one);
  };
  std::unique_ptr<ProcessRuntime> process;
  if (tcp_) {
    auto made = ProcessRuntime::make_gateway(*bootstrap, hosts_listen_, std::move(options));
    if (!made) fail(made.error().message);
    process = std::move(*made);
  } else {
    const auto keep = [&process](std::unique_ptr<ProcessRuntime> made) { process = std::move(made); };
    auto made = ProcessRuntime::make_worker(*bootstrap, std::move(fds), std::move(options), keep);
    if (!made) fail(made.error().message);
  }
  ProcessRuntime& runtime = *process;
  if (last_words != nullptr) runtime.node().activity().use(*last_words);
  if (runtime.agent() == nullptr) fail("its client wants a process that is no host");
  std::atomic<bool> ends_daemon{false};
  const auto end_daemon = [fd = orders_[1].get()] { [[maybe_unused]] const ssize_t written = write(fd, "", 1); };
  runtime.agent()->offer(options_.defaults, [&] {
    ends_daemon = true;
    runtime.reactor().after(kEndAfterNs, end_daemon);
  });
  runtime.call_watch().set_lease(CallWatch::kLeaseOfWhoWaits);
  // A gateway's pages are what others send and receive: those of its workers' are the ones to go.
  if (tcp_) runtime.host().offer_workers_to_oom_killer();
  // Now, and not with the first spawn: that would wait for its interpreter.
  const LaunchDefaults& defaults = options_.defaults;
  if (!defaults.fork_server.empty()) runtime.host().start_fork_server(defaults.fork_server, defaults.env, std::move(warm_));
  if (tcp_) say_once(std::to_string(runtime.tcp_port()));
  pollfd ends[] = {
      {stopped.get(), POLLIN, 0}, {alive_[0].get(), POLLIN, 0}, {signals.get(), POLLIN, 0}, {client, POLLIN, 0}};
  // No link ends when a client goes that has never reached its host.
  const auto is_reached = [&] {
    const auto is_client = [&](const auto& link) { return link->peer() == bootstrap->parent; };
    return std::ranges::any_of(runtime.node().links(), is_client);
  };
  bool is_deserted = false;
  for (int limit_ms = -1; !is_deserted;) {
    const int count = poll(ends, 4, limit_ms);
    if (count < 0 && errno != EINTR) break;
    if (count < 0) continue;
    if (ends[0].revents != 0 || ends[1].revents != 0 || ends[2].revents != 0) break;
    is_deserted = count == 0 && !is_reached();
    limit_ms = count == 0 ? -1 : static_cast<int>(std::min<int64_t>(bootstrap->host_lease_ns / 1'000'000, 86'400'000));
    ends[3].fd = -1;
  }
  // The daemon has been killed: so are all that it has started, which is a death and no stop.
  if ((ends[1].revents & (POLLHUP | POLLIN)) == POLLHUP) kill(getpid(), SIGKILL);
  const auto asked = runtime.wait_for_stop(0);
  const std::string reason = asked.value_or(is_deserted ? "its script was gone before it had reached this host"
                                                        : "its monarch-hostd was ended");
  runtime.node().note_ending();
  // Not if its client has asked it to stop, and it waits for what is under way.
  if (!asked && !is_deserted && !runtime.is_stopping()) runtime.deaths().end_as_host(kEndedWithHostd);
  runtime.stop_children(reason, kHostGraceNs);
  if (tcp_) runtime.finish_output(kOutputLimitNs);
  runtime.report_rest();
  flush_log();
  if (ends_daemon) end_daemon();
  const bool is_unheard = is_deserted || (asked && runtime.node().is_down(runtime.parent()));
  _exit(is_unheard ? kHostUnheard : asked ? kHostAsked : kHostDaemonEnded);
}

}  // namespace monarch
