#include "monarch/net/shm/own_bell.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "monarch/base/system.h"

namespace monarch {

namespace {

// Where /proc does not say what it is, it is believed.
bool is_eventfd(int fd) {
  char target[64];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target);
  return size < 0 || std::string_view(target, static_cast<size_t>(size)) == "anon_inode:[eventfd]";
}

}  // namespace

Result<OwnBell> OwnBell::make() {
  auto page_fd = make_shared_memory("monarch-bell", 4096);
  if (!page_fd) return page_fd.error();
  UniqueFd event_fd = sys::make_eventfd();
  if (!event_fd) return sys::shortage_error("make a door bell");
  return adopt(std::move(*page_fd), std::move(event_fd));
}

Result<OwnBell> OwnBell::adopt(UniqueFd page_fd, UniqueFd event_fd) {
  auto page = map_shared_memory(page_fd.get(), sizeof(BellPage));
  if (!page) return page.error();
  return OwnBell{std::move(page_fd), std::move(event_fd), std::move(*page)};
}

Result<PeerBell> OwnBell::of_peer(UniqueFd page_fd, UniqueFd event_fd) {
  const int flags = fcntl(event_fd.get(), F_GETFL);
  if (flags < 0 || !is_eventfd(event_fd.get())) return Error{ErrorCode::kMalformed, "a peer's door bell is none"};
  if ((flags & O_NONBLOCK) == 0) return Error{ErrorCode::kMalformed, "a peer's door bell makes who rings it wait"};
  auto page = map_shared_memory(page_fd.get(), sizeof(BellPage));
  if (!page) return page.error();
  return PeerBell{std::move(*page), std::move(event_fd)};
}

}  // namespace monarch
