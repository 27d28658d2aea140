#include "monarch/bulk/kernel_copy.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <memory>

#include "monarch/base/check.h"

namespace monarch {

namespace {

// As many pieces as the kernel takes in a call (UIO_MAXIOV), less what a stack should hold of them.
constexpr size_t kPiecesMax = 256;
// Pieces that are smaller go through memory of our own: the kernel takes longer for each of them than for its bytes.
constexpr uint64_t kPieceMin = 4096;
constexpr uint64_t kBounceBytes = 256 * 1024;

// SYS_process_vm_readv or _writev. Not by the library: sanitizers would take what two processes do to memory that one of
// them has lent for a race of this code.
using Transfer = long;

CopyOutcome outcome_of(int error) {
  switch (error) {
    case EFAULT:
      return CopyOutcome::kFault;
    case ESRCH:
      return CopyOutcome::kGone;
    default:
      return CopyOutcome::kDenied;
  }
}

// `length` bytes at `there`, and as many in `pieces`.
CopyOutcome transfer(Transfer call, pid_t pid, uint64_t there, const iovec* pieces, size_t count, uint64_t length) {
  const iovec remote{reinterpret_cast<void*>(there), length};
  const ssize_t done = syscall(call, pid, pieces, count, &remote, 1UL, 0UL);
  if (done == static_cast<ssize_t>(length)) return CopyOutcome::kDone;
  // It ends short at the first page that is not there.
  return done >= 0 ? CopyOutcome::kFault : outcome_of(errno);
}

CopyOutcome copy_pieces(Transfer call, pid_t pid, uint64_t there, const Memory& here, uint64_t offset, uint64_t length) {
  iovec pieces[kPiecesMax];
  size_t count = 0;
  uint64_t bytes = 0;
  CopyOutcome outcome = CopyOutcome::kDone;
  const auto flush = [&] {
    if (count > 0) outcome = transfer(call, pid, there, pieces, count, bytes);
    there += bytes;
    count = 0, bytes = 0;
    return outcome == CopyOutcome::kDone;
  };
  const bool whole = here.for_each(offset, length, [&](std::byte* data, uint64_t size) {
    pieces[count++] = {data, size};
    bytes += size;
    return count < kPiecesMax || flush();
  });
  if (whole) flush();
  return outcome;
}

}  // namespace

CopyOutcome copy_from_process(pid_t pid, uint64_t there, const Memory& here, uint64_t offset, uint64_t length) {
  if (here.is_contiguous() || here.run() >= kPieceMin) {
    return copy_pieces(SYS_process_vm_readv, pid, there, here, offset, length);
  }
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kBounceBytes);
  for (uint64_t size; length > 0; offset += size, there += size, length -= size) {
    size = std::min(length, kBounceBytes);
    const iovec piece{bounce.get(), size};
    const CopyOutcome outcome = transfer(SYS_process_vm_readv, pid, there, &piece, 1, size);
    if (outcome != CopyOutcome::kDone) return outcome;
    here.scatter(offset, size, bounce.get());
  }
  return CopyOutcome::kDone;
}

CopyOutcome copy_to_process(pid_t pid, uint64_t there, const Memory& here, uint64_t offset, uint64_t length) {
  if (here.is_contiguous() || here.run() >= kPieceMin) {
    return copy_pieces(SYS_process_vm_writev, pid, there, here, offset, length);
  }
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kBounceBytes);
  for (uint64_t size; length > 0; offset += size, there += size, length -= size) {
    size = std::min(length, kBounceBytes);
    here.gather(offset, size, bounce.get());
    const iovec piece{bounce.get(), size};
    const CopyOutcome outcome = transfer(SYS_process_vm_writev, pid, there, &piece, 1, size);
    if (outcome != CopyOutcome::kDone) return outcome;
  }
  return CopyOutcome::kDone;
}

CopyOutcome gather_checked(const Memory& from, uint64_t offset, uint64_t length, std::byte* flat) {
  const CopyOutcome outcome =
      copy_pieces(SYS_process_vm_writev, getpid(), reinterpret_cast<uint64_t>(flat), from, offset, length);
  if (outcome == CopyOutcome::kDenied) from.gather(offset, length, flat);
  return outcome == CopyOutcome::kDenied ? CopyOutcome::kDone : outcome;
}

CopyOutcome scatter_checked(const Memory& to, uint64_t offset, uint64_t length, const std::byte* flat) {
  const CopyOutcome outcome =
      copy_pieces(SYS_process_vm_readv, getpid(), reinterpret_cast<uint64_t>(flat), to, offset, length);
  if (outcome == CopyOutcome::kDenied) to.scatter(offset, length, flat);
  return outcome == CopyOutcome::kDenied ? CopyOutcome::kDone : outcome;
}

}  // namespace monarch
