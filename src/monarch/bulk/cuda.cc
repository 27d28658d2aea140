#include "monarch/bulk/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "monarch/base/check.h"
#include "monarch/base/forked.h"

namespace monarch {

namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr char kForked[] = "CUDA does not work in a child of fork(): start the process anew";

// Of the host's, if it lies in pieces: the driver takes microseconds for each.
constexpr uint64_t kBounceBytes = uint64_t{1} << 20;

// As the CUDA Driver API reference, "Data types used by CUDA driver", has them.
constexpr int kSuccess = 0;                 // CUDA_SUCCESS
constexpr int kMemoryType = 2;              // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kDeviceOrdinal = 9;           // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kOfHost = 1;             // CU_MEMORYTYPE_HOST
constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kLazyPeerAccess = 1;     // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr size_t kHandleBytes = 64;         // CU_IPC_HANDLE_SIZE

using Address = unsigned long long;  // CUdeviceptr
struct IpcHandle {                   // CUipcMemHandle
  char reserved[kHandleBytes];
};
struct Uuid {  // CUuuid
  char bytes[16];
};

Address address_of(const std::byte* data) { return reinterpret_cast<Address>(data); }

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// By the names that the library exports. A result is 0 or an error.
struct CudaFunctions {
  int (*init)(unsigned flags);
  int (*error_string)(int error, const char** text);
  int (*pointer_attribute)(void* into, int attribute, Address at);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*device_uuid)(Uuid* uuid, int device);
  int (*primary_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*address_range)(Address* base, size_t* size, Address at);
  int (*ipc_handle)(IpcHandle* handle, Address at);
  int (*ipc_open)(Address* at, IpcHandle handle, unsigned flags);
  int (*ipc_close)(Address at);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_synchronize)(void* stream);
  int (*to_host)(void* to, Address from, size_t size, void* stream);
  int (*from_host)(Address to, const void* from, size_t size, void* stream);
  int (*on_devices)(Address to, Address from, size_t size, void* stream);

  Status find_in(void* library) {
    std::string missing;
    const auto find = [&](auto& function, const char* name, const char* older = nullptr) {
      void* found = dlsym(library, name);
      if (found == nullptr && older != nullptr) found = dlsym(library, older);
      if (found == nullptr) missing = name;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(init, "cuInit");
    find(error_string, "cuGetErrorString");
    find(pointer_attribute, "cuPointerGetAttribute");
    find(device_count, "cuDeviceGetCount");
    find(device_get, "cuDeviceGet");
    find(device_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
    find(primary_context, "cuDevicePrimaryCtxRetain");
    find(push_context, "cuCtxPushCurrent_v2");
    find(pop_context, "cuCtxPopCurrent_v2");
    find(address_range, "cuMemGetAddressRange_v2");
    find(ipc_handle, "cuIpcGetMemHandle");
    find(ipc_open, "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle");
    find(ipc_close, "cuIpcCloseMemHandle");
    find(stream_create, "cuStreamCreate");
    find(stream_synchronize, "cuStreamSynchronize");
    find(to_host, "cuMemcpyDtoHAsync_v2");
    find(from_host, "cuMemcpyHtoDAsync_v2");
    find(on_devices, "cuMemcpyDtoDAsync_v2");
    if (missing.empty()) return Ok{};
    return Error{ErrorCode::kUnsupported, "the CUDA driver is too old: it has no " + missing};
  }
};

struct Cuda::Device {
  void* context = nullptr;
  // Of our own, which does not wait for anybody's kernels, nor they for it.
  void* stream = nullptr;
};

// The thread is in the context of a device as long as this lives.
class Cuda::Within {
 public:
  Within(const Cuda& cuda, void* context)
      : cuda_(cuda), status_(cuda.said("cuCtxPushCurrent", cuda.functions_->push_context(context))) {}
  ~Within() {
    void* ignored;
    if (status_) cuda_.functions_->pop_context(&ignored);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  const Status& status() const { return status_; }

 private:
  const Cuda& cuda_;
  const Status status_;
};

// ---- The driver ----

Cuda::Cuda(std::unique_ptr<CudaFunctions> functions) : functions_(std::move(functions)) {}

// Contexts and streams stay: others of this process use the former, and the driver may have ended before.
Cuda::~Cuda() = default;

Result<std::unique_ptr<const Cuda>> Cuda::load(const char* library) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* const why = dlerror();
    return Error{ErrorCode::kUnsupported, "there is no CUDA driver: " + std::string(why != nullptr ? why : library)};
  }
  auto functions = std::make_unique<CudaFunctions>();
  if (const Status found = functions->find_in(loaded); !found) return found.error();
  std::unique_ptr<const Cuda> made(new Cuda(std::move(functions)));
  if (const Status begun = made->said("cuInit", made->functions_->init(0)); !begun) return begun.error();
  return made;
}

const Cuda* Cuda::find(std::string* why_not) {
  if (in_forked_child()) {
    if (why_not != nullptr) *why_not = kForked;
    return nullptr;
  }
  // Never destroyed.
  static const auto& found = *[] {
    const char* const named = std::getenv("MONARCH_CUDA_LIBRARY");
    return new Result<std::unique_ptr<const Cuda>>(load(named != nullptr ? named : kLibrary));
  }();
  if (!found && why_not != nullptr) *why_not = found.error().message;
  return found ? found.value().get() : nullptr;
}

Status Cuda::said(const char* what, int result) const {
  if (result == kSuccess) return Ok{};
  const char* text = nullptr;
  if (functions_->error_string(result, &text) != kSuccess || text == nullptr) text = "an error without a name";
  return Error{ErrorCode::kUnavailable, std::string(what) + ": " + text + " (" + std::to_string(result) + ")"};
}

Result<const Cuda::Device*> Cuda::use(int device) const {
  if (in_forked_child()) return Error{ErrorCode::kUnsupported, kForked};
  std::lock_guard lock(mutex_);
  if (const auto found = devices_.find(device); found != devices_.end()) return found->second.get();
  auto made = std::make_unique<Device>();
  int of_driver = 0;
  Status status = said("cuDeviceGet", functions_->device_get(&of_driver, device));
  if (status) status = said("cuDevicePrimaryCtxRetain", functions_->primary_context(&made->context, of_driver));
  if (!status) return status.error();
  const Within within(*this, made->context);
  if (!within.status()) return within.status().error();
  status = said("cuStreamCreate", functions_->stream_create(&made->stream, kNonBlockingStream));
  if (!status) return status.error();
  return (devices_[device] = std::move(made)).get();
}

// Asked without a context, as it is to say which.
Result<int> Cuda::device_of(const void* address) const {
  if (in_forked_child()) return Error{ErrorCode::kUnsupported, kForked};
  unsigned type = 0;
  int device = Memory::kHost;
  const auto at = reinterpret_cast<Address>(address);
  Status asked = said("cuPointerGetAttribute", functions_->pointer_attribute(&type, kMemoryType, at));
  if (asked && type != kOfHost) {
    asked = said("cuPointerGetAttribute", functions_->pointer_attribute(&device, kDeviceOrdinal, at));
  }
  if (!asked) return asked.error();
  if (device < 0) return Error{ErrorCode::kUnsupported, "it is memory of the host"};
  return device;
}

// ---- Copies ----

Status Cuda::copy(const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset, uint64_t length) const {
  MONARCH_CHECK(to.is_on_device() || from.is_on_device());
  auto device = use(to.is_on_device() ? to.device() : from.device());
  if (!device) return device.error();
  const Within within(*this, (*device)->context);
  if (!within.status()) return within.status();
  const bool gathers = !from.is_on_device() && !from.in_one_piece();
  const bool scatters = !to.is_on_device() && !to.in_one_piece();
  if (!gathers && !scatters) return copy_pieces(**device, to, to_offset, from, from_offset, length);
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(std::min(length, kBounceBytes));
  for (uint64_t done = 0, size; done < length; done += size) {
    size = std::min(length - done, kBounceBytes);
    const Memory flat(bounce.get(), size);
    if (gathers) MONARCH_CHECK(from.gather(from_offset + done, size, bounce.get()));
    const Status copied = gathers ? copy_pieces(**device, to, to_offset + done, flat, 0, size)
                                  : copy_pieces(**device, flat, 0, from, from_offset + done, size);
    if (!copied) return copied;
    if (scatters) MONARCH_CHECK(to.scatter(to_offset + done, size, bounce.get()));
  }
  return Ok{};
}

// In its context. Also after an error nothing is under way any more when it returns.
Status Cuda::copy_pieces(const Device& device, const Memory& to, uint64_t to_offset, const Memory& from,
                         uint64_t from_offset, uint64_t length) const {
  Memory::Cursor into(to, to_offset), out(from, from_offset);
  Status begun = Ok{};
  while (length > 0 && begun) {
    const uint64_t size = std::min({length, into.left(), out.left()});
    if (!to.is_on_device()) {
      begun = said("cuMemcpyDtoH", functions_->to_host(into.at(), address_of(out.at()), size, device.stream));
    } else if (!from.is_on_device()) {
      begun = said("cuMemcpyHtoD", functions_->from_host(address_of(into.at()), out.at(), size, device.stream));
    } else {
      begun = said("cuMemcpyDtoD",
                   functions_->on_devices(address_of(into.at()), address_of(out.at()), size, device.stream));
    }
    into.advance(size);
    out.advance(size);
    length -= size;
  }
  const Status ended = said("cuStreamSynchronize", functions_->stream_synchronize(device.stream));
  return begun ? ended : begun;
}

Status Cuda::within(int device, const std::function<Status()>& action) const {
  auto used = use(device);
  if (!used) return used.error();
  const Within context(*this, (*used)->context);
  return context.status() ? action() : context.status();
}

// ---- Between processes ----

Result<CudaExport> Cuda::share(const Memory& memory) const {
  MONARCH_CHECK(memory.is_on_device() && memory.in_one_piece());
  auto device = use(memory.device());
  if (!device) return device.error();
  const Within within(*this, (*device)->context);
  if (!within.status()) return within.status().error();
  Address base = 0;
  CudaExport made;
  IpcHandle handle;
  Uuid uuid;
  int of_driver = 0;
  const Address at = address_of(memory.data());
  Status status = said("cuMemGetAddressRange", functions_->address_range(&base, &made.allocated, at));
  if (status) status = said("cuDeviceGet", functions_->device_get(&of_driver, memory.device()));
  if (status) status = said("cuDeviceGetUuid", functions_->device_uuid(&uuid, of_driver));
  if (!status) return status.error();
  made.offset = at - base;
  if (made.offset > made.allocated || memory.size() > made.allocated - made.offset) {
    return Error{ErrorCode::kUnsupported, "it does not lie in one allocation"};
  }
  if (status = said("cuIpcGetMemHandle", functions_->ipc_handle(&handle, base)); !status) {
    return Error{ErrorCode::kUnsupported, status.error().message + ": so it is with PyTorch's expandable segments"};
  }
  made.handle = bytes_of(handle);
  made.device = bytes_of(uuid);
  return made;
}

Result<int> Cuda::find_device(const std::vector<std::byte>& uuid) const {
  int count = 0;
  const Status counted = said("cuDeviceGetCount", functions_->device_count(&count));
  if (!counted) return counted.error();
  for (int device = 0; device < count; ++device) {
    int of_driver = 0;
    Uuid found;
    if (functions_->device_get(&of_driver, device) != kSuccess) continue;
    if (functions_->device_uuid(&found, of_driver) == kSuccess && bytes_of(found) == uuid) return device;
  }
  return Error{ErrorCode::kUnsupported, "its device is not seen here"};
}

Result<std::unique_ptr<Cuda::Opened>> Cuda::open(const CudaExport& shared) const {
  if (in_forked_child()) return Error{ErrorCode::kUnsupported, kForked};
  IpcHandle handle;
  if (shared.handle.size() != sizeof handle) return Error{ErrorCode::kMalformed, "no handle of an allocation"};
  std::ranges::copy(shared.handle, std::as_writable_bytes(std::span(&handle, 1)).begin());
  auto number = find_device(shared.device);
  if (!number) return number.error();
  auto device = use(*number);
  if (!device) return device.error();
  const Within within(*this, (*device)->context);
  if (!within.status()) return within.status().error();
  Address at = 0;
  const Status opened = said("cuIpcOpenMemHandle", functions_->ipc_open(&at, handle, kLazyPeerAccess));
  if (!opened) return opened.error();
  return std::make_unique<Opened>(*this, reinterpret_cast<std::byte*>(at), *number);
}

Cuda::Opened::~Opened() {
  auto device = cuda_.use(device_);
  if (!device) return;
  const Within within(cuda_, (*device)->context);
  if (within.status()) cuda_.functions_->ipc_close(address_of(data_));
}

}  // namespace monarch
