// Where others connect their streams to: a socket that listens, a thread that accepts, and one for each stream. Each has to
// prove that it belongs to the job before it is heard; a stream on which nothing has been asked for a while is closed.
#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "monarch/bulk/stream_end.h"
#include "monarch/net/tcp/tcp_transport.h"

namespace monarch {

class StreamDoor {
 public:
  // Serves one stream until it is of no use any more, on the thread of that.
  using Serve = std::function<void(StreamEnd& end, NodeId peer)>;

  // Streams beyond these are turned away: their processes go by the link.
  static constexpr size_t kStreamsMax = 64;
  // Of those that have not proved who they are the oldest makes room.
  static constexpr size_t kUnprovedMax = 16;
  // Until a stream has proved who it is.
  static constexpr int64_t kGreetNs = 4'000'000'000;

  // `network` is one that listens, and outlives this.
  static Result<std::unique_ptr<StreamDoor>> open(TcpTransport& network, StreamSockets& sockets,
                                                  const HelloIdentity& identity, Serve serve);
  ~StreamDoor();
  StreamDoor(const StreamDoor&) = delete;
  StreamDoor& operator=(const StreamDoor&) = delete;

  uint16_t port() const { return port_; }
  // Any thread. The stream of that number (its dialer's) is not heard any more once `done` is called, perhaps at once.
  void close_stream(uint64_t number, std::function<void()> done);
  // Returns when nothing of this runs any more. Not from a thread of this.
  void stop();

 private:
  struct Visitor {
    StreamDoor* door = nullptr;
    pthread_t thread{};
    std::unique_ptr<Channel> channel;  // until its thread has it
    UniqueFd stop;
    std::atomic<bool> stops{false};  // for who finds much to do before it waits
    uint64_t number = 0;  // 0: it has not said it yet
    bool proved = false, over = false;
    std::vector<std::function<void()>> on_over;
  };

  StreamDoor(TcpTransport& network, StreamSockets& sockets, const HelloIdentity& identity, Serve serve, UniqueFd listener,
             UniqueFd stop);
  static void turn_away(Visitor& visitor);
  void accept_all();
  void admit(UniqueFd socket);
  void reap(bool all);
  void run(Visitor& visitor);
  void serve(Visitor& visitor);

  TcpTransport& network_;
  StreamSockets& sockets_;
  const HelloIdentity identity_;
  const Serve serve_;
  const UniqueFd listener_, stop_;
  const uint16_t port_;
  pthread_t thread_{};
  std::mutex mutex_;  // a leaf
  std::list<Visitor> visitors_;
  bool stopped_ = false;
};

}  // namespace monarch
