// Where a process comes for what a worker is given, if a program's own code has started it: as a child of its own, in a
// container, by a tool. Such a process inherits nothing. It is told, in its arguments, the path of a unix socket and its
// node's number, neither of which is secret; it connects there, says who it is, and is handed the descriptors of a
// bootstrap (bootstrap.h), as those of a fork server are. From then on it is like any other worker.
//
// The socket lies in a folder that only this user can look into; who connects must be of this user, and must have a process
// number here, by which its end is seen.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "monarch/host/start/bootstrap.h"
#include "monarch/host/start/process.h"
#include "monarch/loop/reactor.h"
#include "monarch/wire/failure.h"

namespace monarch {

// What who has started a process says of it.
struct LaunchNews {
  enum Kind : uint32_t {
    kExited = 1,  // it has ended, as `status` says, if that is known
    kFailed = 2,  // it is to end, if there is one: `text` says why, as a continuation of "because "
    kLate = 3,    // if it is not there, nobody waits for it any more: `text`
  };
  uint32_t kind = kExited;
  ExitStatus status{};
  bool core_dumped = false;
  std::string text{};  // of kExited: what it says besides; may be empty
  std::string tail{};  // the last lines of its stderr, as far as who has started it has them

  // "exited with code 3, core dumped; no such image": for people.
  std::string describe() const;
};

// The socket of `node`, whose host object starts processes, in `folder`.
std::string launch_door_path(const std::string& folder, NodeId node);

class LaunchDoor {
 public:
  // Who has come for `node`. The socket is to be answered by admit() or refuse().
  struct Guest {
    UniqueFd socket{};
    Process process{};
  };
  using OnGuest = std::function<void(NodeId node, Guest guest)>;

  // The reactor outlives it.
  LaunchDoor(Reactor& reactor, std::string path, OnGuest on_guest);
  // Removes the socket. After the reactor has ended.
  ~LaunchDoor();
  LaunchDoor(const LaunchDoor&) = delete;
  LaunchDoor& operator=(const LaunchDoor&) = delete;

  // Reactor. Begins to listen, if it does not. kUnavailable, kUnsupported: it cannot.
  Status open();

  // In a child that fork() made: what it must not keep open.
  void after_fork_in_child() { listener_.reset(); }

  // False: it is gone.
  static bool admit(const Guest& guest, NodeId node, const std::array<int, kFdCount>& fds);
  static void refuse(const Guest& guest, const std::string& why);

  static constexpr int64_t kHelloLimitNs = 5'000'000'000;  // to say who it is
  static constexpr size_t kStrangersMax = 64;              // that have not said so; more wait for their turn

 private:
  Status listen();
  void accept();
  void meet(std::shared_ptr<UniqueFd> socket, int tries);
  void pause_listening();
  void hear(int fd);
  void drop(int fd);

  Reactor& reactor_;
  const std::string path_;
  const OnGuest on_guest_;
  // Reactor only.
  UniqueFd listener_;
  struct Stranger {
    Guest guest;
    uint64_t number;
  };
  std::unordered_map<int, Stranger> strangers_;
  uint64_t numbers_ = 0;
  bool paused_ = false;  // something is short here
};

// What a process is told, as one text: "<path>#<node>".
std::string launch_door_address(const std::string& path, NodeId node);

// In the new process: its descriptors. Waits until its turn has come, for as long as who has started it lives.
// kMalformed: that is no such text; kClosed: it is not wanted, or not any more; the message says why.
Result<BootstrapFds> enter_launch_door(const std::string& address);

}  // namespace monarch
