// The buffers that this process offers to others: a table in shared memory, which processes of this machine look at before
// and after they copy (neighbour.h), and behind it what only this process knows.
//
// A place in the table is taken again and again; its generation says how often. So a handle of a buffer that has been
// dropped is known for what it is, whatever lies at its address now.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/bulk/handle.h"
#include "monarch/bulk/memory.h"
#include "monarch/net/freezable.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

// A place in the table, as others see it. Written by the owner only, while the buffer is not live.
struct alignas(128) BufferEntry {
  std::atomic<uint64_t> state{0};     // generation << 1 | live
  // 0: its bytes do not lie one behind the other, or on a device, and the owner is asked.
  std::atomic<uint64_t> address{0};
  std::atomic<uint64_t> size{0};
  std::atomic<uint64_t> read_key[2]{};
  std::atomic<uint64_t> write_key[2]{};
  // Where the bytes lie, if that is memory which others can map (Freezable): the owner's descriptor of it (-1: none), what
  // file that is, and where in it.
  std::atomic<int64_t> file{-1};
  std::atomic<uint64_t> inode{0};
  std::atomic<uint64_t> file_offset{0};
  std::atomic<int64_t> device{Memory::kHost};  // as its owner counts them
  std::atomic<uint64_t> open{0};  // its generation: neighbours that the owner has admitted write to it themselves

  static constexpr uint64_t live(uint64_t generation) { return generation << 1 | 1; }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(BufferEntry) == 128);

inline constexpr uint32_t kBuffersMax = 1 << 20;

// Behind the places of the table: what its process is writing to itself in the memory of neighbours, for their owners to
// look at (writers.h). A word for each write, the claim() of its buffer; 0: none.
struct alignas(128) WriteClaims {
  static constexpr size_t kMax = 16;  // at a time
  std::atomic<uint64_t> words[kMax]{};
};
static_assert(sizeof(WriteClaims) == 128);

inline constexpr size_t kTableBytes = sizeof(BufferEntry) * kBuffersMax + sizeof(WriteClaims);

// What a writer claims, and the owner looks for. Two buffers that have the same wait for each other's writers.
uint64_t claim_of(const BufferHandle& handle);

class Buffer {
 public:
  Buffer(Memory of, bool is_writable, std::shared_ptr<void> keeper, std::shared_ptr<Freezable> freezable)
      : memory(std::move(of)), writable(is_writable), keeper_(std::move(keeper)), freezable_(std::move(freezable)) {}
  ~Buffer() {
    keeper_.reset();
    for (const std::function<void()>& done : on_gone_) done();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const Memory memory;
  const bool writable;
  // What a handle means, and where that begins in it. Of a block the memory lies in one piece.
  struct Part {
    Memory memory;
    uint64_t at = 0;
  };
  Part part(const BufferHandle& handle) const {
    if (!handle.is_block()) return {memory, handle.offset};
    return {handle.memory_at(memory.data()).on(memory.device()), 0};
  }
  const Freezable* freezable() const { return freezable_.get(); }

 private:
  friend class Buffers;
  std::shared_ptr<void> keeper_;            // of its memory
  const std::shared_ptr<Freezable> freezable_;  // where it lies, or null
  std::vector<std::function<void()>> on_gone_;
};

// Why a handle is of no use here.
enum class Refusal : uint8_t {
  kNone,
  kDropped,   // the buffer is no more
  kForged,    // there never was such a handle
  kReadOnly,  // the buffer, or the handle, is not to be written
  kBeyond,    // it reaches past the end of the buffer
  kStrides,   // a block of memory that does not lie in one piece
};

// Any thread.
class Buffers {
 public:
  // kUnavailable: a shortage.
  static Result<std::unique_ptr<Buffers>> make();

  // `keeper` keeps the memory, and is dropped with the buffer, on whatever thread. The handle is for all of it, with the
  // key to write if it is writable. kUnavailable: there are kBuffersMax.
  Result<BufferHandle> add(NodeId owner, Memory memory, bool writable, std::shared_ptr<void> keeper);
  // The same part, to be read only; of a buffer of this process's.
  std::optional<BufferHandle> read_only(const BufferHandle& handle) const;

  // Who holds it keeps the memory in its place. Null, with `*why`.
  std::shared_ptr<const Buffer> find(const BufferHandle& handle, bool to_write, Refusal* why) const;

  // From now on nobody finds it; `done` is called when nobody here uses it any more, perhaps at once. Others need the key
  // to write. `*dropped`: as one that uses it; null where it had been dropped before, and is waited for as well.
  Refusal drop(const BufferHandle& handle, bool by_owner, std::function<void()> done,
               std::shared_ptr<const Buffer>* dropped = nullptr);

  // From now on no neighbour begins to write to any of them itself. Those that there are.
  std::vector<std::pair<uint64_t, std::shared_ptr<const Buffer>>> close_to_writers();

  // One write of this process to a neighbour's memory. Whoever sees afterwards that the buffer is open may write to it
  // until this is over: its owner looks for claims after it has closed it.
  class WriteClaim {
   public:
    explicit WriteClaim(std::atomic<uint64_t>* word) : word_(word) {}
    WriteClaim(WriteClaim&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
    WriteClaim& operator=(WriteClaim&&) = delete;
    ~WriteClaim() {
      if (word_ != nullptr) word_->store(0, std::memory_order_release);
    }
    explicit operator bool() const { return word_ != nullptr; }

   private:
    std::atomic<uint64_t>* word_;
  };
  // None: there are WriteClaims::kMax. This outlives it.
  WriteClaim claim(const BufferHandle& handle);

  int fd() const { return fd_.get(); }  // of the table
  size_t size() const;

 private:
  Buffers(UniqueFd fd, Mapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  BufferEntry& entry(uint32_t index) const { return static_cast<BufferEntry*>(mapping_.get())[index]; }
  WriteClaims& claims() const { return *static_cast<WriteClaims*>(static_cast<void*>(&entry(kBuffersMax))); }
  Refusal check(const BufferHandle& handle, bool to_write) const;

  const UniqueFd fd_;
  const Mapping mapping_;
  mutable std::mutex mutex_;  // a leaf
  std::vector<std::shared_ptr<Buffer>> buffers_;  // shared: with operations that are under way
  std::vector<uint32_t> free_;
  struct Dropped {
    uint32_t index;
    uint64_t generation;
    std::weak_ptr<Buffer> buffer;
  };
  std::vector<Dropped> dropped_;  // and perhaps in use
  NodeId owner_ = 0;    // of all of them
  bool closed_ = false;  // to writers
};

}  // namespace monarch
