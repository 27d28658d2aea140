// The way of a script into a cluster that it is outside of: one monarch-hostd that it reaches. Each connection of the
// script goes there, shows by TLS and the hello that both know the token, and says where to (attach.h); that monarch-hostd
// connects to it, says that it has, and passes on what both ends say, which have TLS of their own with each other.
#pragma once

#include <memory>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/host/start/attach.h"
#include "monarch/host/start/host_dial.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/tcp/tcp_transport.h"

namespace monarch {

// What connects to monarch-hostds like this one, over TCP, with its certificates or those of `token`.
Result<std::shared_ptr<TcpTransport>> make_hostd_dialer(Reactor& reactor, const JobToken& token,
                                                        const HostdAddress& address);

// ---- The script ----

class Relay {
 public:
  // `through` is reached over TCP.
  Relay(Reactor& reactor, HostdAddress through) : reactor_(reactor), through_(std::move(through)) {}

  ~Relay();  // wipes the token

  // Reactor. A stream to whoever listens at `to`, as that is known there; see TcpTransport::Way. What is wrong with the way
  // says nothing of who is behind it: kUnavailable, but before it has once been found (kUnsupported).
  Result<std::unique_ptr<Channel>> connect(const TcpEndpoint& to, bool* busy);

 private:
  Status begin();

  Reactor& reactor_;
  const HostdAddress through_;
  std::shared_ptr<TcpTransport> dialer_;  // null: it has not begun. shared: with dials under way
  JobToken token_{};
};

// As TcpTransport::go_by() wants it.
TcpTransport::Way by_way_of(Reactor& reactor, const HostdAddress& through);

// It is there once the monarch-hostd at the other end of `under` says that it is connected.
class RelayedChannel final : public Channel {
 public:
  RelayedChannel(std::unique_ptr<Channel> under, const HelloIdentity& identity, RelayOrder order, std::string through,
                 Random& random);

  int fd() const override { return under_->fd(); }
  // kRefused: nobody listens where it is to be connected to. Errors name the way.
  Result<bool> establish() override;
  bool wants_room() const override { return under_->wants_room(); }
  ssize_t write(std::span<const iovec> pieces) override { return under_->write(pieces); }
  bool flush() override { return under_->flush(); }
  ssize_t read(std::span<const iovec> into) override { return under_->read(into); }
  bool has_input() const override { return under_->has_input(); }
  std::optional<Error> fault() const override { return under_->fault(); }
  void end_output() override { under_->end_output(); }
  bool is_enciphered() const override { return under_->is_enciphered(); }

 private:
  enum class Stage : uint8_t { kUnder, kHello, kSize, kAnswer, kOpen };

  Result<bool> step();
  Result<bool> begin_hello();
  Result<bool> on_hello();
  Result<bool> on_answer();
  Result<bool> fill(size_t wanted);
  Error gone() const;

  const std::unique_ptr<Channel> under_;
  const RelayOrder order_;
  const std::string through_;
  Handshake hello_;
  Stage stage_ = Stage::kUnder;
  std::vector<std::byte> have_;
  uint32_t answer_size_ = 0;
};

// ---- Its keeper there ----

// Until both have said all, the connection breaks, or `ends` becomes readable or ends. For a process that does nothing
// else.
void pass_on(Channel& client, const RelayOrder& order, int ends, Clock& clock);

}  // namespace monarch
