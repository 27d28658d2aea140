// Copies between the memory of two processes of a machine, or within one, by the kernel (process_vm_readv, "cross memory
// attach"): memory that is not there is an outcome, and no SIGSEGV.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "monarch/base/bytes.h"
#include "monarch/bulk/memory.h"

namespace monarch {

enum class CopyOutcome : uint8_t {
  kDone,
  kFault,   // some of the other side's memory, or of this, is not there (any more)
  kGone,    // there is no such process
  kDenied,  // the kernel does not let this process do so: Yama, seccomp, another user
};

// `length` bytes of `there`, which is memory of the process `pid`, perhaps of this one, and not of a device, into `here`.
// What has been copied before a fault stays.
CopyOutcome copy_from_process(pid_t pid, const Memory& there, uint64_t from, const Memory& here, uint64_t to,
                              uint64_t length);

// The other way round: `length` bytes of `here`, which is not of a device, into memory of the process `pid`.
CopyOutcome copy_to_process(pid_t pid, const Memory& there, uint64_t to, const Memory& here, uint64_t from,
                            uint64_t length);
// Whether the kernel forbids that call altogether (seccomp). Of whom it may be done to, it says when it is done.
bool copies_to_processes_are_forbidden();

// As many pieces, one after the other, by one system call: all or nothing that can be relied upon.
struct Piece {
  std::byte* here;
  std::byte* there;
  uint64_t size;
};
CopyOutcome copy_pieces_from_process(pid_t pid, std::span<const Piece> pieces);

// In pieces of this size, between which somebody may look whether the copy is still wanted: a millisecond each.
inline constexpr uint64_t kKernelCopyMax = uint64_t{8} << 20;

// Whether it is memory of the host that is copied through memory of our own, as the kernel takes longer for each piece than
// for its bytes.
bool in_small_pieces(const Memory& memory);

// Within this process, for memory that others may have unmapped: `flat` is there. Where the kernel does not do it, memcpy;
// for a device, its driver.
CopyOutcome gather_checked(const Memory& from, uint64_t offset, uint64_t length, std::byte* flat);
CopyOutcome scatter_checked(const Memory& to, uint64_t offset, uint64_t length, const std::byte* flat);

}  // namespace monarch
