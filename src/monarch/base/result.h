// Result<T>: a value or an Error. Expected failures are values; broken invariants CHECK; no C++ exception crosses a
// thread, loop or coroutine boundary.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "monarch/base/check.h"

namespace monarch {

// Grouped by what a caller can do about it.
enum class ErrorCode {
  kBug,          // the program is wrong: fix the call
  kUnavailable,  // not now: may work later
  kClosed,       // the peer, actor or process is gone: get a new one
  kUnsupported,  // will never work here
  kMalformed,    // bytes that do not decode: drop their sender
  kDeadline,     // the time that the caller allowed is over
  kRefused,      // the other side has answered, and what is wanted is not there: do not ask again
};

struct Error {
  ErrorCode code = ErrorCode::kBug;
  std::string message;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}       // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { MONARCH_CHECK(ok()); return std::get<0>(state_); }
  const T& value() const& { MONARCH_CHECK(ok()); return std::get<0>(state_); }
  T&& value() && { MONARCH_CHECK(ok()); return std::get<0>(std::move(state_)); }
  const Error& error() const { MONARCH_CHECK(!ok()); return std::get<1>(state_); }

  T* operator->() { return &value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<T, Error> state_;
};

// Result of something that only succeeds or fails.
struct Ok {};
using Status = Result<Ok>;

}  // namespace monarch
