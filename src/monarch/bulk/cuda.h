// Memory of CUDA devices, by the driver's own interface (CUDA Driver API reference). Its library is loaded when somebody
// first has to do with such memory, and is never needed: nothing of CUDA is there when this is built.
//
// Any thread: each call enters the primary context of its device, which is also that of the CUDA runtime and of PyTorch.
// What kernels have not done yet with the memory is not waited for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/bulk/memory.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

struct CudaFunctions;

// What another process of the machine needs to reach memory of a device.
struct CudaExport {
  std::vector<std::byte> handle;  // of the allocation (CUipcMemHandle)
  uint64_t allocated = 0;         // its bytes
  uint64_t offset = 0;            // of the memory in it
  std::vector<std::byte> device;  // its UUID: each process counts the devices that it sees
};

template <>
struct ValueCodec<CudaExport> {
  static auto fields(auto& e) { return std::tie(e.handle, e.allocated, e.offset, e.device); }
  static void encode(ValueWriter& writer, const CudaExport& made) { monarch::encode(writer, fields(made)); }
  static bool decode(ValueReader& reader, CudaExport& made) { return decode_into(reader, fields(made)); }
};

class Cuda {
 public:
  // That of this process: libcuda.so.1, or for tests what MONARCH_CUDA_LIBRARY names. Null: there is none, or this is a
  // child of fork(), in which CUDA does not work.
  static const Cuda* find(std::string* why_not = nullptr);
  static Result<std::unique_ptr<const Cuda>> load(const char* library);
  ~Cuda();

  // On which device that is; the address of no device is kUnsupported.
  Result<int> device_of(const void* address) const;

  // As copy_memory(), where one of both or both are on devices.
  Status copy(const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset, uint64_t length) const;

  // Calls it in the context of that device, for another library that works with its memory.
  Status within(int device, const std::function<Status()>& action) const;

  // For memory of a device that lies in one piece.
  Result<CudaExport> share(const Memory& memory) const;

  // An allocation of another process.
  class Opened {
   public:
    Opened(const Cuda& cuda, std::byte* data, int device) : cuda_(cuda), data_(data), device_(device) {}
    ~Opened();
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    std::byte* data() const { return data_; }
    int device() const { return device_; }

   private:
    const Cuda& cuda_;
    std::byte* const data_;
    const int device_;
  };
  Result<std::unique_ptr<Opened>> open(const CudaExport& shared) const;

 private:
  struct Device;
  class Within;
  explicit Cuda(std::unique_ptr<CudaFunctions> functions);
  Result<const Device*> use(int device) const;
  Status said(const char* what, int result) const;
  Result<int> find_device(const std::vector<std::byte>& uuid) const;
  Status copy_pieces(const Device& device, const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset,
                     uint64_t length) const;

  const std::unique_ptr<const CudaFunctions> functions_;
  mutable std::mutex mutex_;  // a leaf
  mutable std::map<int, std::unique_ptr<Device>> devices_;
};

}  // namespace monarch
