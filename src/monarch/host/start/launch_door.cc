#include "monarch/host/start/launch_door.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/start/fork_server.h"
#include "monarch/host/start/host_dial.h"

namespace monarch {

namespace {

// What a process says first, and the number of its node. What it is answered: kFdCount descriptors with that number beside
// them, or this and why not.
constexpr char kIAm = 'm', kNo = 'n';
constexpr size_t kReasonRoom = 4096;
// What is short here says nothing of who comes, and is waited out.
constexpr int64_t kShortageRetryNs = 10'000'000;
constexpr int kShortageTries = 1000;

bool hangs_up(int socket) {
  pollfd fd{socket, 0, 0};
  return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

// Who is at the other end. Its number may be somebody else's once that has ended, and then its socket has too. An error
// says what is wrong with it.
Result<Process> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return sys::shortage_error("look at a connection");
  if (peer.uid != geteuid()) return Error{ErrorCode::kUnsupported, "it is a process of another user"};
  if (peer.pid <= 0) {
    return Error{ErrorCode::kUnsupported,
                 "it has no process number here: it runs in a container that does not belong to this one"};
  }
  Process process{peer.pid, sys::open_pidfd(peer.pid)};
  if (hangs_up(socket)) return Error{ErrorCode::kClosed, "it has ended"};
  if (!process.pidfd) return sys::shortage_error("watch a process");
  return process;
}

}  // namespace

std::string LaunchNews::describe() const {
  std::string all = status.known ? monarch::describe(status) : "";
  if (core_dumped) all += all.empty() ? "core dumped" : ", core dumped";
  if (!text.empty()) all += (all.empty() ? "" : "; ") + text;
  return all;
}

std::string launch_door_path(const std::string& folder, NodeId node) {
  char name[40];
  std::snprintf(name, sizeof name, "/launch-%016llx.sock", static_cast<unsigned long long>(node));
  return folder + name;
}

std::string launch_door_address(const std::string& path, NodeId node) {
  char number[24];
  std::snprintf(number, sizeof number, "#%016llx", static_cast<unsigned long long>(node));
  return path + number;
}

// ---- Who starts it ----

LaunchDoor::LaunchDoor(Reactor& reactor, std::string path, OnGuest on_guest)
    : reactor_(reactor), path_(std::move(path)), on_guest_(std::move(on_guest)) {}

LaunchDoor::~LaunchDoor() {
  while (!strangers_.empty()) drop(strangers_.begin()->first);
  if (!listener_) return;
  reactor_.remove(listener_.get());
  remove_token_file(path_);
  const std::string folder = path_.substr(0, path_.rfind('/'));
  rmdir(folder.substr(0, folder.rfind('/')).c_str());  // if nothing else is in it
}

Status LaunchDoor::open() {
  if (listener_) return Ok{};
  if (auto listening = listen(); !listening) {
    listener_.reset();
    return Error{listening.error().code, "cannot listen at " + path_ + ": " + listening.error().message};
  }
  reactor_.add(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
  return Ok{};
}

Status LaunchDoor::listen() {
  sockaddr_un address;
  auto size = socket_address(path_, address);
  if (!size) return size.error();
  listener_ = sys::make_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
  if (!listener_) return sys::shortage_error("make a socket");
  const std::string folder = path_.substr(0, path_.rfind('/'));
  constexpr int kTriesMax = 100;  // the end of another job may take the folder away
  int error = ENOENT;
  for (int tries = 0; tries < kTriesMax && error == ENOENT; ++tries) {
    // The folder is the job's, and lies in that of the user.
    for (const std::string& each : {folder.substr(0, folder.rfind('/')), folder}) {
      if (auto made = make_private_folder(each); !made && made.error().code != ErrorCode::kClosed) return made.error();
    }
    unlink(path_.c_str());  // of a process that had this number and was killed: there is none but this one
    error = bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), *size) == 0 ? 0 : errno;
  }
  // Nobody else can look into the folder meanwhile.
  if (error == 0 && (chmod(path_.c_str(), 0600) != 0 || ::listen(listener_.get(), SOMAXCONN) != 0)) error = errno;
  if (error != 0) return Error{ErrorCode::kUnavailable, std::strerror(error)};
  return Ok{};
}

void LaunchDoor::accept() {
  if (strangers_.size() >= kStrangersMax) return reactor_.modify(listener_.get(), 0);
  auto socket = std::make_shared<UniqueFd>(sys::accept(listener_.get()));  // shared: a task is copyable
  if (*socket) return meet(std::move(socket), kShortageTries);
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause_listening();
}

void LaunchDoor::pause_listening() {
  if (std::exchange(paused_, true)) return;
  reactor_.modify(listener_.get(), 0);
  reactor_.after(kShortageRetryNs, [this] {
    paused_ = false;
    reactor_.modify(listener_.get(), EPOLLIN);
  });
}

void LaunchDoor::meet(std::shared_ptr<UniqueFd> socket, int tries) {
  auto process = peer_of(socket->get());
  if (!process && process.error().code == ErrorCode::kUnavailable && tries > 1) {
    reactor_.after(kShortageRetryNs, [this, socket, tries] { meet(socket, tries - 1); });
    return;
  }
  Guest guest{std::move(*socket), {}};
  if (!process) return refuse(guest, process.error().message);
  guest.process = std::move(*process);
  const int fd = guest.socket.get();
  const uint64_t number = ++numbers_;
  strangers_.emplace(fd, Stranger{std::move(guest), number});
  reactor_.add(fd, EPOLLIN, [this, fd](uint32_t) { hear(fd); });
  reactor_.after(kHelloLimitNs, [this, fd, number] {
    const auto found = strangers_.find(fd);
    if (found == strangers_.end() || found->second.number != number) return;
    log_line("a process (pid " + std::to_string(found->second.guest.process.pid) + ") did not say who it is at " + path_);
    drop(fd);
  });
}

void LaunchDoor::hear(int fd) {
  std::byte bytes[1 + sizeof(NodeId)];
  const auto got = sys::receive_message(fd, bytes, MSG_DONTWAIT);
  if (got.size < 0 && errno == EAGAIN) return;
  if (got.size != sizeof bytes || static_cast<char>(bytes[0]) != kIAm) {
    if (got.size > 0) refuse(strangers_.at(fd).guest, "not a process of a mesh");
    return drop(fd);
  }
  NodeId node;
  std::memcpy(&node, bytes + 1, sizeof node);
  Guest guest = std::move(strangers_.at(fd).guest);
  drop(fd);
  on_guest_(node, std::move(guest));
}

void LaunchDoor::drop(int fd) {
  reactor_.remove(fd);
  const bool was_full = strangers_.size() >= kStrangersMax;
  strangers_.erase(fd);
  if (was_full && listener_ && !paused_) reactor_.modify(listener_.get(), EPOLLIN);
}

bool LaunchDoor::admit(const Guest& guest, NodeId node, const std::array<int, kFdCount>& fds) {
  return send_fork_request(guest.socket.get(), node, fds);
}

void LaunchDoor::refuse(const Guest& guest, const std::string& why) {
  const std::string answer = kNo + shortened(why, kReasonRoom - 1);
  sys::send_message(guest.socket.get(), as_byte_span(answer.data(), answer.size()), {}, MSG_DONTWAIT);
}

// ---- The new process ----

Result<BootstrapFds> enter_launch_door(const std::string& text) {
  const size_t hash = text.rfind('#');
  NodeId node = 0;
  const char* const begin = text.data() + (hash == text.npos ? text.size() : hash + 1);
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(begin, end, node, 16);
  if (begin == end || parsed.ec != std::errc() || parsed.ptr != end) {
    return Error{ErrorCode::kMalformed, "not what a process of a mesh is told: '" + shortened(text, 200) + "'"};
  }
  const std::string path = text.substr(0, hash);
  const auto closed = [&path](const std::string& why) {
    return Error{ErrorCode::kClosed, "this process is not wanted at " + path + ": " + why};
  };
  sockaddr_un address;
  auto size = socket_address(path, address);
  if (!size) return size.error();
  const UniqueFd socket = sys::make_socket(AF_UNIX, SOCK_SEQPACKET);
  if (!socket) return sys::shortage_error("make a socket");
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), *size) != 0) {
    if (errno == EINTR) continue;
    const bool absent = errno == ECONNREFUSED || errno == ENOENT;
    return closed(absent ? "nobody waits for it there: who wanted it has ended, or this is another machine, or a "
                           "container without that folder"
                         : std::strerror(errno));
  }
  ucred peer{};
  socklen_t peer_size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 || peer.uid != geteuid()) {
    return closed("it belongs to another user than this process, whose id is " + std::to_string(geteuid()));
  }
  std::byte hello[1 + sizeof node];
  hello[0] = static_cast<std::byte>(kIAm);
  std::memcpy(hello + 1, &node, sizeof node);
  if (sys::send_message(socket.get(), hello, {}, 0) < 0) return closed("it closed the connection");
  std::byte answer[kReasonRoom];
  auto got = sys::receive_message(socket.get(), answer, 0);
  if (got.lost) return sys::shortage_error("take what a worker is given");
  if (got.size > 0 && static_cast<char>(answer[0]) == kNo && got.fds.empty()) {
    return closed(std::string(reinterpret_cast<const char*>(answer) + 1, static_cast<size_t>(got.size) - 1));
  }
  if (got.size != sizeof node || got.fds.size() != kFdCount) return closed("who wanted it has ended, or does not any more");
  BootstrapFds fds;
  std::move(got.fds.begin(), got.fds.end(), fds.begin());
  return fds;
}

}  // namespace monarch
