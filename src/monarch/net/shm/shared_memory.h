// Sealed anonymous shared memory: a memfd that can never shrink (a truncated one would be SIGBUS at the peer).
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* memory, size_t size) : memory_(memory), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  void* get() const { return memory_; }
  size_t size() const { return size_; }

 private:
  void* memory_ = nullptr;
  size_t size_ = 0;
};

// A new memfd of `size` zero bytes, sealed against shrinking and growing. `name` is shown in /proc only.
Result<UniqueFd> make_shared_memory(const char* name, size_t size);

// Maps a memfd that came from a peer (or from here), by default for reading and writing. Refuses one that is not sealed
// against shrinking, or smaller than `size_min`. `size_min` 0: whatever size it has.
Result<Mapping> map_shared_memory(int fd, size_t size_min, int protection = PROT_READ | PROT_WRITE);

// Has the kernel enter the pages of what is mapped there all at once, which takes a sixth to a half of the time that it
// takes when they are touched one by one. To write: the memory is this process's to write. Where the kernel is older than
// 5.14 nothing happens, nor for want of memory.
void enter_pages(const void* at, size_t size, bool to_write);

// The same, and whether all of it is there, and may be read, or written. False, too, where the kernel does not tell.
bool are_there(const void* at, size_t size, bool to_write);

// Whether the page of that byte is in memory, so that touching it costs no fault. True, too, where nothing is mapped.
bool is_resident(const void* at);

// Whether this process may write to the page of that byte; true where the kernel is older than 5.14, as it does not tell.
bool may_be_written(const void* at);

}  // namespace monarch
