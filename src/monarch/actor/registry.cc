#include "monarch/actor/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

namespace monarch {

struct ActorRegistry::Classes {
  std::mutex mutex;
  std::map<std::string, ActorClass, std::less<>> by_name;  // nodes never move
};

ActorRegistry::ActorRegistry() : classes_(*new Classes) {}

ActorRegistry& ActorRegistry::instance() {
  static ActorRegistry& registry = *new ActorRegistry;  // never destroyed: actors may be called while statics end
  return registry;
}

void ActorRegistry::add(ActorClass actor_class) {
  std::lock_guard lock(classes_.mutex);
  auto [at, is_new] = classes_.by_name.try_emplace(actor_class.name, actor_class);
  if (!is_new && *at->second.type != *actor_class.type) at->second.ambiguous = true;
}

const ActorClass* ActorRegistry::find(std::string_view name) const {
  std::lock_guard lock(classes_.mutex);
  auto found = classes_.by_name.find(name);
  return found == classes_.by_name.end() ? nullptr : &found->second;
}

std::vector<std::string> ActorRegistry::names() const {
  std::lock_guard lock(classes_.mutex);
  std::vector<std::string> names;
  for (const auto& [name, entry] : classes_.by_name) names.push_back(name);
  return names;
}

Result<std::vector<std::string>> ActorRegistry::load_library(const std::string& path) {
  const std::vector<std::string> before = names();
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* why = dlerror();
    return Error{ErrorCode::kUnsupported, "cannot load the library " + path + ": " + (why == nullptr ? "" : why)};
  }
  std::vector<std::string> added;
  for (std::string& name : names()) {
    if (!std::binary_search(before.begin(), before.end(), name)) added.push_back(std::move(name));
  }
  return added;
}

namespace internal {

std::vector<std::string> split_names(std::string_view names) {
  std::vector<std::string> result;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, comma);
    names.remove_prefix(std::min(comma + 1, names.size()));
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    result.emplace_back(name);
  }
  return result;
}

}  // namespace internal
}  // namespace monarch
