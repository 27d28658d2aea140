#include "monarch/net/shm/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "monarch/base/system.h"

namespace monarch {

Mapping::Mapping(Mapping&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (memory_ != nullptr) munmap(memory_, size_);
}

Result<UniqueFd> make_shared_memory(const char* name, size_t size) {
  UniqueFd fd = sys::make_memfd(name, MFD_ALLOW_SEALING);
  if (!fd || sys::truncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return sys::shortage_error("make shared memory");
  }
  return fd;
}

Result<Mapping> map_shared_memory(int fd, size_t size_min, int protection) {
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{ErrorCode::kMalformed, "shared memory of a peer is not sealed"};
  }
  if (fstat(fd, &status) != 0 || status.st_size <= 0 || static_cast<size_t>(status.st_size) < size_min) {
    return Error{ErrorCode::kMalformed, "shared memory of a peer is too small"};
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* memory = sys::map(size, protection, MAP_SHARED, fd);
  if (memory == MAP_FAILED) return sys::shortage_error("map shared memory");
  return Mapping(memory, size);
}

namespace {

constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // MADV_POPULATE_*: libraries may be older than the kernel

uintptr_t page_of(const void* at) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return reinterpret_cast<uintptr_t>(at) & ~(page - 1);
}

bool populate(const void* at, size_t size, int advice) {
  const uintptr_t begin = page_of(at);
  return madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(at) + size - begin, advice) == 0;
}

}  // namespace

void enter_pages(const void* at, size_t size, bool to_write) {
  populate(at, size, to_write ? kPopulateWrite : kPopulateRead);
}

bool are_there(const void* at, size_t size, bool to_write) {
  return populate(at, size, to_write ? kPopulateWrite : kPopulateRead);
}

bool is_resident(const void* at) {
  unsigned char page = 0;
  return mincore(reinterpret_cast<void*>(page_of(at)), 1, &page) != 0 || (page & 1) != 0;
}

bool may_be_written(const void* at) {
  char mine = 0;
  return populate(at, 1, kPopulateWrite) || !populate(&mine, 1, kPopulateWrite);
}

}  // namespace monarch
