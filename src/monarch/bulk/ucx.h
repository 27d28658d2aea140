// Bytes between two processes by UCX (https://openucx.org), which knows the NICs of a machine: with those that do RDMA they
// go from memory to memory. The library is loaded when the first stream wants it, and never needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/bulk/memory.h"

namespace monarch {

// Whether this machine has a NIC that does RDMA (verbs), which is what UCX is for.
bool has_rdma_device();

// Any thread. Which NIC UCX is to use, by its name in /sys/class/infiniband or as UCX has it ("mlx5_0:1"); empty: it
// chooses. It counts until the first end is made.
void choose_nic(std::string name);

// One end of a pair that move bytes between them, each piece as one message. Used by one thread, the one that made it. It
// does not encipher, and whoever can guess its tag, 64 random bits, can send to it.
class UcxEnd {
 public:
  // Waits until `fd` is readable, or for a moment; -1: not at all. An error: it is not to go on, and why. Asked every
  // hundredth of a second at least.
  using Pause = std::function<Status(int fd)>;

  // Whether make() would not wait for the library, which is being loaded from the first such question on.
  static bool is_loaded();
  // Returns when it is not being loaded any more: a process does not end in the midst of that.
  static void finish_loading();
  // kUnavailable: there is no UCX here, or it does not want to; nor in a child of fork().
  static Result<std::unique_ptr<UcxEnd>> make();
  // Whether it could be made, as far as is known without making one; loads the library.
  static Status can_be_made();
  ~UcxEnd();
  UcxEnd(const UcxEnd&) = delete;
  UcxEnd& operator=(const UcxEnd&) = delete;

  // For the other one's connect().
  Result<std::vector<std::byte>> address() const;
  // `tag` is the same on both sides.
  Status connect(ByteSpan address, uint64_t tag);

  // Whether it can be asked to move that as it is: what lies in one piece, of a device if UCX has been built with CUDA.
  // That then finds its way to the NIC itself, by GPUDirect where driver and NIC know that, else through the host.
  bool takes(const Memory& memory) const;
  // `bytes`, of any size, are such; the memory is there, and nobody touches it any more when this returns. After an error,
  // of whatever `pause` says too, this is of no use.
  Status send(const Memory& bytes, const Pause& pause);
  // A message of just so many: kUnavailable for one of fewer.
  Status receive(const Memory& into, const Pause& pause);

 private:
  UcxEnd() = default;
  // `received`: how much, if it is a receive.
  Status finish(void* request, const Pause& pause, size_t* received = nullptr);
  void close();

  void* worker_ = nullptr;
  void* endpoint_ = nullptr;
  int event_ = -1;
  uint64_t tag_ = 0;
};

}  // namespace monarch
