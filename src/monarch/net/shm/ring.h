// A byte ring in shared memory, one producer and one consumer process. The stream in it is a sequence of records.
//
// The consumer does not trust it: every index read from the shared page is bounded before use, and bytes are copied out
// before they are decoded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "monarch/base/check.h"
#include "monarch/loop/bell.h"

namespace monarch {

// 256 KiB stays in the L2 cache of the machines this was measured on; larger payloads go through the arena.
inline constexpr uint64_t kRingBytes = 256 * 1024;
inline constexpr uint32_t kNoBellIndex = UINT32_MAX;

struct RingPage {
  alignas(64) std::atomic<uint64_t> head;        // bytes ever written; the producer's
  alignas(64) std::atomic<uint64_t> tail;        // bytes ever taken; the consumer's
  alignas(64) std::atomic<uint32_t> starved;     // the producer waits for room
  std::atomic<uint32_t> bell_index_plus_1;       // the bit of the consumer's bell for this ring; 0: not attached yet
  alignas(64) std::byte bytes[kRingBytes];
};

// What two processes share: a ring each way. Side 0 made it.
struct RingPair {
  RingPage rings[2];
};

class RingProducer {
 public:
  explicit RingProducer(RingPage& page) : page_(page) {}

  // Bytes that can be written now.
  uint64_t room() {
    const uint64_t used = head_ - page_.tail.load(std::memory_order_acquire);
    return used <= kRingBytes ? kRingBytes - used : 0;  // a lying consumer gets nothing
  }
  // Copies without publishing; the caller has checked room().
  void put(const void* data, uint64_t size) {
    const uint64_t at = head_ % kRingBytes;
    const uint64_t first = std::min(size, kRingBytes - at);
    std::memcpy(page_.bytes + at, data, first);
    if (first < size) std::memcpy(page_.bytes, static_cast<const std::byte*>(data) + first, size - first);
    head_ += size;
  }
  void publish() { page_.head.store(head_, std::memory_order_release); }

  // How many of the bytes that have been put the consumer has taken.
  uint64_t taken() const {
    const uint64_t tail = page_.tail.load(std::memory_order_acquire);
    return head_ - tail <= kRingBytes ? tail : head_ - kRingBytes;  // of a lying one as little as can be
  }
  // Whether the consumer has taken all of it.
  bool all_taken() const { return page_.tail.load(std::memory_order_acquire) == head_; }

  // Says that room is wanted; true if there is some already (then nothing will be rung).
  bool ask_for_room() {
    page_.starved.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return room() > 0;
  }
  // The bell index of the consumer, or kNoBellIndex while it has not attached (it will look by itself when it does).
  uint32_t consumer_bell() const {
    const uint32_t value = page_.bell_index_plus_1.load(std::memory_order_seq_cst);
    return value >= 1 && value <= kBellRings ? value - 1 : kNoBellIndex;
  }

 private:
  RingPage& page_;
  uint64_t head_ = 0;
};

class RingConsumer {
 public:
  explicit RingConsumer(RingPage& page) : page_(page) {}

  void attach(uint32_t bell_index) { page_.bell_index_plus_1.store(bell_index + 1, std::memory_order_seq_cst); }

  // Bytes that can be read now; more than kRingBytes means that the producer lies.
  uint64_t available() const { return page_.head.load(std::memory_order_acquire) - tail_; }
  // Copies out without giving the room back; the caller has checked available().
  void take(void* out, uint64_t size) {
    const uint64_t at = tail_ % kRingBytes;
    const uint64_t first = std::min(size, kRingBytes - at);
    std::memcpy(out, page_.bytes + at, first);
    if (first < size) std::memcpy(static_cast<std::byte*>(out) + first, page_.bytes, size - first);
    tail_ += size;
  }
  // Gives the room back. True: the producer waits for it and must be rung.
  bool give_back() {
    page_.tail.store(tail_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return page_.starved.load(std::memory_order_relaxed) != 0 &&
           page_.starved.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  RingPage& page_;
  uint64_t tail_ = 0;
};

}  // namespace monarch
