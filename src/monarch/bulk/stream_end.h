// One end of a stream: a connection that two processes of different hosts have for the bytes of buffers alone. It is used
// by one thread, which waits in it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "monarch/base/bytes.h"
#include "monarch/base/forked.h"
#include "monarch/base/unique_fd.h"
#include "monarch/bulk/ucx.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/channel.h"
#include "monarch/wire/hello.h"

namespace monarch {

// The sockets of all streams of a process. A child of a user's fork() closes its copies, without which the other sides
// would not see this process end.
class StreamSockets final : private ForkWatcher {
 public:
  explicit StreamSockets(Reactor& reactor) : reactor_(reactor) { watch_forks(*this); }
  ~StreamSockets() { unwatch_forks(*this); }
  void add(int fd);
  void remove(int fd);

 private:
  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() override { mutex_.unlock(); }
  void after_fork_in_child() override;

  Reactor& reactor_;
  std::mutex mutex_;  // a leaf; held over a fork()
  std::set<int> open_;
};

// Errors: kDeadline; kClosed, with why, after which it is of no use any more. So it is, too, if the other side has moved
// nothing for ten seconds, by UCX no whole message.
class StreamEnd {
 public:
  // Called whenever it is about to wait, and every few MiB: until when at most, before it calls again; 0: give up.
  using Look = std::function<int64_t()>;

  // `stop` is readable once nobody waits any more.
  StreamEnd(std::unique_ptr<Channel> channel, StreamSockets& sockets, int stop, Look look);
  ~StreamEnd();
  StreamEnd(const StreamEnd&) = delete;
  StreamEnd& operator=(const StreamEnd&) = delete;

  // Makes the connection, and its cipher, and finds out who is there. kUnsupported: somebody else.
  Result<NodeId> greet(HelloRole role, const HelloIdentity& identity, int64_t deadline_ns);

  Status send(ByteSpan bytes, int64_t deadline_ns);
  Status receive(std::span<std::byte> into, int64_t deadline_ns);

  // As much as can be done now, of memory that is there only for the moment: again after wait_for_...(). -1: errno. 0: the
  // stream has ended.
  ssize_t send_now(std::span<std::byte> from);
  ssize_t receive_now(std::span<std::byte> into);
  Status wait_for_room(int64_t deadline_ns) { return wait(true, deadline_ns); }
  Status wait_for_input(int64_t deadline_ns) { return wait(false, deadline_ns); }

  // An error: nobody is to go on. For who takes one piece after the other.
  Status goes_on(int64_t deadline_ns);

  // Memory is handed to the kernel as it is: what is not there is EFAULT. Else it is read, and written, here.
  bool is_plain() const { return !channel_->is_enciphered(); }

  // From now on the bytes of buffers go by that, in messages of kUcxBytes at most, and the connection has what is said
  // about them. Both sides do so, or none.
  void use(std::unique_ptr<UcxEnd> ucx) { ucx_ = std::move(ucx); }
  bool has_ucx() const { return ucx_ != nullptr; }
  // Whether it moves that as it is.
  bool takes_by_ucx(const Memory& memory) const { return ucx_->takes(memory); }
  static constexpr uint64_t kUcxBytes = uint64_t{4} << 20;
  // Whether it has moved anything so.
  bool has_moved_by_ucx() const { return moved_by_ucx_; }
  // `is_wanted` is asked now and then. The memory is there.
  Status send_by_ucx(const Memory& bytes, int64_t deadline_ns, const std::function<bool()>& is_wanted = {});
  Status receive_by_ucx(const Memory& into, int64_t deadline_ns, const std::function<bool()>& is_wanted = {});

 private:
  Status wait(bool for_room, int64_t deadline_ns);
  Status look_around(size_t moved, int64_t deadline_ns);
  UcxEnd::Pause pause_until(int64_t deadline_ns, const std::function<bool()>& is_wanted);

  const std::unique_ptr<Channel> channel_;
  StreamSockets& sockets_;
  const int stop_;
  const Look look_;
  size_t since_look_ = 0;
  std::unique_ptr<UcxEnd> ucx_;
  bool moved_by_ucx_ = false;
};

}  // namespace monarch
