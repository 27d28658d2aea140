// The streams of one process: to owners on other hosts, and of others to it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "monarch/bulk/stream.h"
#include "monarch/bulk/stream_door.h"
#include "monarch/net/identity.h"
#include "monarch/net/tcp/tcp_transport.h"

namespace monarch {

// Where this process is on a network, and how it may be used there.
struct StreamOptions {
  Identity identity;
  std::string dialled_at;  // how others find its host; empty: it is not found
  std::string listens_at;  // where it listens itself
  std::function<bool()> dials = [] { return true; };  // whether others are reached by connections from here
  bool within_hosts = false;  // for tests: to others of the same host, too
  bool tries_ucx = false;     // where nothing is enciphered, and use() does not forbid it
};

class Streams {
 public:
  // Of a process at most, to each owner.
  static constexpr uint32_t kLanesMax = 16;

  Streams(Bulk& bulk, Reactor& reactor, StreamOptions options);
  ~Streams() { stop(); }

  // Any thread. Whether what is asked of `owner` should go by a stream at all.
  bool leads_to(NodeId owner) const;
  // One of the streams to it. shared: with its thread
  std::shared_ptr<Stream> to(NodeId owner, uint32_t lane = 0);
  // Of the first few one on which nothing is under way, so that nobody waits for what somebody else has asked for.
  uint32_t idle_lane(NodeId owner);

  // Any thread. Without `enciphers` the bytes of buffers go as they are, which anybody on the way can read and change; both
  // sides have to say so, the owner before it is first asked. What is large goes over so many `lanes` at a time.
  // UCX is left out if `may_use_ucx` is false.
  void use(bool enciphers, uint32_t lanes, bool may_use_ucx = true);
  bool tries_ucx() const { return options_.tries_ucx && may_use_ucx_ && !enciphers_; }
  uint32_t lanes() const { return lanes_; }

  // Whether what is asked of that owner goes by UCX, as far as is known.
  bool may_go_by_ucx(NodeId owner);

  // How many operations, or parts of them, have gone by streams of this process.
  void note_one() { done_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t done() const { return done_; }

  // Any thread. Where this process's own are connected to, from now on.
  StreamAddress open_door(const StreamDoor::Serve& serve);
  void close_stream(uint64_t number, std::function<void()> done);

  // Returns when nothing of this runs any more.
  void stop();

 private:
  std::shared_ptr<Stream> make(NodeId owner);
  void prune();
  Result<std::unique_ptr<Channel>> connect(NodeId owner, const StreamAddress& address, bool* busy);
  Result<std::unique_ptr<TcpTransport>> make_network(bool enciphered, std::optional<TcpAddress> listen);

  Bulk& bulk_;
  Reactor& reactor_;
  const StreamOptions options_;
  const HelloIdentity identity_;
  StreamSockets sockets_;
  std::atomic<bool> enciphers_{true};
  std::atomic<bool> may_use_ucx_{true};
  std::atomic<uint32_t> lanes_{1};
  std::atomic<uint64_t> done_{0};
  std::mutex opening_;  // held while the door is made; then mutex_
  std::mutex mutex_;    // no name is looked up, and nobody waited for, with it held
  std::map<bool, std::unique_ptr<TcpTransport>> dialers_;  // by whether they encipher
  std::unique_ptr<TcpTransport> listener_;
  std::unique_ptr<StreamDoor> door_;
  StreamAddress address_;
  std::map<std::pair<NodeId, uint32_t>, std::shared_ptr<Stream>> to_;  // by owner and lane
  std::vector<std::shared_ptr<Stream>> ended_;  // whose threads may still run, one of which may be the one that asks
  size_t prune_at_ = 16;
  bool stopped_ = false;
};

}  // namespace monarch
