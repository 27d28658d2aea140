// The registry of C++ actor classes: by name, how to construct one from a message and how to call its endpoints.
// MONARCH_ACTOR fills it before main() or while a shared library is loaded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "monarch/actor/actor.h"
#include "monarch/actor/invoke.h"
#include "monarch/base/result.h"

namespace monarch {

struct ActorMethod {
  std::string name;
  // Decodes the arguments and calls. Writes the value into `result`, or leaves in `task` a coroutine, not yet begun,
  // that will (`result` then lives as long as the task). Throws BadArguments, or what user code threw.
  void (*invoke)(Actor& actor, ValueReader& args, ValueWriter& result, Task<void>& task) = nullptr;
  bool is_task = false;
};

struct ActorClass {
  std::string name;
  const std::type_info* type = nullptr;
  // Throws BadArguments, or what the constructor threw.
  std::unique_ptr<Actor> (*construct)(ValueReader& args) = nullptr;
  std::vector<ActorMethod> methods;  // by number, in the order of MONARCH_ACTOR
  bool ambiguous = false;            // two libraries register different classes under this name
};

class ActorRegistry {
 public:
  // The one of this process. A function-local static, against the rule that nothing is global: registration happens in
  // static initialisers, of the program and of every library that dlopen brings in, before anybody could pass a
  // registry along, and a name has to mean the same class for all of them.
  static ActorRegistry& instance();

  // Any thread. The same class twice (a header in two libraries) is fine; see ActorClass::ambiguous.
  void add(ActorClass actor_class);
  // Any thread. Null: there is none. Stays valid to the end of the process.
  const ActorClass* find(std::string_view name) const;
  std::vector<std::string> names() const;

  // Loads a shared library for the classes that it registers; it stays loaded. Returns the names that are new.
  Result<std::vector<std::string>> load_library(const std::string& path);

 private:
  struct Classes;
  ActorRegistry();
  Classes& classes_;
};

namespace internal {

std::vector<std::string> split_names(std::string_view names);

// The endpoints of a class, as found by argument-dependent look-up of monarch_actor_methods.
template <auto... kMethods>
struct MethodList {
  template <auto kMethod>
  static constexpr int find() {
    int number = 0, found = -1;
    ((same<kMethod, kMethods>() ? void(found = number++) : void(number++)), ...);
    return found;
  }

 private:
  template <auto kA, auto kB>
  static constexpr bool same() {
    if constexpr (std::is_same_v<decltype(kA), decltype(kB)>) {
      return kA == kB;
    } else {
      return false;
    }
  }
};

template <typename A, auto... kMethods>
bool register_actor(std::string_view name, std::string_view method_names, MethodList<kMethods...>) {
  static_assert(std::is_base_of_v<Actor, A>, "an actor class derives from monarch::Actor");
  ActorClass entry;
  entry.name = name;
  entry.type = &typeid(A);
  entry.construct = &construct_actor<A>;
  entry.methods = {ActorMethod{"", &Endpoint<kMethods>::template invoke<A>, Endpoint<kMethods>::kReturnsTask}...};
  const std::vector<std::string> names = split_names(method_names);
  for (size_t i = 0; i < names.size(); ++i) entry.methods[i].name = names[i];
  ActorRegistry::instance().add(std::move(entry));
  return true;
}

template <typename A>
using MethodsOf = decltype(monarch_actor_methods(static_cast<A*>(nullptr)));

// The number of an endpoint in messages.
template <typename A, auto kMethod>
constexpr uint32_t method_number() {
  constexpr int kNumber = MethodsOf<A>::template find<kMethod>();
  static_assert(kNumber >= 0, "this method is no endpoint: name it in MONARCH_ACTOR(Class, ...)");
  return static_cast<uint32_t>(kNumber);
}

template <typename A>
std::string class_name() {
  return monarch_actor_name(static_cast<A*>(nullptr));
}

}  // namespace internal
}  // namespace monarch

// MONARCH_ACTOR(Class, endpoint, endpoint, ...): in the namespace of the class, after it. Endpoints are numbered in
// this order; programs that talk to each other are built with the same one.
#define MONARCH_ACTOR(Class, ...)                                                                                     \
  [[maybe_unused]] inline const char* monarch_actor_name(const Class*) { return #Class; }                             \
  [[maybe_unused]] inline auto monarch_actor_methods(const Class*) {                                                  \
    return ::monarch::internal::MethodList<MONARCH_INTERNAL_EACH(Class, __VA_ARGS__)>{};                              \
  }                                                                                                                   \
  [[maybe_unused]] static const bool MONARCH_INTERNAL_JOIN(monarch_actor_registered_, __LINE__) =                     \
      ::monarch::internal::register_actor<Class>(#Class, #__VA_ARGS__,                                                \
                                                 monarch_actor_methods(static_cast<const Class*>(nullptr)));

#define MONARCH_INTERNAL_JOIN(a, b) MONARCH_INTERNAL_JOIN2(a, b)
#define MONARCH_INTERNAL_JOIN2(a, b) a##b

// &Class::a, &Class::b, ...: the usual recursion by re-scanning, enough for 64 endpoints.
#define MONARCH_INTERNAL_PARENS ()
#define MONARCH_INTERNAL_EXPAND(...) \
  MONARCH_INTERNAL_EXPAND3(MONARCH_INTERNAL_EXPAND3(MONARCH_INTERNAL_EXPAND3(MONARCH_INTERNAL_EXPAND3(__VA_ARGS__))))
#define MONARCH_INTERNAL_EXPAND3(...) \
  MONARCH_INTERNAL_EXPAND2(MONARCH_INTERNAL_EXPAND2(MONARCH_INTERNAL_EXPAND2(MONARCH_INTERNAL_EXPAND2(__VA_ARGS__))))
#define MONARCH_INTERNAL_EXPAND2(...) \
  MONARCH_INTERNAL_EXPAND1(MONARCH_INTERNAL_EXPAND1(MONARCH_INTERNAL_EXPAND1(MONARCH_INTERNAL_EXPAND1(__VA_ARGS__))))
#define MONARCH_INTERNAL_EXPAND1(...) __VA_ARGS__
#define MONARCH_INTERNAL_EACH(Class, ...) \
  __VA_OPT__(MONARCH_INTERNAL_EXPAND(MONARCH_INTERNAL_EACH_STEP(Class, __VA_ARGS__)))
#define MONARCH_INTERNAL_EACH_STEP(Class, method, ...) \
  &Class::method __VA_OPT__(, MONARCH_INTERNAL_EACH_AGAIN MONARCH_INTERNAL_PARENS(Class, __VA_ARGS__))
#define MONARCH_INTERNAL_EACH_AGAIN() MONARCH_INTERNAL_EACH_STEP
