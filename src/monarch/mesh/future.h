// Future<T>: the outcome of a call that has been sent. get() waits for it and drives the process meanwhile; an actor's
// endpoint that returns Task may co_await it instead, which gives the thread back. A future may be dropped; the call
// goes on. Copies are cheap and refer to the same call.
#pragma once

#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/mesh/call.h"
#include "monarch/mesh/value_mesh.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

namespace internal {

// How T is read out of a decided call in which every rank has a value.
template <typename T>
struct OutcomeReader {
  static T read(const MeshCall& call) {
    return call.reducer() == Reducer::kNone ? read_rank(call, 0) : read_answer(call, 0, *call.reduced());
  }
  static T read_rank(const MeshCall& call, uint32_t rank) { return read_answer(call, rank, call.reply(rank)); }
  static T read_answer(const MeshCall& call, uint32_t rank, const Message& reply) {
    DecodingNode scope(call.node());
    Result<T> value = (reply.header.flags & kFlagPickle) != 0 ? Result<T>(Error{ErrorCode::kUnsupported, ""})
                                                              : decode<T>(reply.body);
    if (!value) call.not_decodable(rank, reply, value.error()).raise();
    return std::move(*value);
  }
};

template <>
struct OutcomeReader<void> {
  static void read(const MeshCall&) {}
};

template <typename T>
struct OutcomeReader<ValueMesh<T>> {
  static ValueMesh<T> read(const MeshCall& call) {
    std::vector<T> values;
    values.reserve(call.size());
    for (uint32_t rank = 0; rank < call.size(); ++rank) values.push_back(OutcomeReader<T>::read_rank(call, rank));
    return ValueMesh<T>(call.extent(), std::move(values));
  }
};

}  // namespace internal

template <typename T>
class Future {
 public:
  explicit Future(internal::MeshCall call) : call_(std::move(call)) {}

  // Whether get() returns at once.
  bool ready() const { return call_.decided(); }

  // Throws ActorError, SupervisionError, or TimeoutError when `timeout` is over first.
  T get() const { return get_until(kNoDeadline); }
  T get(std::chrono::nanoseconds timeout) const { return get_until(call_.deadline_in(timeout.count())); }

  // As get(), without exceptions: kBug, kClosed, kDeadline. (Result<Ok> of a Future<void>.)
  auto result(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) const {
    using R = Result<std::conditional_t<std::is_void_v<T>, Ok, T>>;
    try {
      const bool forever = timeout == std::chrono::nanoseconds::max();
      if constexpr (std::is_void_v<T>) {
        forever ? get() : get(timeout);
        return R(Ok{});
      } else {
        return R(forever ? get() : get(timeout));
      }
    } catch (const RemoteError& error) {
      return R(error.error().to_error());
    } catch (const std::exception& error) {  // a wait that cannot end well: for itself, or of too many actors at once
      return R(Error{ErrorCode::kBug, error.what()});
    }
  }

  auto operator co_await() const {
    struct Awaiter {
      internal::MeshCall call;
      bool await_ready() const { return call.decided(); }
      bool await_suspend(std::coroutine_handle<> frame) const { return call.suspend(frame); }
      T await_resume() const {
        if (auto failure = call.failure()) failure->raise();
        return internal::OutcomeReader<T>::read(call);
      }
    };
    return Awaiter{call_};
  }

 private:
  T get_until(int64_t deadline_ns) const {
    if (auto failure = call_.wait(deadline_ns)) failure->raise();
    return internal::OutcomeReader<T>::read(call_);
  }

  internal::MeshCall call_;
};

}  // namespace monarch
