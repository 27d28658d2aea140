#include "monarch/host/start/memory_events.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "monarch/base/system.h"

namespace monarch {

namespace {

std::string read_all(const UniqueFd& file) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; file && (count = ::pread(file.get(), bytes, sizeof bytes, static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  return text;
}

std::string read_file(const std::string& path) { return read_all(sys::open_file(path.c_str(), O_RDONLY)); }

// Of a line "<name> <number>".
std::optional<uint64_t> number_of(const std::string& text, std::string_view name) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ') {
      return std::strtoull(text.c_str() + at + name.size(), nullptr, 10);
    }
    at = end + 1;
  }
  return std::nullopt;
}

struct Cgroups {
  std::string mounts;
  std::string unified, memory;  // the path of this process's in version 2, and in version 1; empty: there is none
};

// nullopt: it cannot be read.
std::optional<Cgroups> find_cgroups(const std::string& root) {
  const std::string groups = read_file(root + "/proc/self/cgroup");  // lines "4:memory:/path", of version 2 "0::/path"
  if (groups.empty()) return std::nullopt;
  Cgroups found{root + "/sys/fs/cgroup", "", ""};
  for (size_t at = 0; at < groups.size();) {
    const size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    at = end + 1;
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") found.unified = line.substr(second + 1);
    if (controllers.find(",memory,") != controllers.npos) found.memory = line.substr(second + 1);
  }
  return found;
}

bool has(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

bool grew(const std::optional<uint64_t>& before, const std::optional<uint64_t>& now) {
  return before && now && *now > *before;
}

// Counted by the same: the cgroup, else the machine.
bool are_comparable(const MemoryEvents& known, const MemoryEvents& now) {
  if (known.cgroup_kills || now.cgroup_kills) return known.cgroup_kills && now.cgroup_kills;
  return known.kills.has_value() == now.kills.has_value();
}

}  // namespace

OutOfMemory judge_kill(MemoryEvents& known, const MemoryEvents& now) {
  // Not everything could be read, then or now: how many of the kills since then are accounted for is not known any more.
  if (!are_comparable(known, now)) {
    known = now;
    return OutOfMemory::kUnknown;
  }
  const bool limit_hit = grew(known.limit_hits, now.limit_hits);
  if (grew(known.cgroup_kills, now.cgroup_kills)) {
    ++*known.cgroup_kills;
    if (*known.cgroup_kills == *now.cgroup_kills && now.limit_hits) known.limit_hits = now.limit_hits;
    if (known.kills) ++*known.kills;  // which counts it too
    return limit_hit ? OutOfMemory::kCgroupLimit : OutOfMemory::kCgroup;
  }
  if (now.limit_hits) known.limit_hits = now.limit_hits;
  if (now.cgroup_kills) {  // nobody of this cgroup: whoever else was killed for memory meanwhile, it was not this one
    known.kills = now.kills;
    return OutOfMemory::kNo;
  }
  if (!known.kills || !now.kills) return OutOfMemory::kUnknown;
  if (*now.kills <= *known.kills) return OutOfMemory::kNo;
  ++*known.kills;
  return OutOfMemory::kMachine;
}

uint64_t memory_limit(const std::string& root) {
  uint64_t limit = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::optional<Cgroups> groups = find_cgroups(root);
  if (!groups) return limit;
  const bool is_unified = groups->memory.empty();
  const std::string top = groups->mounts + (is_unified ? "" : "/memory");
  const char* const name = is_unified ? "/memory.max" : "/memory.limit_in_bytes";
  std::string path = is_unified ? groups->unified : groups->memory;
  for (;; path.resize(path.rfind('/'))) {
    const std::string text = read_file(top + path + name);  // "max", or nothing in the root: no limit
    if (!text.empty() && std::isdigit(text[0])) limit = std::min<uint64_t>(limit, std::strtoull(text.c_str(), nullptr, 10));
    if (path.find('/') == path.npos) return limit;
  }
}

MemoryEventsReader::MemoryEventsReader(std::string root) : root_(std::move(root)) { find_files(); }

void MemoryEventsReader::find_files() {
  const std::optional<Cgroups> groups = find_cgroups(root_);
  has_cgroup_ = groups.has_value();
  if (!groups) return;
  if (!groups->memory.empty()) {
    const std::string folder = groups->mounts + "/memory" + groups->memory;
    if (has(folder + "/memory.oom_control")) events_.path = folder + "/memory.oom_control";
    if (has(folder + "/memory.failcnt")) limits_.path = folder + "/memory.failcnt";
  } else if (!groups->unified.empty() && has(groups->mounts + groups->unified + "/memory.events")) {
    events_.path = groups->mounts + groups->unified + "/memory.events";
  }
}

std::string MemoryEventsReader::File::text() {
  if (!fd && !path.empty()) fd = sys::open_file(path.c_str(), O_RDONLY);
  return read_all(fd);
}

MemoryEvents MemoryEventsReader::read() {
  if (!has_cgroup_) find_files();
  MemoryEvents found;
  const std::string events = events_.text();
  found.cgroup_kills = number_of(events, "oom_kill");
  found.limit_hits = number_of(events, "oom");
  const std::string hits = limits_.text();
  if (!hits.empty()) found.limit_hits = std::strtoull(hits.c_str(), nullptr, 10);
  // Long, and only of use where the cgroup says nothing.
  if (!found.cgroup_kills) found.kills = number_of(read_file(root_ + "/proc/vmstat"), "oom_kill");
  return found;
}

}  // namespace monarch
