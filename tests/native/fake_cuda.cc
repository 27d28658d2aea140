// Stands in for the driver of CUDA (MONARCH_CUDA_LIBRARY): those functions that bulk/cuda.cc calls, of two devices whose
// memory lies in files of this machine. Its addresses are of pages that nobody may touch, so that whoever takes them for
// the host's is ended by SIGSEGV; a second mapping has the bytes. It is stricter than the driver where that finds
// mistakes: what is copied to a device is there when its stream has been synchronised, and no moment before.
//
// Tests get memory with fake_cuda_allocate(), and look at it with fake_cuda_bytes().
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kNotInitialized = 3, kInvalidDevice = 101, kInvalidContext = 201, kMapFailed = 205;
constexpr int kDevices = 2;

struct Handle {
  char reserved[64];
};
struct Named {  // in a Handle
  int64_t pid, fd, inode;
  uint64_t size;
  int64_t device;
};
static_assert(sizeof(Named) <= sizeof(Handle));

struct Allocation {
  uint64_t size = 0;
  char* bytes = nullptr;
  int fd = -1;
  int device = 0;
  bool is_shareable = true;
  int opened = 0;  // how often, of another process's
  Named named{};
};

struct Context {
  int device;
};
struct Stream {
  std::vector<std::function<void()>> waiting;
};

struct Driver {
  std::mutex mutex;
  pid_t pid = 0;  // that has called cuInit
  std::map<uint64_t, Allocation> allocations;
  std::map<std::pair<int64_t, int64_t>, uint64_t> opened;  // by pid and inode
  Context contexts[kDevices]{{0}, {1}};
  std::atomic<int> opens{0}, closes{0}, copies{0};
};
Driver& driver() {
  static Driver& made = *new Driver;
  return made;
}
thread_local std::vector<void*> current;

// With the mutex. Null: no such bytes.
Allocation* find(uint64_t at, uint64_t size, uint64_t* base = nullptr) {
  auto& all = driver().allocations;
  auto found = all.upper_bound(at);
  if (found == all.begin()) return nullptr;
  --found;
  const uint64_t offset = at - found->first;
  if (offset > found->second.size || size > found->second.size - offset) return nullptr;
  if (base != nullptr) *base = found->first;
  return &found->second;
}

char* bytes_at(uint64_t at, uint64_t size) {
  uint64_t base = 0;
  Allocation* found = find(at, size, &base);
  return found == nullptr ? nullptr : found->bytes + (at - base);
}

int usable() { return driver().pid != getpid() ? kNotInitialized : current.empty() ? kInvalidContext : 0; }

uint64_t add(Allocation made) {
  void* bytes = mmap(nullptr, made.size, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  void* address = mmap(nullptr, made.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes == MAP_FAILED || address == MAP_FAILED) return 0;
  made.bytes = static_cast<char*>(bytes);
  const auto at = reinterpret_cast<uint64_t>(address);
  driver().allocations[at] = made;
  return at;
}

void remove(uint64_t at) {
  const Allocation gone = driver().allocations[at];
  driver().allocations.erase(at);
  munmap(gone.bytes, gone.size);
  munmap(reinterpret_cast<void*>(at), gone.size);
  close(gone.fd);
}

}  // namespace

extern "C" {

// ---- For tests ----

// Memory of a device, whose bytes are 0; unless `shareable`, cuIpcGetMemHandle refuses it, as it does what cuMemCreate
// made.
uint64_t fake_cuda_allocate(uint64_t size, int device, int shareable) {
  std::lock_guard lock(driver().mutex);
  Allocation made;
  made.size = size;
  made.device = device;
  made.is_shareable = shareable != 0;
  made.fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (made.fd < 0 || ftruncate(made.fd, static_cast<off_t>(size)) != 0) return 0;
  return add(made);
}
void fake_cuda_free(uint64_t at) {
  std::lock_guard lock(driver().mutex);
  remove(at);
}
// Where the host finds them; null: there are none.
void* fake_cuda_bytes(uint64_t at) {
  std::lock_guard lock(driver().mutex);
  return bytes_at(at, 1);
}
int fake_cuda_opens() { return driver().opens; }
int fake_cuda_closes() { return driver().closes; }
int fake_cuda_copies() { return driver().copies; }

// ---- The driver's ----

int cuInit(unsigned) {
  std::lock_guard lock(driver().mutex);
  if (driver().pid == 0) driver().pid = getpid();
  return driver().pid == getpid() ? 0 : kNotInitialized;
}

int cuGetErrorString(int error, const char** text) {
  switch (error) {
    case kInvalidValue:
      *text = "invalid argument";
      return 0;
    case kNotInitialized:
      *text = "initialization error";
      return 0;
    case kInvalidDevice:
      *text = "invalid device ordinal";
      return 0;
    case kInvalidContext:
      *text = "invalid device context";
      return 0;
    case kMapFailed:
      *text = "mapping of buffer object failed";
      return 0;
    default:
      *text = nullptr;
      return kInvalidValue;
  }
}

int cuPointerGetAttribute(void* into, int attribute, unsigned long long at) {
  std::lock_guard lock(driver().mutex);
  if (driver().pid != getpid()) return kNotInitialized;
  const Allocation* found = find(at, 1);
  if (found == nullptr) return kInvalidValue;
  if (attribute == 2) *static_cast<unsigned*>(into) = 2;
  if (attribute == 9) *static_cast<int*>(into) = found->device;
  return attribute == 2 || attribute == 9 ? 0 : kInvalidValue;
}

int cuDeviceGetCount(int* count) { return *count = kDevices, 0; }

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kDevices ? 0 : kInvalidDevice;
}

int cuDeviceGetUuid_v2(char* uuid, int device) {
  std::memset(uuid, 'A' + device, 16);
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (driver().pid != getpid()) return kNotInitialized;
  *context = &driver().contexts[device];
  return 0;
}

int cuCtxPushCurrent_v2(void* context) { return current.push_back(context), 0; }

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}

int cuMemGetAddressRange_v2(unsigned long long* base, size_t* size, unsigned long long at) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  uint64_t from = 0;
  const Allocation* found = find(at, 1, &from);
  if (found == nullptr) return kInvalidValue;
  *base = from;
  *size = found->size;
  return 0;
}

int cuIpcGetMemHandle(Handle* handle, unsigned long long at) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  const auto found = driver().allocations.find(at);
  if (found == driver().allocations.end() || !found->second.is_shareable || found->second.opened > 0) return kInvalidValue;
  struct stat status{};
  fstat(found->second.fd, &status);
  const Named named{getpid(), found->second.fd, static_cast<int64_t>(status.st_ino), found->second.size,
                    found->second.device};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &named, sizeof named);
  return 0;
}

// Unlike the driver's it also opens what is of this process.
int cuIpcOpenMemHandle_v2(unsigned long long* at, Handle handle, unsigned) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  Named named;
  std::memcpy(&named, &handle, sizeof named);
  const std::pair<int64_t, int64_t> key{named.pid, named.inode};
  if (const auto found = driver().opened.find(key); found != driver().opened.end()) {
    ++driver().opens;
    ++driver().allocations[*at = found->second].opened;
    return 0;
  }
  const std::string path = "/proc/" + std::to_string(named.pid) + "/fd/" + std::to_string(named.fd);
  Allocation made;
  made.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status{};
  if (made.fd < 0 || fstat(made.fd, &status) != 0 || static_cast<int64_t>(status.st_ino) != named.inode) {
    if (made.fd >= 0) close(made.fd);
    return kMapFailed;
  }
  made.size = named.size;
  made.device = static_cast<int>(named.device);
  made.opened = 1;
  made.named = named;
  *at = add(made);
  driver().opened[key] = *at;
  ++driver().opens;
  return 0;
}

int cuIpcCloseMemHandle(unsigned long long at) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  const auto found = driver().allocations.find(at);
  if (found == driver().allocations.end() || found->second.opened == 0) return kInvalidValue;
  ++driver().closes;
  if (--found->second.opened > 0) return 0;
  driver().opened.erase({found->second.named.pid, found->second.named.inode});
  remove(at);
  return 0;
}

int cuStreamCreate(void** stream, unsigned) {
  if (const int error = usable()) return error;
  *stream = new Stream;
  return 0;
}

int cuStreamSynchronize(void* stream) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  std::vector<std::function<void()>> waiting;
  waiting.swap(static_cast<Stream*>(stream)->waiting);
  for (const auto& each : waiting) each();
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t size, void* stream) {
  if (const int error = cuStreamSynchronize(stream)) return error;
  std::lock_guard lock(driver().mutex);
  const char* const bytes = bytes_at(from, size);
  if (bytes == nullptr || find(reinterpret_cast<uint64_t>(to), 1) != nullptr) return kInvalidValue;
  ++driver().copies;
  std::memcpy(to, bytes, size);
  return 0;
}

// The bytes are taken at once, as of pageable memory.
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t size, void* stream) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  if (bytes_at(to, size) == nullptr || find(reinterpret_cast<uint64_t>(from), 1) != nullptr) return kInvalidValue;
  ++driver().copies;
  const std::string staged(static_cast<const char*>(from), size);
  static_cast<Stream*>(stream)->waiting.push_back([to, staged] {
    if (char* bytes = bytes_at(to, staged.size())) std::memcpy(bytes, staged.data(), staged.size());
  });
  return 0;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t size, void* stream) {
  if (const int error = usable()) return error;
  std::lock_guard lock(driver().mutex);
  if (bytes_at(to, size) == nullptr || bytes_at(from, size) == nullptr) return kInvalidValue;
  ++driver().copies;
  static_cast<Stream*>(stream)->waiting.push_back([to, from, size] {
    char* const into = bytes_at(to, size);
    const char* const out = bytes_at(from, size);
    if (into != nullptr && out != nullptr) std::memmove(into, out, size);
  });
  return 0;
}

}  // extern "C"
