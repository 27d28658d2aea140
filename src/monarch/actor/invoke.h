// From a message to a C++ call: decodes the tuple of arguments into what a constructor or method takes. Templates that
// MONARCH_ACTOR instantiates, once for each class and endpoint.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "monarch/actor/actor.h"
#include "monarch/actor/errors.h"
#include "monarch/loop/task.h"
#include "monarch/wire/value_codec.h"

namespace monarch::internal {

inline constexpr size_t kConstructorArgumentsMax = 12;

[[noreturn]] void throw_bad_arguments(const ValueReader& reader);
[[noreturn]] void throw_wrong_count(const std::string& expected, uint32_t found);
// Enters the tuple of arguments; returns how many there are.
uint32_t begin_arguments(ValueReader& reader);
void end_arguments(ValueReader& reader);

// ---- Endpoints ----

template <typename Method>
struct MethodTraits;

template <typename C, typename R, typename... Ps>
struct MethodTraits<R (C::*)(Ps...)> {
  using Class = C;
  using Return = R;
  using Arguments = std::tuple<std::remove_cvref_t<Ps>...>;
  static constexpr bool kTakesReferences = (std::is_reference_v<Ps> || ...);
  static constexpr bool kTakesMutableReferences =
      ((std::is_lvalue_reference_v<Ps> && !std::is_const_v<std::remove_reference_t<Ps>>) || ...);
  static constexpr bool kDecodable = (Decodable<std::remove_cvref_t<Ps>> && ...);
};
template <typename C, typename R, typename... Ps>
struct MethodTraits<R (C::*)(Ps...) const> : MethodTraits<R (C::*)(Ps...)> {};
template <typename C, typename R, typename... Ps>
struct MethodTraits<R (C::*)(Ps...) noexcept> : MethodTraits<R (C::*)(Ps...)> {};
template <typename C, typename R, typename... Ps>
struct MethodTraits<R (C::*)(Ps...) const noexcept> : MethodTraits<R (C::*)(Ps...)> {};

template <typename R>
struct ResultOf {
  using Type = R;
};
template <typename T>
struct ResultOf<Task<T>> {
  using Type = T;
};

// What a caller gets from an endpoint: T of T and of Task<T>.
template <auto kMethod>
using EndpointResult = std::remove_cvref_t<typename ResultOf<typename MethodTraits<decltype(kMethod)>::Return>::Type>;

template <typename T>
Task<void> write_result(Task<T> task, ValueWriter& result) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    result.none();
  } else {
    T value = co_await std::move(task);
    encode(result, value);
  }
}

template <auto kMethod>
struct Endpoint {
  using Traits = MethodTraits<decltype(kMethod)>;
  using Return = typename Traits::Return;
  static constexpr bool kReturnsTask = kIsTask<Return>;
  static_assert(Traits::kDecodable, "an endpoint's parameters are values that wire/value_codec.h can decode: "
                                    "std::string instead of string_view, and a ValueCodec for types of your own");
  static_assert(!Traits::kTakesMutableReferences, "an endpoint takes values or const references");
  static_assert(!(kIsTask<Return> && Traits::kTakesReferences),
                "an endpoint that returns Task takes its parameters by value: they outlive the message");

  template <typename A>
  static void invoke(Actor& actor, ValueReader& reader, ValueWriter& result, Task<void>& task) {
    typename Traits::Arguments args;
    const uint32_t found = begin_arguments(reader);
    if (found != std::tuple_size_v<typename Traits::Arguments>) {
      throw_wrong_count(std::to_string(std::tuple_size_v<typename Traits::Arguments>), found);
    }
    const bool good = std::apply([&](auto&... items) { return (decode_into(reader, items) && ...); }, args);
    if (!good) throw_bad_arguments(reader);
    end_arguments(reader);
    std::apply(
        [&](auto&... items) {
          A& self = static_cast<A&>(actor);
          if constexpr (kIsTask<Return>) {
            task = write_result((self.*kMethod)(std::move(items)...), result);
          } else if constexpr (std::is_void_v<Return>) {
            (self.*kMethod)(std::move(items)...);
            result.none();
          } else {
            encode(result, (self.*kMethod)(std::move(items)...));
          }
        },
        args);
  }
};

// ---- Constructors ----

// C++ does not tell what a constructor takes, so each argument is one of these, which becomes whatever is wanted by
// decoding it on the spot. Braces evaluate from left to right, which is the order of the message.
struct AnyArgument {
  ValueReader* reader;

  template <Decodable T>
    requires(!std::is_base_of_v<Actor, T>)
  operator T() const {  // NOLINT: implicit by design
    T value{};
    if (!decode_into(*reader, value)) throw_bad_arguments(*reader);
    return value;
  }
};
template <size_t>
using AnyArgumentAt = AnyArgument;

template <typename A, size_t... kIndices>
constexpr bool takes(std::index_sequence<kIndices...>) {
  return requires(ValueReader* reader) { A{AnyArgumentAt<kIndices>{reader}...}; };
}

template <typename A, size_t kCount>
std::unique_ptr<Actor> construct_with(ValueReader& reader, uint32_t found, std::string accepted) {
  if constexpr (kCount > kConstructorArgumentsMax) {
    (void)reader;
    throw_wrong_count(accepted.empty() ? "other" : accepted, found);
  } else {
    if constexpr (takes<A>(std::make_index_sequence<kCount>())) {
      if (found == kCount) {
        return [&]<size_t... kIndices>(std::index_sequence<kIndices...>)->std::unique_ptr<Actor> {
          return std::unique_ptr<Actor>(new A{AnyArgumentAt<kIndices>{&reader}...});
        }
        (std::make_index_sequence<kCount>());
      }
      accepted += (accepted.empty() ? "" : " or ") + std::to_string(kCount);
    }
    return construct_with<A, kCount + 1>(reader, found, std::move(accepted));
  }
}

template <typename A>
std::unique_ptr<Actor> construct_actor(ValueReader& reader) {
  const uint32_t found = begin_arguments(reader);
  return construct_with<A, 0>(reader, found, "");
}

}  // namespace monarch::internal
