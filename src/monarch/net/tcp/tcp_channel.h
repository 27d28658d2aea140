// A socket of TCP as a channel: one that is being connected, or was accepted. Small writes go at once (TCP_NODELAY), and
// what a closed one has still to bring gives up with the lease (TCP_USER_TIMEOUT).
#pragma once

#include <functional>

#include "monarch/net/channel.h"
#include "monarch/net/tcp/tcp_address.h"

namespace monarch {

class TcpChannel final : public SocketChannel {
 public:
  // What becomes of the attempt to connect; errno, 0: it is connected.
  using Outcome = std::function<Result<bool>(int error)>;

  // Accepted: it is there.
  explicit TcpChannel(UniqueFd socket) : SocketChannel(std::move(socket)) {}
  // Connecting. `outcome` is asked once, and says what that means.
  TcpChannel(UniqueFd socket, Outcome outcome) : SocketChannel(std::move(socket)), outcome_(std::move(outcome)) {}
  ~TcpChannel() override;

  Result<bool> establish() override;
  bool wants_room() const override { return outcome_ != nullptr; }

 private:
  Outcome outcome_;  // null: it is connected
};

// What every socket of a link gets. `unsent_ms`: how long what was sent may stay unacknowledged.
void prepare_tcp_socket(int socket, int unsent_ms);

// Its receiver's kernel takes so much that is not read yet, or up to half of what it may (tcp_rmem). It would give so much
// room to who reads all the time only, and gives 64 KiB to others.
void widen_tcp_socket(int socket, int bytes);

}  // namespace monarch
