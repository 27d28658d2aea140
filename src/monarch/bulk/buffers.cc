#include "monarch/bulk/buffers.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "monarch/base/random.h"

namespace monarch {

namespace {

BufferKey load(const std::atomic<uint64_t> (&key)[2]) {
  return {key[0].load(std::memory_order_relaxed), key[1].load(std::memory_order_relaxed)};
}

BufferKey make_key(std::atomic<uint64_t> (&into)[2]) {
  BufferKey key;
  fill_random(&key, sizeof key);
  key = {key.low & kIdMask, key.high & kIdMask};  // integers of messages have 63 bits
  into[0].store(key.low, std::memory_order_relaxed);
  into[1].store(key.high, std::memory_order_relaxed);
  return key;
}

uint64_t inode_of(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

Result<std::unique_ptr<Buffers>> Buffers::make() {
  // Without memory behind it where nothing has been written.
  auto fd = make_shared_memory("monarch-buffers", kTableBytes);
  if (!fd) return fd.error();
  auto mapping = map_shared_memory(fd->get(), kTableBytes);
  if (!mapping) return mapping.error();
  madvise(mapping->get(), mapping->size(), MADV_DONTFORK);
  return std::unique_ptr<Buffers>(new Buffers(std::move(*fd), std::move(*mapping)));
}

Result<BufferHandle> Buffers::add(NodeId owner, Memory memory, bool writable, std::shared_ptr<void> keeper) {
  std::shared_ptr<Freezable> freezable;
  if (memory.is_contiguous()) freezable = Freezable::find({memory.data(), memory.size()});
  auto buffer = std::make_shared<Buffer>(std::move(memory), writable, std::move(keeper), std::move(freezable));
  std::lock_guard lock(mutex_);
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    if (buffers_.size() == kBuffersMax) {
      return Error{ErrorCode::kUnavailable, "this process has " + std::to_string(kBuffersMax) + " buffers: drop some"};
    }
    index = static_cast<uint32_t>(buffers_.size());
    buffers_.emplace_back();
  }
  owner_ = owner;
  BufferEntry& at = entry(index);
  const uint64_t generation = (at.state.load(std::memory_order_relaxed) >> 1) + 1;
  const Memory& bytes = buffer->memory;
  std::atomic_thread_fence(std::memory_order_release);  // whoever sees some of this sees that the last one is not live
  at.address.store(bytes.is_contiguous() ? reinterpret_cast<uint64_t>(bytes.data()) : 0, std::memory_order_relaxed);
  at.size.store(bytes.size(), std::memory_order_relaxed);
  at.device.store(bytes.device(), std::memory_order_relaxed);
  const BufferKey read = make_key(at.read_key), write = make_key(at.write_key);
  const Freezable* file = buffer->freezable();
  at.file.store(file != nullptr ? file->fd() : -1, std::memory_order_relaxed);
  if (file != nullptr && file->fd() >= 0) {
    at.inode.store(inode_of(file->fd()), std::memory_order_relaxed);
    at.file_offset.store(static_cast<uint64_t>(bytes.data() - file->data()), std::memory_order_relaxed);
  }
  // What can be frozen is to hold still from one moment on, and the kernel goes on with what it has begun. Memory with
  // strides has no address.
  const bool is_open = !closed_ && writable && bytes.is_contiguous() && file == nullptr;
  at.open.store(is_open ? generation : 0, std::memory_order_relaxed);
  at.state.store(BufferEntry::live(generation), std::memory_order_release);
  const uint64_t size = bytes.size();
  buffers_[index] = std::move(buffer);
  return BufferHandle{owner, index, generation, writable ? write : read, writable, 0, size};
}

std::optional<BufferHandle> Buffers::read_only(const BufferHandle& handle) const {
  std::lock_guard lock(mutex_);
  if (check(handle, false) != Refusal::kNone) return std::nullopt;
  BufferHandle made = handle;
  made.key = *handle.key_made_of(load(entry(handle.index).read_key));
  made.writable = false;
  return made;
}

// With the mutex held.
Refusal Buffers::check(const BufferHandle& handle, bool to_write) const {
  if (handle.index >= buffers_.size()) return Refusal::kForged;
  const BufferEntry& at = entry(handle.index);
  const uint64_t state = at.state.load(std::memory_order_relaxed);
  if (handle.generation > state >> 1 || handle.generation == 0) return Refusal::kForged;
  if (state != BufferEntry::live(handle.generation)) return Refusal::kDropped;
  if (handle.key_made_of(load(handle.writable ? at.write_key : at.read_key)) != handle.key) return Refusal::kForged;
  if (to_write && !(handle.writable && buffers_[handle.index]->writable)) return Refusal::kReadOnly;
  const Memory& memory = buffers_[handle.index]->memory;
  if (handle.is_block() && !memory.in_one_piece()) return Refusal::kStrides;
  return handle.lies_within(memory.size()) ? Refusal::kNone : Refusal::kBeyond;
}

std::shared_ptr<const Buffer> Buffers::find(const BufferHandle& handle, bool to_write, Refusal* why) const {
  std::lock_guard lock(mutex_);
  *why = check(handle, to_write);
  return *why == Refusal::kNone ? buffers_[handle.index] : nullptr;
}

Refusal Buffers::drop(const BufferHandle& handle, bool by_owner, std::function<void()> done,
                      std::shared_ptr<const Buffer>* dropped) {
  std::shared_ptr<Buffer> buffer;  // goes without the lock
  std::lock_guard lock(mutex_);
  const Refusal why = check(handle, false);
  std::erase_if(dropped_, [](const Dropped& each) { return each.buffer.expired(); });
  if (why == Refusal::kDropped) {
    for (const Dropped& each : dropped_) {
      if (each.index != handle.index || each.generation != handle.generation) continue;
      if ((buffer = each.buffer.lock()) == nullptr) continue;
      buffer->on_gone_.push_back(std::move(done));
      return Refusal::kNone;
    }
  }
  if (why == Refusal::kForged || why == Refusal::kDropped) return why;
  if (!handle.writable && !by_owner) return Refusal::kReadOnly;
  entry(handle.index).state.store(handle.generation << 1, std::memory_order_release);
  // Whoever sees what its memory becomes sees this; and either a writer does, or its claim is seen here from now on.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  buffer = std::move(buffers_[handle.index]);
  buffer->on_gone_.push_back(std::move(done));
  dropped_.push_back({handle.index, handle.generation, buffer});
  if (dropped != nullptr) *dropped = buffer;
  free_.push_back(handle.index);
  return Refusal::kNone;
}

std::vector<std::pair<uint64_t, std::shared_ptr<const Buffer>>> Buffers::close_to_writers() {
  std::vector<std::pair<uint64_t, std::shared_ptr<const Buffer>>> all;
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (uint32_t index = 0; index < buffers_.size(); ++index) {
    if (buffers_[index] == nullptr) continue;
    BufferEntry& at = entry(index);
    if (at.open.exchange(0, std::memory_order_relaxed) == 0) continue;
    BufferHandle handle;
    handle.index = index;
    handle.generation = at.state.load(std::memory_order_relaxed) >> 1;
    handle.owner = owner_;
    all.emplace_back(claim_of(handle), buffers_[index]);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as in drop()
  return all;
}

uint64_t claim_of(const BufferHandle& handle) {
  uint64_t mixed = handle.owner;
  for (const uint64_t part : {handle.generation, uint64_t{handle.index}}) {
    mixed = (mixed ^ part) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 29;
  }
  return mixed | 1;
}

Buffers::WriteClaim Buffers::claim(const BufferHandle& handle) {
  for (std::atomic<uint64_t>& word : claims().words) {
    uint64_t none = 0;
    if (word.load(std::memory_order_relaxed) != 0) continue;
    if (!word.compare_exchange_strong(none, claim_of(handle), std::memory_order_relaxed)) continue;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before it looks whether the buffer is open
    return WriteClaim(&word);
  }
  return WriteClaim(nullptr);
}

size_t Buffers::size() const {
  std::lock_guard lock(mutex_);
  return buffers_.size() - free_.size();
}

}  // namespace monarch
