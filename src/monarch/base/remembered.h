// What is remembered of an object, for as long as what it was found out from has not changed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace monarch {

// The next state of what others remember something of: no other state of anything in this process has the same number.
inline uint64_t next_change() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// What somebody has found out of an object last, in some state of what it was found out from. It belongs to the object, not
// to what that says: a copy has none. Any thread.
template <typename T>
class Remembered {
 public:
  using Value = std::shared_ptr<const T>;  // shared: with who uses it when it is replaced

  Remembered() = default;
  Remembered(const Remembered&) {}
  Remembered& operator=(const Remembered&) {
    set(0, nullptr);
    return *this;
  }
  // nullopt: nothing in that state. What is of another one is let go of.
  std::optional<Value> get(uint64_t change) const {
    Value old;  // goes without the lock
    std::lock_guard lock(mutex_);
    if (change_ == change) return value_;
    value_.swap(old);
    change_ = 0;
    return std::nullopt;
  }
  // In whatever state; null: nothing. For tests.
  Value last() const {
    std::lock_guard lock(mutex_);
    return value_;
  }
  void set(uint64_t change, Value value) const {
    std::lock_guard lock(mutex_);
    value_.swap(value);
    change_ = change;
  }

 private:
  mutable std::mutex mutex_;  // a leaf
  mutable uint64_t change_ = 0;
  mutable Value value_;
};

}  // namespace monarch
