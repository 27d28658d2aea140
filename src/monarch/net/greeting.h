// The hello on one channel, once that is there, and the bytes that follow it, one at a time, with descriptors: the dialer's
// offer, the acceptor's answer, and the dialer's word that it has all of it. Reactor only.
#pragma once

#include <functional>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/random.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/channel.h"
#include "monarch/net/identity.h"

namespace monarch {

// What an acceptor says to an offer.
inline constexpr char kSetupAgreed = 'k';
inline constexpr char kSetupNotNow = 'b';  // for want of something: try again later
// What a dialer says when it lacks nothing more. Until then the acceptor has no link that could end.
inline constexpr char kSetupDone = 'd';

// What a process says of itself in a hello.
HelloIdentity hello_identity(const Identity& identity);

class Greeting {
 public:
  struct Events {
    std::function<void(const HelloPeer& peer)> on_proved;
    // A byte that follows, and what came beside it; `lost`: there were descriptors that this process had no room for.
    std::function<void(char byte, std::vector<UniqueFd> fds, bool lost)> on_setup;
    // Refused, out of time (kDeadline) or gone (kClosed: it has died, or given up this connection, perhaps because it or we
    // were stopped meanwhile); at most once, and nothing after it. `news` false: a peer that died in the middle of a hello
    // that was good so far, which whoever has started it says.
    std::function<void(const Error& why, bool news)> on_end;
  };

  // `limit_ns`: for all of it, but for when this process is stopped.
  Greeting(Reactor& reactor, std::unique_ptr<Channel> channel, HelloRole role, const Identity& identity, Random& random,
           int64_t limit_ns, Events events);
  ~Greeting() { stop(); }
  Greeting(const Greeting&) = delete;
  Greeting& operator=(const Greeting&) = delete;

  void begin();
  // False: it could not be sent (errno).
  bool send(char byte, const std::vector<int>& fds);
  // The peer has proved itself, and may be stopped for as long as somebody likes.
  void lift_limit();
  // The hello is over, and this with it.
  std::unique_ptr<Channel> take_channel();
  void stop();

 private:
  void on_ready();
  bool establish();
  void watch_room(bool room);
  void read();
  void watch_limit(int steps_left);
  void step(const std::vector<std::byte>& bytes);
  bool send_bytes(ByteSpan bytes);
  void end(const Error& why, bool news = true);
  void gone(const char* why);

  Reactor& reactor_;
  std::unique_ptr<Channel> channel_;
  const HelloRole role_;
  Handshake hello_;
  const int64_t limit_ns_;
  Events events_;
  size_t wanted_;
  std::vector<std::byte> have_;
  std::vector<UniqueFd> fds_;
  bool fds_lost_ = false;
  bool established_ = false;
  bool waits_for_room_ = false;
  bool proved_ = false;
  bool over_ = false;
  Timers::TimerId limit_ = 0;
};

}  // namespace monarch
