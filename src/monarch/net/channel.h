// One connected byte stream, whatever carries it: a hello is spoken on it (net/greeting.h), then a link carries frames over
// it. It never blocks; what goes wrong stands in errno, as after sendmsg() and recvmsg().
//
// Reactor only until a link has it; then one thread at a time writes, and one reads.
#pragma once

#include <sys/uio.h>

#include <optional>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/base/system.h"
#include "monarch/base/unique_fd.h"
#include "monarch/wire/hello.h"

namespace monarch {

class Channel {
 public:
  virtual ~Channel() = default;

  // What the reactor watches.
  virtual int fd() const = 0;
  // True: bytes may pass. False: not yet, a connection or its cipher is being made: again when fd() is ready.
  // kRefused: who is there says that it does not listen. kUnsupported: who is there is not the one that is wanted. Any
  // other error: it has not come to be.
  virtual Result<bool> establish() { return true; }
  // Whether it waits for fd() to have room, be it for what was written before (flush()).
  virtual bool wants_room() const { return false; }

  // How many bytes were taken, in order; -1: none, with errno (EAGAIN: there is no room now).
  virtual ssize_t write(std::span<const iovec> pieces) = 0;
  // What was taken goes on. False: not all of it, wait for room; a broken stream counts as flushed, its reader says so.
  virtual bool flush() { return true; }
  // How many bytes have come; 0: the stream has ended; -1: errno (EAGAIN: nothing now).
  virtual ssize_t read(std::span<const iovec> into) = 0;
  // The last read() has taken all that had come by then: fd() tells of what comes later, and who asks again before asks
  // the kernel in vain.
  virtual bool is_drained() const { return false; }
  // Bytes have come that fd() does not tell of any more.
  virtual bool has_input() const { return false; }

  // There is TLS in it.
  virtual bool is_enciphered() const { return false; }

  // What is wrong with the other side for good, if that is why the stream has ended.
  virtual std::optional<Error> fault() const { return std::nullopt; }
  // Once it is there: what a hello on it is bound to.
  virtual std::optional<ChannelBinding> binding() const { return std::nullopt; }

  // A few bytes, all at once. `fds` only where descriptors can travel. False: errno.
  virtual bool send_all(ByteSpan bytes, std::span<const int> fds);
  // As read(), with the descriptors that came beside.
  virtual sys::Received receive(std::span<std::byte> into);
  // Nothing more is to come from here; what has been written still goes, behind it the end: with flush(), if there was no
  // room (wants_room()).
  virtual void end_output() {}
  // The socket by itself, of a channel that is nothing else.
  virtual UniqueFd take_socket();
};

// A connected stream socket.
class SocketChannel : public Channel {
 public:
  explicit SocketChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  ssize_t write(std::span<const iovec> pieces) override;
  ssize_t read(std::span<const iovec> into) override;
  bool is_drained() const override { return drained_; }
  bool send_all(ByteSpan bytes, std::span<const int> fds) override;
  sys::Received receive(std::span<std::byte> into) override;
  void end_output() override;
  UniqueFd take_socket() override { return std::move(socket_); }

 private:
  UniqueFd socket_;
  bool drained_ = false;
};

}  // namespace monarch
