// What a C++ caller catches, and what a call that failed says (CallError, for callers that do not want exceptions).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "monarch/base/result.h"

namespace monarch {

// Why a call has no value, by what its caller can do about it.
struct CallError {
  enum class Kind {
    kActor,        // the endpoint raised, or could not take the arguments: the actor lives
    kSupervision,  // the actor or its process has failed or was stopped
    kDeadline,     // the time that the caller allowed is over
  };
  Kind kind = Kind::kActor;
  int64_t rank = -1;    // in the mesh that was called; -1: no single one
  std::string type;     // of kActor: the type of the exception
  std::string message;  // what it says, on its own
  std::string text;     // the whole story, with mesh and rank

  Error to_error() const;            // kBug, kClosed or kDeadline, with `text`
  [[noreturn]] void raise() const;   // ActorError, SupervisionError or TimeoutError
};

class RemoteError : public std::runtime_error {
 public:
  explicit RemoteError(CallError error) : std::runtime_error(error.text), error_(std::move(error)) {}
  int64_t rank() const { return error_.rank; }
  const CallError& error() const { return error_; }

 private:
  CallError error_;
};

// User code threw in the endpoint. The actor lives on.
class ActorError : public RemoteError {
 public:
  using RemoteError::RemoteError;
  const std::string& type() const { return error().type; }
};

// The actor, or the process it ran on, has failed or was stopped.
class SupervisionError : public RemoteError {
 public:
  using RemoteError::RemoteError;
};

// The time that the caller allowed is over. The call itself goes on.
class TimeoutError : public RemoteError {
 public:
  using RemoteError::RemoteError;
};

namespace internal {

// Thrown by the invokers of the registry: the arguments do not fit. Never leaves the turn of an actor.
class BadArguments : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The exception that is being handled, in words; bytes that are not UTF-8 become '?'.
struct ExceptionText {
  std::string type;  // demangled
  std::string what;
  std::string to_string() const { return what.empty() ? type : type + ": " + what; }
};
ExceptionText current_exception_text();

std::string to_utf8(std::string text);

}  // namespace internal
}  // namespace monarch
