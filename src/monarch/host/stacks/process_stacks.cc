#include "monarch/host/stacks/process_stacks.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

namespace monarch {

namespace {

// Finds places in files, and numbers the files.
class Places {
 public:
  explicit Places(CodeMap& code) : code_(code) {}

  // (module, offset), (0, 0) for code of no file: module 0 is "".
  std::pair<int64_t, int64_t> find(uintptr_t address) {
    const CodeMap::Mapping* mapping = code_.find(address);
    if (mapping == nullptr) return {0, 0};
    const auto [entry, added] = numbers_.emplace(mapping->path, static_cast<int64_t>(modules_.size()));
    if (added) modules_.push_back(mapping->path);
    return {entry->second, static_cast<int64_t>(address - mapping->begin + mapping->offset)};
  }
  const std::vector<std::string>& modules() const { return modules_; }

 private:
  CodeMap& code_;
  std::map<std::string, int64_t> numbers_;
  std::vector<std::string> modules_{""};
};

// Names and paths are bytes.
void write_text(ValueWriter& out, std::string_view text) { out.str(is_utf8(text) ? text : "?"); }

void write_thread(ValueWriter& out, const ThreadStack& thread, Places& places) {
  out.begin_tuple(7);
  out.integer(thread.thread);
  write_text(out, thread.name);
  write_text(out, {&thread.state, 1});
  write_text(out, thread.waits_in);
  out.boolean(thread.taken);
  write_text(out, thread.text);
  out.begin_list(static_cast<uint32_t>(2 * thread.code.size()));
  for (size_t i = 0; i < thread.code.size(); ++i) {
    // Those after the first will go on behind a call, which may be the last of its function.
    const auto [module, offset] = places.find(thread.code[i] - (i == 0 ? 0 : 1));
    out.integer(module);
    out.integer(offset);
  }
}

void write_actor(ValueWriter& out, const RunningActor& actor) {
  out.begin_tuple(5);
  out.integer(actor.thread);
  write_text(out, actor.name);
  out.integer(actor.rank);
  write_text(out, actor.doing);
  out.begin_list(static_cast<uint32_t>(actor.waiting.size()));
  for (const std::string& endpoint : actor.waiting) write_text(out, endpoint);
}

size_t bytes_of(const ThreadStack& thread) { return thread.text.size() + 16 * thread.code.size() + 128; }

size_t bytes_of(const RunningActor& actor) {
  size_t bytes = actor.name.size() + actor.doing.size() + 64;
  for (const std::string& endpoint : actor.waiting) bytes += endpoint.size() + 16;
  return bytes;
}

template <typename Item>
size_t count_that_fits(const std::vector<Item>& items, size_t bytes_max) {
  size_t bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    bytes += bytes_of(items[i]);
    if (bytes > bytes_max) return i;
  }
  return items.size();
}

}  // namespace

void CodeMap::read() {
  mappings_.clear();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping mapping;
    char executable = '-';
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*c%*c%c%*c %" SCNx64 " %*s %*s %n", &mapping.begin,
                    &mapping.end, &executable, &mapping.offset, &path_at) < 4) {
      continue;
    }
    if (executable != 'x' || path_at == 0 || line[static_cast<size_t>(path_at)] != '/') continue;
    mapping.path = line.substr(static_cast<size_t>(path_at));
    mappings_.push_back(std::move(mapping));
  }
}

const CodeMap::Mapping* CodeMap::find_known(uintptr_t address) const {
  const auto after = std::upper_bound(mappings_.begin(), mappings_.end(), address,
                                      [](uintptr_t wanted, const Mapping& mapping) { return wanted < mapping.begin; });
  if (after == mappings_.begin() || address >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

const CodeMap::Mapping* CodeMap::find(uintptr_t address) {
  const Mapping* found = find_known(address);
  if (found != nullptr || !may_read_) return found;
  read();
  may_read_ = false;
  return find_known(address);
}

void write_process_stacks(ValueWriter& out, const std::vector<ThreadStack>& threads,
                          const std::vector<RunningActor>& actors, CodeMap& code, size_t bytes_max) {
  code.begin_round();
  Places places(code);
  const size_t thread_count = count_that_fits(threads, bytes_max / 2);
  const size_t actor_count = count_that_fits(actors, bytes_max / 4);
  out.begin_tuple(4);
  out.integer(getpid());
  out.begin_list(static_cast<uint32_t>(thread_count));
  for (size_t i = 0; i < thread_count; ++i) write_thread(out, threads[i], places);
  out.begin_list(static_cast<uint32_t>(places.modules().size()));
  for (const std::string& module : places.modules()) write_text(out, module);
  out.begin_list(static_cast<uint32_t>(actor_count));
  for (size_t i = 0; i < actor_count; ++i) write_actor(out, actors[i]);
}

SilentProcess look_at_silent_process(int64_t pid) {
  ThreadStack seen = look_at_process(static_cast<pid_t>(pid));
  return {pid, std::string(1, seen.state), std::move(seen.waits_in)};
}

void write_silent_process(ValueWriter& out, const SilentProcess& seen) {
  out.begin_tuple(3);
  out.integer(seen.pid);
  write_text(out, seen.state);
  write_text(out, seen.waits_in);
}

}  // namespace monarch
