#include "monarch/bulk/neighbour.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

#include "monarch/base/copy.h"
#include "monarch/base/random.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

// Pieces of a copy through a map, between which it is looked whether it is still wanted.
constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
// A read of fewer bytes touches the pages as it goes.
constexpr uint64_t kWarmMin = 256 * 1024;
// Of one neighbour. Each is a mapping, and keeps the memory of what its owner has dropped.
constexpr size_t kMapsMax = 32;
// What is remembered of its buffers on devices.
constexpr size_t kExportsMax = 4096;
// What goes through memory of our own.
constexpr uint64_t kSmallMax = 4096;

std::string read_line(const char* path) {
  char text[256] = {};
  const UniqueFd file = sys::open_file(path, O_RDONLY);
  const ssize_t size = file ? read(file.get(), text, sizeof text) : 0;
  const std::string_view all(text, size > 0 ? static_cast<size_t>(size) : 0);
  return std::string(all.substr(0, all.find('\n')));
}

uint64_t inode_of(const char* path) {
  struct stat status{};
  return stat(path, &status) == 0 ? status.st_ino : 0;
}

// Of this process. Never destroyed; a child of fork() has another.
const std::array<uint64_t, 2>& own_proof() {
  static const auto& proof = *[] {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = sys::map(page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    MONARCH_CHECK(memory != MAP_FAILED);
    madvise(memory, page, MADV_DONTFORK);
    auto* made = static_cast<std::array<uint64_t, 2>*>(memory);
    fill_random(made, sizeof *made);
    for (uint64_t& half : *made) half &= kIdMask;  // integers of messages have 63 bits
    return made;
  }();
  return proof;
}

// Both keep what could be read once: empty and 0 may be a shortage.
std::string own_machine() {
  static std::mutex mutex;
  static auto& machine = *new std::string;  // never destroyed
  std::lock_guard lock(mutex);
  if (machine.empty()) machine = read_line("/proc/sys/kernel/random/boot_id");
  return machine;
}

uint64_t own_pid_namespace() {
  static std::atomic<uint64_t> inode{0};
  uint64_t found = inode.load(std::memory_order_relaxed);
  if (found == 0) inode.store(found = inode_of("/proc/self/ns/pid"), std::memory_order_relaxed);
  return found;
}

std::string why_denied() {
  const std::string yama = read_line("/proc/sys/kernel/yama/ptrace_scope");
  if (yama == "2" || yama == "3") return "the kernel does not allow it (kernel.yama.ptrace_scope is " + yama + ")";
  return "the kernel does not allow it (another user, seccomp, or a process that is not dumpable)";
}

}  // namespace

uint64_t machine_number() {
  static std::atomic<uint64_t> number{0};
  uint64_t known = number.load(std::memory_order_relaxed);
  if (known != 0) return known;
  const std::string machine = own_machine();
  if (!machine.empty()) number.store(known = std::hash<std::string>()(machine) & kIdMask, std::memory_order_relaxed);
  return known;
}

Contact Contact::of_here(const Buffers* buffers) {
  static const bool allowed = [] {
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
    return true;
  }();
  static_cast<void>(allowed);
  Contact contact;
  contact.machine = own_machine();
  contact.pid_namespace = own_pid_namespace();
  contact.pid = getpid();
  contact.proof_address = reinterpret_cast<uint64_t>(&own_proof());
  contact.proof = own_proof();
  if (buffers != nullptr) {
    struct stat status{};
    contact.table_fd = buffers->fd();
    if (fstat(buffers->fd(), &status) == 0) contact.table_inode = status.st_ino;
  }
  return contact;
}

void Contact::prepare_for_children() {
  static_cast<void>(own_machine());
  static_cast<void>(own_pid_namespace());
}

std::shared_ptr<Neighbour> Neighbour::meet(const Contact& contact, Paths paths) {
  std::shared_ptr<Neighbour> made(new Neighbour(contact, paths));
  const Contact here = Contact::of_here(nullptr);
  if (contact.is_short() || here.is_short()) {
    made->why_no_kernel_ = made->why_no_table_ = "it could not be looked up whether its process is on this machine";
    made->for_now_ = true;
    return made;
  }
  if (contact.machine != here.machine) {
    made->why_no_kernel_ = made->why_no_table_ = "its process is on another machine";
    return made;
  }
  if (contact.pid_namespace != here.pid_namespace) {
    made->why_no_kernel_ = made->why_no_table_ = "its process is in another container (pid namespace)";
    return made;
  }
  made->pidfd_ = sys::open_pidfd(static_cast<pid_t>(contact.pid));
  if (const Status proved = made->prove(); !proved) made->why_no_kernel_ = proved.error().message;
  if (!paths.cma) made->why_no_kernel_ = "MONARCH_RDMA_PATHS leaves it out";
  if (copies_to_processes_are_forbidden()) made->may_be_written_.store(false);
  if (const Status opened = made->open_table(); !opened) {
    made->why_no_table_ = opened.error().message;
    made->for_now_ = opened.error().code == ErrorCode::kUnavailable;
  }
  return made;
}

Status Neighbour::prove() const {
  std::array<uint64_t, 2> found{};
  const Memory into(reinterpret_cast<std::byte*>(&found), sizeof found);
  const Memory there(reinterpret_cast<std::byte*>(contact_.proof_address), sizeof found);
  switch (copy_from_process(static_cast<pid_t>(contact_.pid), there, 0, into, 0, sizeof found)) {
    case CopyOutcome::kDone:
      if (found == contact_.proof) return Ok{};
      [[fallthrough]];
    case CopyOutcome::kFault:
    case CopyOutcome::kGone:
      return Error{ErrorCode::kClosed, "its process has ended"};
    default:
      return Error{ErrorCode::kUnsupported, why_denied()};
  }
}

Status Neighbour::open_table() {
  if (contact_.table_fd < 0) return Error{ErrorCode::kUnavailable, "its process has no table of buffers"};
  if (!pidfd_) return Error{ErrorCode::kUnavailable, "its process is not seen here"};
  const std::string path = "/proc/" + std::to_string(contact_.pid) + "/fd/" + std::to_string(contact_.table_fd);
  const UniqueFd fd = sys::open_file(path.c_str(), O_RDONLY);
  struct stat status{};
  if (!fd) {
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    const ErrorCode code = is_short ? ErrorCode::kUnavailable : ErrorCode::kUnsupported;
    return Error{code, std::string("its table cannot be opened: ") + strerror(errno)};
  }
  if (fstat(fd.get(), &status) != 0 || status.st_ino != contact_.table_inode) {
    return Error{ErrorCode::kClosed, "its process has ended"};
  }
  auto mapped = map_shared_memory(fd.get(), kTableBytes, PROT_READ);
  if (!mapped) return mapped.error();
  table_ = std::move(*mapped);
  madvise(table_.get(), table_.size(), MADV_DONTFORK);
  return Ok{};
}

bool Neighbour::lives() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return pidfd_ && poll(&ended, 1, 0) == 0;
}

// Not the opposite of lives(): there may be no descriptor, and a signal may come before the answer. That of a process is
// readable when its last thread has gone, so that none is in a system call any more.
bool Neighbour::has_ended() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return pidfd_ && poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
}

Refusal Neighbour::look(const BufferHandle& handle, Seen* seen) const {
  if (handle.index >= kBuffersMax || handle.generation == 0) return Refusal::kForged;
  const BufferEntry& at = entry(handle.index);
  const uint64_t state = at.state.load(std::memory_order_acquire);
  if (handle.generation > state >> 1) return Refusal::kForged;
  if (state != BufferEntry::live(handle.generation)) return Refusal::kDropped;
  const auto& key = handle.writable ? at.write_key : at.read_key;
  const BufferKey wanted{key[0].load(std::memory_order_relaxed), key[1].load(std::memory_order_relaxed)};
  const uint64_t size = at.size.load(std::memory_order_relaxed);
  *seen = {at.address.load(std::memory_order_relaxed), size, at.file_offset.load(std::memory_order_relaxed),
           at.inode.load(std::memory_order_relaxed), at.file.load(std::memory_order_relaxed),
           at.device.load(std::memory_order_relaxed) != Memory::kHost};
  if (!is_still(handle)) return Refusal::kDropped;  // what was read may belong to two buffers
  if (handle.key_made_of(wanted) != handle.key) return Refusal::kForged;
  if (handle.is_block() && seen->address == 0 && !seen->is_on_device) return Refusal::kStrides;
  return handle.lies_within(size) ? Refusal::kNone : Refusal::kBeyond;
}

bool Neighbour::is_still(const BufferHandle& handle) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return entry(handle.index).state.load(std::memory_order_relaxed) == BufferEntry::live(handle.generation);
}

std::shared_ptr<Neighbour::Map> Neighbour::map_of(const Seen& seen, std::string* why_not) {
  const auto refuse = [&](const char* why, const std::string& detail = "") {
    if (why_not != nullptr) *why_not = why + detail;
    return nullptr;
  };
  if (!paths_.shm) return refuse("MONARCH_RDMA_PATHS leaves it out");
  if (seen.file < 0) return refuse("it does not lie in shared memory of monarch.empty(), which has 64 KiB and more");
  std::shared_ptr<Map> replaced;  // unmapped without the lock
  std::lock_guard lock(mutex_);
  if (const auto found = maps_.find(seen.inode); found != maps_.end()) {
    if (!found->second->has(seen.file_offset, seen.size)) return refuse("its place in that memory is none");
    found->second->used = ++uses_;
    return found->second;
  }
  const std::string path = "/proc/" + std::to_string(contact_.pid) + "/fd/" + std::to_string(seen.file);
  const UniqueFd fd = sys::open_file(path.c_str(), O_RDONLY);
  struct stat status{};
  if (!fd || fstat(fd.get(), &status) != 0) return refuse("it cannot be mapped: ", strerror(errno));
  if (status.st_ino != seen.inode) return refuse("it has been dropped");
  auto mapped = map_shared_memory(fd.get(), seen.size, PROT_READ);
  if (!mapped) return refuse("it cannot be mapped: ", mapped.error().message);
  madvise(mapped->get(), mapped->size(), MADV_DONTFORK);
  if (maps_.size() == kMapsMax) {
    const auto oldest = std::ranges::min_element(maps_, {}, [](const auto& map) { return map.second->used; });
    replaced = std::move(oldest->second);
    maps_.erase(oldest);
  }
  auto kept = std::make_shared<Map>(std::move(*mapped));
  if (!kept->has(seen.file_offset, seen.size)) return refuse("its place in that memory is none");
  kept->used = ++uses_;
  maps_[seen.inode] = kept;
  return kept;
}

// Of what has been entered one stretch is remembered: mostly the same is read again, or what follows.
void Neighbour::Map::warm(uint64_t from, uint64_t size) {
  std::lock_guard lock(mutex_);
  const uint64_t to = from + size;
  if (from >= warm_from_ && to <= warm_to_) return;
  enter_pages(data() + from, size, /*to_write=*/false);
  const bool touches = from <= warm_to_ && to >= warm_from_;
  warm_from_ = touches ? std::min(from, warm_from_) : from;
  warm_to_ = touches ? std::max(to, warm_to_) : to;
}

bool Neighbour::forget_idle_maps() {
  std::vector<std::shared_ptr<Map>> forgotten;  // unmapped and closed without the lock
  std::vector<std::shared_ptr<Cuda::Opened>> closed;
  std::lock_guard lock(mutex_);
  for (auto at = maps_.begin(); at != maps_.end();) {
    Map& map = *at->second;
    if (map.used != map.looked_at) {
      map.looked_at = map.used;
      ++at;
    } else {
      forgotten.push_back(std::move(at->second));
      at = maps_.erase(at);
    }
  }
  for (auto at = allocations_.begin(); at != allocations_.end();) {
    Allocation& each = at->second;
    if (each.used != each.looked_at) {
      each.looked_at = each.used;
      ++at;
    } else {
      closed.push_back(std::move(each.opened));
      at = allocations_.erase(at);
    }
  }
  return !maps_.empty() || !allocations_.empty();
}

Path Neighbour::path_of(const BufferHandle& handle, std::string* why_not) {
  std::string ignored;
  std::string& why = why_not != nullptr ? *why_not : ignored;
  if (!why_no_table_.empty()) {
    why = "shm and cma: " + why_no_table_;
    return Path::kLink;
  }
  Seen seen;
  if (look(handle, &seen) != Refusal::kNone) return why_no_kernel_.empty() ? Path::kCma : Path::kLink;
  if (seen.is_on_device) {
    std::string no_memory;
    std::shared_ptr<Cuda::Opened> keeper;
    if (opened_memory(handle, seen, &keeper, &no_memory); keeper != nullptr) return Path::kCudaIpc;
    why = "shm and cma: it is memory of a device; cuda-ipc: " + no_memory;
    return Path::kLink;
  }
  if (seen.address == 0) {
    why = "shm and cma: its bytes do not lie one behind the other";
    return Path::kLink;
  }
  std::string no_map;
  if (map_of(seen, &no_map) != nullptr) return Path::kShm;
  why = "shm: " + no_map;
  if (why_no_kernel_.empty()) {
    if (!may_be_written()) why += std::string("; what is written its owner fetches: ") + why_not_written();
    return Path::kCma;
  }
  why += "; cma: " + why_no_kernel_;
  return Path::kLink;
}

Neighbour::Outcome Neighbour::read(const BufferHandle& handle, const Memory& into, uint64_t at, Clock& clock,
                                   int64_t deadline_ns, Refusal* why) {
  if (!why_no_table_.empty()) return Outcome::kGone;
  Seen seen;
  *why = look(handle, &seen);
  if (*why != Refusal::kNone) return lives() ? Outcome::kRefused : Outcome::kGone;
  if (seen.is_on_device) return read_opened(handle, seen, into, at, clock, deadline_ns, why);
  const auto map = map_of(seen);
  if (map == nullptr) {
    if (!why_no_kernel_.empty() || seen.address == 0) return Outcome::kGone;
    const Memory there = handle.memory_at(reinterpret_cast<std::byte*>(seen.address));
    if (handle.size <= kSmallMax && there.is_contiguous()) return read_small(handle, there, into, at, why);
    return read_kernel(handle, there, into, at, clock, deadline_ns, why);
  }
  // Unless most of what lies between is not wanted.
  const uint64_t reach = handle.reach();
  if (handle.size >= kWarmMin && reach / 4 <= handle.size) map->warm(seen.file_offset + handle.offset, reach);
  const Memory there = handle.memory_at(map->data() + seen.file_offset);
  for (uint64_t done = 0, size; done < handle.size; done += size) {
    if (done > 0 && clock.now_ns() >= deadline_ns) return Outcome::kDeadline;
    size = std::min(kPieceBytes, handle.size - done);
    if (!copy_memory(into, at + done, there, done, size)) return Outcome::kFault;
  }
  *why = is_still(handle) ? Refusal::kNone : Refusal::kDropped;
  if (!lives()) return Outcome::kGone;
  return *why == Refusal::kNone ? Outcome::kDone : Outcome::kRefused;
}

// ---- Memory of devices ----

bool Neighbour::wants_export(const BufferHandle& handle) const {
  Seen seen;
  if (!why_no_table_.empty() || !paths_.cuda_ipc) return false;
  if (look(handle, &seen) != Refusal::kNone || !seen.is_on_device) return false;
  std::lock_guard lock(mutex_);
  const auto found = exports_.find(handle.index);
  return found == exports_.end() || found->second.generation != handle.generation;
}

void Neighbour::note_export(const BufferHandle& handle, Result<CudaExport> said) {
  Export noted{handle.generation, {}, said ? "" : said.error().message};
  if (said) noted.memory = std::move(*said);
  std::lock_guard lock(mutex_);
  if (exports_.size() == kExportsMax) exports_.clear();  // they are asked for again
  exports_[handle.index] = std::move(noted);
}

// The next time it is asked no more.
void Neighbour::note_failure(const BufferHandle& handle, const std::string& why) {
  std::lock_guard lock(mutex_);
  const auto found = exports_.find(handle.index);
  if (found != exports_.end() && found->second.generation == handle.generation) found->second.why_not = why;
}

// All of the buffer, as long as `*keeper` is kept: null, with `*why_not`.
Memory Neighbour::opened_memory(const BufferHandle& handle, const Seen& seen, std::shared_ptr<Cuda::Opened>* keeper,
                                std::string* why_not) {
  const auto refuse = [&](const std::string& why) {
    if (why_not != nullptr) *why_not = why;
    return Memory();
  };
  if (!paths_.cuda_ipc) return refuse("MONARCH_RDMA_PATHS leaves it out");
  std::string why_no_driver;
  const Cuda* const cuda = Cuda::find(&why_no_driver);
  if (cuda == nullptr) return refuse(why_no_driver);
  CudaExport shared;
  {
    std::lock_guard lock(mutex_);
    const auto found = exports_.find(handle.index);
    const bool is_said = found != exports_.end() && found->second.generation == handle.generation;
    if (!is_said) return refuse("its owner has not said where");
    if (!found->second.why_not.empty()) return refuse(found->second.why_not);
    shared = found->second.memory;
    if (const auto open = allocations_.find(shared.handle); open != allocations_.end()) {
      open->second.used = ++uses_;
      *keeper = open->second.opened;
    }
  }
  if (shared.offset > shared.allocated || seen.size > shared.allocated - shared.offset) {
    return keeper->reset(), refuse("its place in its allocation is none");
  }
  if (*keeper == nullptr) {  // without the lock: for the driver it is the same one if others do so too
    auto opened = cuda->open(shared);
    if (!opened) return note_failure(handle, opened.error().message), refuse(opened.error().message);
    *keeper = std::move(*opened);
    std::shared_ptr<Cuda::Opened> replaced;  // closed without the lock
    std::lock_guard lock(mutex_);
    if (allocations_.size() == kMapsMax && !allocations_.contains(shared.handle)) {
      const auto oldest = std::ranges::min_element(allocations_, {}, [](const auto& each) { return each.second.used; });
      replaced = std::move(oldest->second.opened);
      allocations_.erase(oldest);
    }
    Allocation& kept = allocations_[shared.handle];
    kept.used = ++uses_;
    if (kept.opened == nullptr) kept.opened = *keeper;
  }
  return Memory((*keeper)->data() + shared.offset, seen.size).on((*keeper)->device());
}

Neighbour::Outcome Neighbour::read_opened(const BufferHandle& handle, const Seen& seen, const Memory& into, uint64_t at,
                                          Clock& clock, int64_t deadline_ns, Refusal* why) {
  std::shared_ptr<Cuda::Opened> keeper;
  const Memory whole = opened_memory(handle, seen, &keeper);
  if (keeper == nullptr) return Outcome::kGone;
  const Memory there = handle.memory_at(whole.data()).on(whole.device());
  bool copied = true;
  for (uint64_t done = 0, size; done < handle.size && copied; done += size) {
    if (done > 0 && clock.now_ns() >= deadline_ns) return Outcome::kDeadline;
    size = std::min(kPieceBytes, handle.size - done);
    copied = copy_memory(into, at + done, there, done, size);
  }
  *why = is_still(handle) ? Refusal::kNone : Refusal::kDropped;
  if (!lives()) return Outcome::kGone;
  if (*why != Refusal::kNone) return Outcome::kRefused;
  if (!copied) note_failure(handle, "it could not be copied");
  return copied ? Outcome::kDone : Outcome::kGone;
}

Neighbour::Outcome Neighbour::read_kernel(const BufferHandle& handle, const Memory& there, const Memory& into,
                                          uint64_t at, Clock& clock, int64_t deadline_ns, Refusal* why) {
  const Outcome outcome = pull(there, into, at, clock, deadline_ns);
  if (outcome == Outcome::kGone || outcome == Outcome::kDeadline) return outcome;
  *why = is_still(handle) ? Refusal::kNone : Refusal::kDropped;
  if (*why != Refusal::kNone) return Outcome::kRefused;
  if (outcome == Outcome::kFault) return prove() ? Outcome::kFault : Outcome::kGone;
  return prove() ? Outcome::kDone : Outcome::kGone;
}

// The proof and the bytes by one system call, and the bytes into their place only when that is right.
Neighbour::Outcome Neighbour::read_small(const BufferHandle& handle, const Memory& there, const Memory& into, uint64_t at,
                                         Refusal* why) {
  struct {
    std::array<uint64_t, 2> proof;
    std::byte bytes[kSmallMax];
  } found;
  auto* const proof = reinterpret_cast<std::byte*>(&found.proof);
  auto* const their_proof = reinterpret_cast<std::byte*>(contact_.proof_address);
  const Piece pieces[] = {{proof, their_proof, sizeof found.proof}, {found.bytes, there.data(), handle.size}};
  const CopyOutcome copied = copy_pieces_from_process(static_cast<pid_t>(contact_.pid), pieces);
  *why = is_still(handle) ? Refusal::kNone : Refusal::kDropped;
  if (copied == CopyOutcome::kGone || copied == CopyOutcome::kDenied) return Outcome::kGone;
  if (*why != Refusal::kNone) return Outcome::kRefused;
  if (copied == CopyOutcome::kFault) return prove() ? Outcome::kFault : Outcome::kGone;
  if (found.proof != contact_.proof) return Outcome::kGone;
  return into.scatter(at, handle.size, found.bytes) ? Outcome::kDone : Outcome::kFault;
}

Neighbour::Outcome Neighbour::pull(const Memory& there, const Memory& into, uint64_t at, Clock& clock,
                                   int64_t deadline_ns) {
  for (uint64_t done = 0, size; done < there.size(); done += size) {
    if (done > 0 && clock.now_ns() >= deadline_ns) return Outcome::kDeadline;
    if (!prove()) return Outcome::kGone;  // so that bytes of a stranger do not get there
    size = std::min(kKernelCopyMax, there.size() - done);
    switch (copy_from_process(static_cast<pid_t>(contact_.pid), there, done, into, at + done, size)) {
      case CopyOutcome::kDone:
        break;
      case CopyOutcome::kFault:
        return Outcome::kFault;
      default:
        return Outcome::kGone;
    }
  }
  return Outcome::kDone;
}

// ---- Writes ----

bool Neighbour::may_be_written() const {
  return why_no_kernel_.empty() && why_no_table_.empty() && may_be_written_.load(std::memory_order_relaxed) &&
         admitted_.load(std::memory_order_relaxed) != Admitted::kNo;
}

const char* Neighbour::why_not_written() const {
  const bool is_refused = admitted_.load(std::memory_order_relaxed) == Admitted::kNo;
  return is_refused ? "it cannot look at this process" : "this process may not do it (process_vm_writev)";
}

bool Neighbour::begin_asking() {
  auto unknown = Admitted::kUnknown;
  return admitted_.compare_exchange_strong(unknown, Admitted::kAsked);
}

bool Neighbour::is_open_here(const BufferHandle& handle) const {
  if (!may_be_written() || admitted_.load(std::memory_order_acquire) != Admitted::kYes) return false;
  return handle.writable && handle.index < kBuffersMax &&
         entry(handle.index).open.load(std::memory_order_relaxed) == handle.generation;
}

// The look at its end comes last, as a claim stays behind when its process does not end in the usual way.
bool Neighbour::may_write_to(uint64_t claim) const {
  const auto& claims = *static_cast<const WriteClaims*>(static_cast<const void*>(&entry(kBuffersMax)));
  for (const std::atomic<uint64_t>& word : claims.words) {
    if (word.load(std::memory_order_acquire) == claim) return !has_ended();
  }
  return false;
}

// As with a hazard pointer: this process says what it is about to write to, and then looks whether that is there; the
// owner takes it away, and then looks whether anybody has said so. One of them sees the other.
Neighbour::Outcome Neighbour::write(const BufferHandle& handle, const Memory& from, Buffers& own, Clock& clock,
                                    int64_t deadline_ns) {
  if (from.is_on_device() || in_small_pieces(from)) return Outcome::kGone;
  const Buffers::WriteClaim claim = own.claim(handle);
  if (!claim) return Outcome::kGone;
  Seen seen;
  if (!is_open_here(handle) || look(handle, &seen) != Refusal::kNone || seen.address == 0) return Outcome::kRefused;
  const Memory there = handle.memory_at(reinterpret_cast<std::byte*>(seen.address));
  if (in_small_pieces(there)) return Outcome::kRefused;  // the kernel takes longer for each than for its bytes
  return push(from, there, clock, deadline_ns);
}

// The proof is read before each piece. Between the two calls there is a moment in which the process could end, and its pid
// become another's that has memory at that very address: the kernel has no call that does both.
Neighbour::Outcome Neighbour::push(const Memory& from, const Memory& there, Clock& clock, int64_t deadline_ns) {
  for (uint64_t done = 0, size; done < from.size(); done += size) {
    if (clock.now_ns() >= deadline_ns) return Outcome::kDeadline;
    if (!prove()) return Outcome::kGone;
    size = std::min(kKernelCopyMax, from.size() - done);
    switch (copy_to_process(static_cast<pid_t>(contact_.pid), there, done, from, done, size)) {
      case CopyOutcome::kDone:
        break;
      case CopyOutcome::kFault:
        return prove() ? Outcome::kFault : Outcome::kGone;
      case CopyOutcome::kDenied:  // or there was no memory for it, which may be another time
        if (errno != ENOMEM) may_be_written_.store(false, std::memory_order_relaxed);
        return Outcome::kGone;
      default:
        return Outcome::kGone;
    }
  }
  return Outcome::kDone;
}

}  // namespace monarch
