// The addresses of one host, found without holding up the reactor: a name is looked up on a thread of its own. What that
// thread waits for, nobody can end; so there are only so many of them at once, and one that hangs is left behind.
#pragma once

#include <memory>

#include "monarch/net/tcp/tcp_address.h"

namespace monarch {

class Lookup {
 public:
  using Ask = Result<std::vector<SocketAddress>> (*)(const TcpEndpoint&);

  // `ask` may take its time.
  explicit Lookup(TcpEndpoint endpoint, Ask ask = &look_up);

  // Any thread; never waits. kUnavailable: why there are none; `pending`: because they are still being looked for.
  Result<std::vector<SocketAddress>> addresses(bool* pending);
  // They did not help: the next call asks again, if the host has a name.
  void forget();

  static constexpr int kThreadsMax = 8;

 private:
  struct State;
  const TcpEndpoint endpoint_;
  std::shared_ptr<State> state_;  // shared: with the thread
};

}  // namespace monarch
