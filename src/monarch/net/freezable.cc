#include "monarch/net/freezable.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "monarch/base/check.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace monarch {

namespace {

// What the system is asked for at a time: a signal makes it begin such a step again.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;
// To give so much back takes so long that a thread of its own does it: a third of a second for a GiB.
constexpr uint64_t kLargeBytes = uint64_t{16} << 20;

struct FileId {
  dev_t device;
  ino_t inode;
  auto operator<=>(const FileId&) const = default;
};

FileId file_id(int fd) {
  struct stat status{};
  MONARCH_CHECK(fstat(fd, &status) == 0);
  return {status.st_dev, status.st_ino};
}

struct Known {
  const FreezableMap* key;  // whose entry it is
  std::weak_ptr<FreezableMap> map;
  std::weak_ptr<Freezable> use;
  int fd;
  std::byte* data;
  uint64_t size;
  bool frozen;
  FileId file;
};

// Of this process. Never destroyed: memory may be dropped by whatever ends last.
struct Table {
  std::mutex mutex;  // a leaf; held over a fork()
  std::map<const std::byte*, Known> by_address;
  std::map<FileId, const std::byte*> by_file;
  std::atomic<uint64_t> frozen{0};  // how many of them are

  // With the mutex held. Null: none.
  Known* find(ByteSpan bytes) {
    auto after = by_address.upper_bound(bytes.data());
    if (after == by_address.begin()) return nullptr;
    Known& known = std::prev(after)->second;
    const auto offset = static_cast<uint64_t>(bytes.data() - known.data);
    return offset <= known.size && bytes.size() <= known.size - offset ? &known : nullptr;
  }
  // With the mutex held.
  void forget(const Known& known) {
    if (known.frozen) frozen.fetch_sub(1, std::memory_order_relaxed);
    if (auto at = by_file.find(known.file); at != by_file.end() && at->second == known.data) by_file.erase(at);
    by_address.erase(known.data);
  }
};

Table& table() {
  static Table& made = *new Table;
  return made;
}

// What is not frozen: the child's writes must not be its parent's.
void own_what_is_open() {
  std::erase_if(table().by_address, [](const auto& entry) {
    const Known& known = entry.second;
    if (known.frozen) return false;
    if (sys::map_over(known.data, known.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, known.fd) ==
        MAP_FAILED) {
      mprotect(known.data, known.size, PROT_READ);
    }
    table().by_file.erase(known.file);
    return true;
  });
}

void before_fork() {
  if (!in_fork_to_exec()) table().mutex.lock();
}
void after_fork_in_parent() {
  if (!in_fork_to_exec()) table().mutex.unlock();
}
void after_fork_in_child() {
  if (in_fork_to_exec()) return;
  own_what_is_open();
  table().mutex.unlock();
}

void watch_forks_once() {
  static const bool watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  MONARCH_CHECK(watched);
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct GivenUp {
  Mapping mapping;
  UniqueFd fd;
};

// Not on the thread that dropped it, which may be the reactor's, if that can be had otherwise.
void give_up(Mapping mapping, UniqueFd fd) {
  if (mapping.size() < kLargeBytes || in_forked_child()) return;
  auto given = std::make_unique<GivenUp>(GivenUp{std::move(mapping), std::move(fd)});
  pthread_t thread;
  const bool started = sys::start_thread(
      &thread,
      [](void* what) -> void* {
        delete static_cast<GivenUp*>(what);
        return nullptr;
      },
      given.get());
  if (!started) return;
  given.release();
  pthread_detach(thread);
}

}  // namespace

FreezableMap::FreezableMap(Mapping mapping, UniqueFd fd, bool made_here)
    : mapping_(std::move(mapping)), fd_(std::move(fd)), made_here_(made_here), frozen_(!made_here) {}

FreezableMap::~FreezableMap() {
  {
    std::lock_guard lock(table().mutex);
    auto at = table().by_address.find(static_cast<std::byte*>(mapping_.get()));
    if (at != table().by_address.end() && at->second.key == this) table().forget(at->second);
  }
  give_up(std::move(mapping_), std::move(fd_));
}

Freezable::Freezable(std::shared_ptr<FreezableMap> map) : id_(next_id()), map_(std::move(map)) {}

Freezable::~Freezable() {
  if (in_forked_child()) return;
  for (const auto& each : lenders_) {
    if (auto lender = each.lock()) lender->frozen_ended(id_);
  }
}

// Whoever is in the table first stays there: the same file may be entered by two threads at once.
std::shared_ptr<FreezableMap> Freezable::enter(std::shared_ptr<FreezableMap> map) {
  watch_forks_once();
  const FileId file = file_id(map->fd_.get());
  if (!sys::leaves_descriptors(map->fd_.get()) && map->frozen()) map->fd_.reset();  // it is copied when it is sent on
  auto* const data = static_cast<std::byte*>(map->mapping_.get());
  std::lock_guard lock(table().mutex);
  if (auto at = table().by_file.find(file); at != table().by_file.end()) {
    if (auto other = table().by_address.at(at->second).map.lock()) return other;
  }
  table().by_file[file] = data;
  table().by_address[data] = {map.get(), map, {}, map->fd_.get(), data, map->mapping_.size(), map->frozen(), file};
  if (map->frozen()) table().frozen.fetch_add(1, std::memory_order_relaxed);
  return map;
}

std::shared_ptr<Freezable> Freezable::use(const std::shared_ptr<FreezableMap>& map) {
  std::lock_guard lock(table().mutex);
  auto at = table().by_address.find(static_cast<std::byte*>(map->mapping_.get()));
  const bool known = at != table().by_address.end() && at->second.key == map.get();
  if (known) {
    if (auto used = at->second.use.lock()) return used;
  }
  std::shared_ptr<Freezable> use(new Freezable(map));  // shared: whoever sees it or sends what lies in it
  if (known) at->second.use = use;
  return use;
}

Result<std::shared_ptr<Freezable>> Freezable::make(uint64_t size) {
  MONARCH_CHECK(size >= 1 && size <= kFreezableBytesMax);
  UniqueFd fd = sys::make_memfd("monarch-frozen", MFD_ALLOW_SEALING);
  if (!fd || sys::truncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return sys::shortage_error("make memory to be frozen");
  }
  for (uint64_t at = 0; at < size; at += kStepBytes) {
    if (sys::allocate(fd.get(), at, std::min(kStepBytes, size - at)) != 0) {
      return sys::shortage_error(("get " + std::to_string(size) + " bytes of shared memory").c_str());
    }
  }
  auto mapping = map_shared_memory(fd.get(), size);
  if (!mapping) return mapping.error();
  enter_pages(mapping->get(), size, /*to_write=*/true);
  // shared: its uses
  return use(enter(std::shared_ptr<FreezableMap>(new FreezableMap(std::move(*mapping), std::move(fd), true))));
}

Result<std::shared_ptr<FreezableMap>> Freezable::adopt(UniqueFd fd) {
  auto mapping = map_shared_memory(fd.get(), 0, PROT_READ);
  if (!mapping) return mapping.error();
  if (mapping->size() > kFreezableBytesMax) return Error{ErrorCode::kMalformed, "frozen memory of a peer is too large"};
  // shared: its uses, and the links that it comes by
  auto known = enter(std::shared_ptr<FreezableMap>(new FreezableMap(std::move(*mapping), std::move(fd), false)));
  if (!known->frozen()) return Error{ErrorCode::kMalformed, "a peer has memory that was not frozen"};
  return known;
}

std::shared_ptr<Freezable> Freezable::find(ByteSpan bytes) {
  std::lock_guard lock(table().mutex);
  const Known* const known = table().find(bytes);
  return known == nullptr ? nullptr : known->use.lock();
}

std::shared_ptr<Freezable> Freezable::find_frozen(ByteSpan bytes) {
  if (table().frozen.load(std::memory_order_relaxed) == 0 || bytes.empty()) return nullptr;
  auto memory = find(bytes);
  return memory && memory->frozen() ? memory : nullptr;
}

Status Freezable::freeze() {
  std::lock_guard lock(table().mutex);
  auto at = table().by_address.find(data());
  if (at == table().by_address.end() || at->second.key != map_.get()) {
    return Error{ErrorCode::kUnavailable, "a forked child cannot freeze the memory of its parent"};
  }
  Known& known = at->second;
  if (known.frozen) return Ok{};
  // Nobody maps it anew to write to it, and what has been mapped here becomes read-only. A kernel before 5.1 has no such
  // seal: then only the peers' own maps see to that they do not write.
  if (fcntl(fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL) {
    return sys::shortage_error("seal frozen memory");
  }
  if (mprotect(data(), size(), PROT_READ) != 0) return sys::shortage_error("freeze memory");
  known.frozen = true;
  map_->frozen_.store(true, std::memory_order_release);
  table().frozen.fetch_add(1, std::memory_order_relaxed);
  return Ok{};
}

Result<Mapping> Freezable::map_privately(uint64_t offset, uint64_t length) const {
  MONARCH_CHECK(frozen() && offset < size() && length <= size() - offset);
  void* const memory = sys::map(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd(), offset);
  if (memory == MAP_FAILED) return sys::shortage_error("map frozen memory once more");
  return Mapping(memory, length);
}

void Freezable::tell(std::weak_ptr<FrozenLender> lender) {
  std::lock_guard lock(lenders_mutex_);
  std::erase_if(lenders_, [](const auto& each) { return each.expired(); });
  lenders_.push_back(std::move(lender));
}

}  // namespace monarch
