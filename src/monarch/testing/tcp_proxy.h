// A network that misbehaves, between real sockets of TCP on this machine: a port that leads to another one. It can be slow,
// cut what goes through it at any byte, hold everything back as a network does that drops all packets (what was under way
// goes on when it heals, as TCP sends it again), and not be there.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "monarch/base/unique_fd.h"

namespace monarch::testing {

class TcpProxy {
 public:
  // Leads to this port of 127.0.0.1.
  explicit TcpProxy(uint16_t to_port);
  ~TcpProxy();

  uint16_t port() const { return port_; }

  // Any thread; each is done when it returns.
  void cut(bool with_reset = false);         // ends what goes through it now; new connections are let through
  void cut_after(uint64_t bytes);            // when so many more have gone through, in both directions together
  void cut_always_after(uint64_t bytes);     // and again, when so many have since the last cut
  void hold();                               // nothing passes any more; connections are made, and are silent
  void heal();                               // all goes on
  void delay(int64_t delay_ns);              // each byte arrives so much later
  void limit_each(uint64_t bytes_per_s);     // of each connection, in each direction
  void hold_one(int connection);             // of that one nothing passes any more; they are numbered from 0
  void cut_one(int connection, bool with_reset = false);
  void close_port();                         // who connects is refused
  int cuts() const { return cuts_; }
  int connections() const { return connections_; }  // so far
  uint64_t bytes() const { return bytes_; }
  std::vector<uint64_t> bytes_of_each() const;  // connection, gone ones too

 private:
  struct Waiting {
    int64_t due_ns;
    std::vector<char> bytes;
    size_t sent = 0;
  };
  struct Direction {
    std::deque<Waiting> waiting;
    size_t size = 0;
    int64_t free_ns = 0;  // when the last byte of it has arrived
    bool ended = false;  // its source has said all
    bool told = false;   // and its target has been told so
  };
  struct Pair {
    UniqueFd ends[2];  // who has connected, and whom that leads to
    Direction from[2];
    int number = 0;
    bool dead = false;
    bool held = false;
  };

  void run();
  void wake();
  void accept_one();
  void read_from(Pair& pair, int side);
  void write_to(Pair& pair, int side, int64_t now_ns);
  void end_all(bool with_reset);
  static void end(Pair& pair, bool with_reset);
  int timeout_ms(int64_t now_ns) const;

  const uint16_t to_port_;
  uint16_t port_ = 0;
  UniqueFd listener_, wake_;
  std::atomic<int> cuts_{0}, connections_{0};
  std::atomic<uint64_t> bytes_{0};
  mutable std::mutex mutex_;  // over all below, and held by the thread but where it sleeps
  std::vector<std::unique_ptr<Pair>> pairs_;
  uint64_t cut_after_ = UINT64_MAX, cut_again_after_ = UINT64_MAX;
  int64_t delay_ns_ = 0;
  uint64_t bytes_per_s_ = 0;  // 0: as many as there are
  std::vector<uint64_t> bytes_of_each_;
  bool held_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace monarch::testing
