// Memory that can be frozen: from then on nobody writes to it, and links on one host send what lies in it as a place in it,
// without a copy (docs/design/037). Each piece is a memfd of its own, so that it lives as long as anybody has it mapped, in
// whatever process, and nothing is left when the last of them has ended.
//
// What is frozen is known by its addresses: whatever sends bytes (links, messages within a process) asks find_frozen(),
// and nothing in between need know of it. Any thread; no lock of ours is taken while the one of the table is held.
//
// In a child of a fork() what is frozen stays shared. What is not becomes the child's own, page by page as it is written,
// and cannot be frozen there any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

inline constexpr uint64_t kFreezableBytesMax = (uint64_t{1} << 40) - 1;  // an offset in it is 40 bits

// Who has shown the memory to a peer, by a number. Told on whatever thread drops it last: never waits.
class FrozenLender {
 public:
  virtual ~FrozenLender() = default;
  virtual void frozen_ended(uint64_t id) = 0;
};

// One piece, mapped here. Links keep those of their peers, so as not to map them for each message.
class FreezableMap {
 public:
  ~FreezableMap();
  FreezableMap(const FreezableMap&) = delete;
  FreezableMap& operator=(const FreezableMap&) = delete;

  bool made_here() const { return made_here_; }
  bool frozen() const { return frozen_.load(std::memory_order_acquire); }

 private:
  friend class Freezable;
  FreezableMap(Mapping mapping, UniqueFd fd, bool made_here);

  Mapping mapping_;
  UniqueFd fd_;
  const bool made_here_;
  std::atomic<bool> frozen_;
};

// A use of it: there is one at a time, as long as anybody in this process sees the memory, or holds a message in which it
// is. Then those are told to whom it was lent.
class Freezable {
 public:
  // Zero bytes, to be written here; there is memory behind all of them, which for gigabytes takes its time. kUnavailable:
  // a shortage. `size`: 1 to kFreezableBytesMax.
  static Result<std::shared_ptr<Freezable>> make(uint64_t size);
  // Frozen memory of a peer, mapped to be read. What is here already, because it came from here or from somebody else, is
  // the same object. kMalformed: it is no memory of `fd`'s that can be relied upon. kUnavailable: a shortage.
  static Result<std::shared_ptr<FreezableMap>> adopt(UniqueFd fd);
  static std::shared_ptr<Freezable> use(const std::shared_ptr<FreezableMap>& map);
  // What these bytes lie in, all of them; null: there is nothing of this kind that is used.
  static std::shared_ptr<Freezable> find(ByteSpan bytes);
  // The same, if it is frozen. Without anything frozen in this process one relaxed load.
  static std::shared_ptr<Freezable> find_frozen(ByteSpan bytes);

  ~Freezable();
  Freezable(const Freezable&) = delete;
  Freezable& operator=(const Freezable&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(map_->mapping_.get()); }
  uint64_t size() const { return map_->mapping_.size(); }
  uint64_t id() const { return id_; }  // of this process's, never used again
  int fd() const { return map_->fd_.get(); }  // -1: there was none to spare
  bool made_here() const { return map_->made_here(); }
  bool frozen() const { return map_->frozen(); }

  // Once the caller sees to it that nobody is writing: who writes to it after this, in this process, has SIGSEGV. Nothing
  // if it is frozen already. kUnavailable: it could not be done, and it is as it was.
  Status freeze();

  // `length` bytes of it, which is frozen, from `offset` (of a page) on, mapped anew for whoever calls: writable, what is
  // written is seen there only, and takes a page of memory. Outlives this. kUnavailable: a shortage, or fd() is -1.
  Result<Mapping> map_privately(uint64_t offset, uint64_t length) const;

  // `lender` is told of the end, unless it has ended itself.
  void tell(std::weak_ptr<FrozenLender> lender);

 private:
  explicit Freezable(std::shared_ptr<FreezableMap> map);
  static std::shared_ptr<FreezableMap> enter(std::shared_ptr<FreezableMap> map);

  const uint64_t id_;
  const std::shared_ptr<FreezableMap> map_;  // shared: with the links that it came by
  std::mutex lenders_mutex_;  // a leaf
  std::vector<std::weak_ptr<FrozenLender>> lenders_;
};

}  // namespace monarch
