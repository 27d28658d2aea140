// The system calls that can fail for want of something: descriptors, memory, processes. Everything makes them through
// here (`make lint` sees to it), so that a test can make any one of them fail, as LevelDB's Env does for files. They do
// what their namesakes do, errno included; descriptors are close-on-exec.
//
// A call that fails here says something about this process, never about a peer: report it as a shortage
// (shortage_error) or try again, but declare nobody dead for it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

struct epoll_event;

namespace monarch::sys {

UniqueFd make_epoll();
int epoll_add(int epoll, int fd, epoll_event* event);
UniqueFd make_eventfd();  // non-blocking
UniqueFd make_timerfd();  // monotonic, non-blocking
UniqueFd make_signalfd(const void* signals);  // a sigset_t; non-blocking
UniqueFd make_memfd(const char* name, unsigned flags);
int truncate(int fd, off_t size);
int allocate(int fd, uint64_t offset, uint64_t size);  // memory behind these bytes of a memfd; begun anew after a signal
void* map(size_t size, int protection, int flags, int fd, uint64_t offset = 0);  // MAP_FAILED
void* map_over(void* at, size_t size, int protection, int flags, int fd);  // what is mapped there goes; MAP_FAILED
UniqueFd make_socket(int domain, int type);
bool make_socket_pair(int domain, int type, UniqueFd out[2]);
bool make_pipe(UniqueFd out[2], int flags = 0);  // the end to read, the end to write
UniqueFd accept(int listener);
UniqueFd duplicate(int fd);  // never below 3
UniqueFd open_file(const char* path, int flags, mode_t mode = 0);
UniqueFd open_pidfd(pid_t pid);
UniqueFd open_file_in(int folder, const char* name, int flags, mode_t mode = 0);
// A thread in which all signals are blocked: they stay with the main thread. False: there is none to be had.
bool start_thread(pthread_t* thread, void* (*run)(void*), void* context);

// Bytes with descriptors beside them, over a unix socket. Both are made again when a signal interrupts them.
constexpr size_t kFdsPerMessageMax = 16;
ssize_t send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, int flags);
struct Received {
  ssize_t size;  // as recv's
  std::vector<UniqueFd> fds;
  bool lost = false;  // this process had no room for descriptors that came with it
};
Received receive_message(int socket, std::span<std::byte> into, int flags);
// Any stream socket, without waiting: as much as it takes, as much as is there. Made again when a signal interrupts them.
ssize_t send_pieces(int socket, std::span<const iovec> pieces);
ssize_t receive_pieces(int socket, std::span<const iovec> into);

// How many descriptors this process may have is its soft limit (ulimit -n), mostly 1,024. From manage_descriptor_limit()
// on, which a runtime calls as it starts, a call above that runs into it raises it to the hard one and tries again. What
// this process starts gets back what it had at first: programs that use select() rely on small numbers.
void manage_descriptor_limit();
bool raise_descriptor_limit();         // false: it is not managed, or there is nothing to be raised
uint64_t original_descriptor_limit();  // 0: it has not been raised
// Whether `count` more can be had, with what the limit can be raised to. An error says what is short. Costs some
// microseconds for each hundred that are open.
Status expect_descriptors(size_t count, const char* what);
// Whether kSpareDescriptors are left for what needs them more, if `fd`, which has just come, is kept open.
inline constexpr size_t kSpareDescriptors = 64;
bool leaves_descriptors(int fd);

// For calls that cannot be wrapped (vfork, the making of a thread): true: behave as if it had failed with errno, which is
// set to `error`.
bool must_fail(int error);

// The last call's errno, in words that say what to do: "cannot <what>: out of file descriptors: 1024 in use, raise ulimit
// -n". kUnavailable.
Error shortage_error(const char* what);
// Prints that and ends the process: where there is nobody yet who could be told.
[[noreturn]] void end_for_shortage(const char* what);

// ---- For tests ----

// From now on the `nth` of these calls in this process fails (1: the next one; 0: none), once. Counting begins anew.
void fail_nth(uint64_t nth);
// How many there have been since.
uint64_t calls_seen();

}  // namespace monarch::sys
