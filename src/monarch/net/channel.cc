#include "monarch/net/channel.h"

#include <errno.h>
#include <sys/socket.h>

#include "monarch/base/check.h"

namespace monarch {

bool Channel::send_all(ByteSpan bytes, std::span<const int> fds) {
  MONARCH_CHECK(fds.empty());
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  const ssize_t count = write({&piece, 1});
  if (count >= 0 && static_cast<size_t>(count) != bytes.size()) errno = EMSGSIZE;
  static_cast<void>(flush());
  return count == static_cast<ssize_t>(bytes.size());
}

sys::Received Channel::receive(std::span<std::byte> into) {
  const iovec piece{into.data(), into.size()};
  return {read({&piece, 1}), {}};
}

UniqueFd Channel::take_socket() { MONARCH_CHECK(!"a channel that is more than its socket"); }

ssize_t SocketChannel::write(std::span<const iovec> pieces) { return sys::send_pieces(socket_.get(), pieces); }

ssize_t SocketChannel::read(std::span<const iovec> into) {
  size_t room = 0;
  for (const iovec& piece : into) room += piece.iov_len;
  const ssize_t count = sys::receive_pieces(socket_.get(), into);
  drained_ = count > 0 && static_cast<size_t>(count) < room;
  return count;
}

bool SocketChannel::send_all(ByteSpan bytes, std::span<const int> fds) {
  return sys::send_message(socket_.get(), bytes, fds, 0) == static_cast<ssize_t>(bytes.size());
}

sys::Received SocketChannel::receive(std::span<std::byte> into) {
  return sys::receive_message(socket_.get(), into, MSG_DONTWAIT);
}

void SocketChannel::end_output() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace monarch
