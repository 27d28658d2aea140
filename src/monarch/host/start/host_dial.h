// Connects to a monarch-hostd (host/hostd.h) at the path of a unix socket, and shows it that this process may: both know
// the token of a file that only this user can read. What comes of it is a socket on which the daemon's child for this
// client is asked for processes, as a fork server is (fork_server.h).
#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/tcp/tcp_address.h"
#include "monarch/net/tls/credentials.h"
#include "monarch/wire/hello.h"

struct sockaddr_un;

namespace monarch {

// Where a monarch-hostd is, and what it wants to be shown.
struct HostdAddress {
  std::string path;               // of its socket; an abstract one begins with '@'
  std::optional<TcpAddress> tcp;  // in its place
  // Which host it is, or is meant: a name, or one with a number, such as service<2MuA>, whose name does not count.
  // Empty: one that has none, which is called "service"; or whichever is there.
  std::string identity;
  std::string token_file;         // absolute
  bool trusts_all = false;        // over TCP: any certificate will do, the token says who belongs here
  // Over TCP: the user's own. None: made from the token. shared: by the copies of this.
  std::shared_ptr<const Credentials> credentials;
  // Over TCP: by way of this one (relay.h), from which it is reached. Null: from here. shared: by the copies of this.
  std::shared_ptr<const HostdAddress> through{};
  int64_t wait_ns = 30'000'000'000;  // for one that does not listen yet: it may be about to start

  std::string to_text() const;
  // Why it does not serve who means `wanted`; none: it does.
  std::optional<std::string> refuses(const std::string& wanted) const;
  // ipc://PATH, ipc://@NAME, or as TcpAddress, also with tls:// in place of tcp://; perhaps IDENTITY@ in front of it.
  // kMalformed: what is wrong with it.
  static Result<HostdAddress> parse(const std::string& text, std::string token_file);
};

// As the kernel wants it. kUnsupported: the path is too long, or empty.
Result<socklen_t> socket_address(const std::string& path, sockaddr_un& address);

// For so long nothing is said of a host that is waited for; then this line, where `more` names others.
inline constexpr int64_t kSilentWaitNs = 2'000'000'000;
std::string waits_for(const HostdAddress& address, const std::string& more, int64_t left_ns, const std::string& why);
// Why a token file cannot be read, which is nothing that the host could mend.
Error no_token(const Error& why);
// As which client and daemon say hello to each other: any of that user's, whose token is the same.
HelloIdentity hostd_identity(const NodeKey& key, const JobToken& token);
// A hello message goes as one packet; then the client says which host it means, as one packet that begins with kMeans, and
// is answered by one that begins with kServes, or with kRefuses and says why.
inline constexpr char kMeans = 'm', kServes = 's', kRefuses = 'r';
inline constexpr int64_t kHostdHelloLimitNs = 5'000'000'000;

class HostDial : public std::enable_shared_from_this<HostDial> {
 public:
  // Runs once, on the reactor. An error says what is wrong with that host.
  using Done = std::function<void(Result<UniqueFd>)>;
  // Reactor. While nobody listens there it is tried again, for as long as the address says.
  static void start(Reactor& reactor, HostdAddress address, Done done);

 private:
  HostDial(Reactor& reactor, HostdAddress address, int64_t until_ns, Done done)
      : reactor_(reactor), address_(std::move(address)), until_ns_(until_ns), done_(std::move(done)) {}
  void attempt();
  void try_again(const std::string& why);
  Status begin_hello();
  void on_readable();
  void say_who_is_meant();
  void on_answer(std::string_view answer);
  void give_up(const std::string& why);
  void finish(Result<UniqueFd> result);

  Reactor& reactor_;
  const HostdAddress address_;
  const int64_t until_ns_;
  Done done_;
  UniqueFd socket_;
  std::unique_ptr<Handshake> hello_;
  bool proved_ = false;
  bool told_of_wait_ = false;
};

}  // namespace monarch
