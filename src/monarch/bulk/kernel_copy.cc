#include "monarch/bulk/kernel_copy.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <memory>

#include "monarch/base/check.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

namespace {

// As many pieces as the kernel takes in a call (UIO_MAXIOV), less what a stack should hold of them.
constexpr size_t kPiecesMax = 256;
// Pieces that are smaller go through memory of our own: the kernel takes longer for each of them than for its bytes.
constexpr uint64_t kPieceMin = 4096;
constexpr uint64_t kBounceBytes = 256 * 1024;

// Of a copy: a target that is shorter is filled page by page.
constexpr uint64_t kEnterMin = 256 * 1024;

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

// Two lists of pieces with as many bytes each.
class Lists {
 public:
  bool full() const { return here_.count == kPiecesMax || there_.count == kPiecesMax; }
  void add(std::byte* here, std::byte* there, uint64_t size) {
    here_.add(here, size);
    there_.add(there, size);
    bytes_ += size;
  }
  CopyOutcome transfer(Transfer call, pid_t pid) {
    if (bytes_ == 0) return CopyOutcome::kDone;
    const long done = syscall(call, pid, here_.pieces, here_.count, there_.pieces, there_.count, 0UL);
    // It ends short at the first page that is not there.
    const bool is_whole = done == static_cast<long>(bytes_);
    here_.count = there_.count = 0;
    bytes_ = 0;
    return is_whole ? CopyOutcome::kDone : done >= 0 ? CopyOutcome::kFault : outcome_of(errno);
  }

 private:
  struct List {
    iovec pieces[kPiecesMax];
    size_t count = 0;
    void add(std::byte* data, uint64_t size) {
      if (count > 0 && static_cast<std::byte*>(pieces[count - 1].iov_base) + pieces[count - 1].iov_len == data) {
        pieces[count - 1].iov_len += size;
      } else {
        pieces[count++] = {data, size};
      }
    }
  };
  List here_, there_;
  uint64_t bytes_ = 0;
};

CopyOutcome copy_pieces(Transfer call, pid_t pid, const Memory& there, uint64_t there_at, const Memory& here,
                        uint64_t here_at, uint64_t length) {
  Lists lists;
  Memory::Cursor far(there, there_at), near(here, here_at);
  while (length > 0) {
    const uint64_t size = std::min({length, far.left(), near.left()});
    lists.add(near.at(), far.at(), size);
    far.advance(size);
    near.advance(size);
    length -= size;
    if (!lists.full()) continue;
    if (const CopyOutcome outcome = lists.transfer(call, pid); outcome != CopyOutcome::kDone) return outcome;
  }
  return lists.transfer(call, pid);
}

}  // namespace

bool in_small_pieces(const Memory& memory) {
  return !memory.in_one_piece() && !memory.is_on_device() && memory.run() < kPieceMin;
}

CopyOutcome copy_from_process(pid_t pid, const Memory& there, uint64_t from, const Memory& here, uint64_t to,
                              uint64_t length) {
  MONARCH_CHECK(!there.is_on_device());
  if (!in_small_pieces(here) && !here.is_on_device()) {
    // A fault for each page costs a fifth of the copy; entering pages that are there already, a third. One in the middle
    // tells: the first and the last of new memory may hold what malloc() says of it, or of its neighbour.
    const bool is_long = here.is_contiguous() && length >= kEnterMin;
    if (is_long && !is_resident(here.data() + to + length / 2)) enter_pages(here.data() + to, length, /*to_write=*/true);
    return copy_pieces(SYS_process_vm_readv, pid, there, from, here, to, length);
  }
  const auto bounce = std::make_unique_for_overwrite<std::byte[]>(kBounceBytes);
  for (uint64_t size; length > 0; from += size, to += size, length -= size) {
    size = std::min(length, kBounceBytes);
    const Memory flat(bounce.get(), size);
    const CopyOutcome outcome = copy_pieces(SYS_process_vm_readv, pid, there, from, flat, 0, size);
    if (outcome != CopyOutcome::kDone) return outcome;
    if (!here.scatter(to, size, bounce.get())) return CopyOutcome::kFault;
  }
  return CopyOutcome::kDone;
}

CopyOutcome copy_to_process(pid_t pid, const Memory& there, uint64_t to, const Memory& here, uint64_t from,
                            uint64_t length) {
  MONARCH_CHECK(!there.is_on_device() && !here.is_on_device());
  return copy_pieces(SYS_process_vm_writev, pid, there, to, here, from, length);
}

// Of no bytes it looks at nobody.
bool copies_to_processes_are_forbidden() {
  return syscall(SYS_process_vm_writev, getpid(), nullptr, 0UL, nullptr, 0UL, 0UL) != 0;
}

CopyOutcome copy_pieces_from_process(pid_t pid, std::span<const Piece> pieces) {
  Lists lists;
  for (const Piece& piece : pieces) lists.add(piece.here, piece.there, piece.size);
  return lists.transfer(SYS_process_vm_readv, pid);
}

namespace {

// For items that lie apart: the kernel takes a microsecond for each, a look at the pages that they lie in far less for all.
// (Whoever unmaps memory in the moment between that look and the copy ends this process.)
constexpr uint64_t kSpanMax = 256;  // times the bytes, or else the look takes longer

bool is_there(const Memory& memory, uint64_t offset, uint64_t length, bool to_write) {
  if (!in_small_pieces(memory) || length == 0) return false;
  const Memory::Span span = memory.span(offset, length);
  return span.size() / kSpanMax <= length && are_there(span.begin, span.size(), to_write);
}

}  // namespace

CopyOutcome gather_checked(const Memory& from, uint64_t offset, uint64_t length, std::byte* flat) {
  if (from.is_on_device() || is_there(from, offset, length, false)) {
    return from.gather(offset, length, flat) ? CopyOutcome::kDone : CopyOutcome::kFault;
  }
  const Memory into(flat, length);
  const CopyOutcome outcome = copy_pieces(SYS_process_vm_readv, getpid(), from, offset, into, 0, length);
  return outcome == CopyOutcome::kDenied && from.gather(offset, length, flat) ? CopyOutcome::kDone : outcome;
}

CopyOutcome scatter_checked(const Memory& to, uint64_t offset, uint64_t length, const std::byte* flat) {
  if (to.is_on_device() || is_there(to, offset, length, true)) {
    return to.scatter(offset, length, flat) ? CopyOutcome::kDone : CopyOutcome::kFault;
  }
  const Memory out(const_cast<std::byte*>(flat), length);
  const CopyOutcome outcome = copy_pieces(SYS_process_vm_writev, getpid(), to, offset, out, 0, length);
  return outcome == CopyOutcome::kDenied && to.scatter(offset, length, flat) ? CopyOutcome::kDone : outcome;
}

}  // namespace monarch
