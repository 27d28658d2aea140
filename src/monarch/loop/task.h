// Task<T>: a lazy coroutine. It begins when it is awaited (or started by its owner) and carries a value or an exception
// of user code to its awaiter. The Task object owns the frame: destroying it destroys whatever is suspended inside, so
// nothing is detached and nothing leaks. Not thread-safe: a task moves between threads only while it is suspended, and
// whoever resumes it waits until the call that ran it before has returned (as a cell does).
//
// A task that suspends hands control to its awaiter by symmetric transfer when it ends. One that ends without
// suspending just returns into its awaiter: a transfer would need a tail call, which compilers only make when they
// optimise and never under sanitizers, and a loop over such tasks would eat the stack.
//
//   Task<int> twice(int x) { co_return 2 * co_await once(x); }
//
// Pass arguments by value: a task may outlive the expression that made it.
#pragma once

#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "monarch/base/check.h"

namespace monarch {

template <typename T>
class Task;

namespace internal {

class TaskPromiseBase {
 public:
  std::suspend_always initial_suspend() noexcept { return {}; }

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> done) noexcept {
      std::coroutine_handle<> next = done.promise().continuation_;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }

  void unhandled_exception() noexcept { exception_ = std::current_exception(); }
  void set_continuation(std::coroutine_handle<> next) { continuation_ = next; }

 protected:
  void rethrow() {
    if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
  }

 private:
  std::coroutine_handle<> continuation_;
  std::exception_ptr exception_;
};

template <typename T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object();
  template <typename U>
    requires std::convertible_to<U&&, T>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T take() {
    rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() {}
  void take() { rethrow(); }
};

}  // namespace internal

template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = internal::TaskPromise<T>;
  using value_type = T;

  Task() = default;  // no coroutine
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      frame_ = std::exchange(other.frame_, nullptr);
    }
    return *this;
  }
  ~Task() { reset(); }

  explicit operator bool() const { return static_cast<bool>(frame_); }

  // For an owner that is no coroutine itself: begin, look, and take the outcome (throws what the coroutine threw).
  // start() returns at the first suspension of the task, or of a task that it awaits.
  void start() {
    MONARCH_CHECK(frame_ && !frame_.done());
    frame_.resume();
  }
  bool done() const { return frame_.done(); }
  T take() { return frame_.promise().take(); }

  auto operator co_await() && noexcept {
    struct Awaiter {
      std::coroutine_handle<promise_type> frame;
      bool await_ready() noexcept { return false; }
      bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
        frame.resume();
        if (frame.done()) return false;
        frame.promise().set_continuation(awaiting);
        return true;
      }
      T await_resume() { return frame.promise().take(); }
    };
    MONARCH_CHECK(frame_);
    return Awaiter{frame_};
  }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  void reset() {
    if (frame_) std::exchange(frame_, nullptr).destroy();
  }

  std::coroutine_handle<promise_type> frame_;
};

namespace internal {

template <typename T>
Task<T> TaskPromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<TaskPromise<T>>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskPromise<void>>::from_promise(*this));
}

template <typename T>
inline constexpr bool kIsTask = false;
template <typename T>
inline constexpr bool kIsTask<Task<T>> = true;

}  // namespace internal
}  // namespace monarch
