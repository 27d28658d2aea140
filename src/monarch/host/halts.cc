#include "monarch/host/halts.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "monarch/base/system.h"

namespace monarch {

const char* describe(Halt halt) {
  switch (halt) {
    case Halt::kStopped: return "is stopped (SIGSTOP)";
    case Halt::kTraced: return "is held by a debugger";
    case Halt::kFrozen: return "is frozen (its cgroup)";
    case Halt::kHeld: return "is held in the kernel (state D)";
    case Halt::kNone: break;
  }
  return "runs";
}

namespace {
// Who is stopped is so at once. A wait in the kernel is ordinary, and a frozen process looks like one that sleeps: these
// count if its reactor does not answer either.
Halt judge(const Halts::Sighting& sighting) {
  if (sighting.state == 'T') return Halt::kStopped;
  if (sighting.state == 't') return Halt::kTraced;
  if (!sighting.silent) return Halt::kNone;
  if (sighting.frozen) return Halt::kFrozen;
  return sighting.state == 'D' ? Halt::kHeld : Halt::kNone;
}
}  // namespace

std::optional<Halts::Change> Halts::look(int64_t now_ns, NodeId node, const Sighting& sighting) {
  if (const auto halted = halted_.find(node); halted != halted_.end()) count_wait(now_ns, halted->second, sighting.waited);
  if (sighting.state == '?' || sighting.state == 'Z' || sighting.state == 'X') return std::nullopt;
  Halt now = judge(sighting);
  // Where much is being started, or read from a disk, processes are in such a wait every now and then.
  if (sighting.state != 'D' || !sighting.silent) {
    doubtful_.erase(node);
  } else {
    Doubt& doubt = doubtful_[node];
    doubt = {doubt.work == sighting.work ? doubt.looks + 1 : 1, sighting.work};
    if (doubt.looks < kDoubtfulLooks && now == Halt::kHeld) now = Halt::kNone;
  }
  const auto known = halted_.find(node);
  const Halted before = known == halted_.end() ? Halted{} : known->second;
  if (now == before.halt) return std::nullopt;
  if (now == Halt::kNone) {
    halted_.erase(known);
  } else {
    halted_[node] = {.halt = now, .since_ns = now_ns, .looked_ns = now_ns, .waited = sighting.waited};
  }
  return Change{before.halt, now, before.halt == Halt::kNone ? now_ns : before.since_ns};
}

void Halts::count_wait(int64_t now_ns, Halted& halted, bool waited) {
  if (halted.waited && waited) halted.waited_ns += now_ns - halted.looked_ns;
  halted.looked_ns = now_ns;
  halted.waited = waited;
}

namespace {

// `*is_short`: it may be there, and this process can open nothing more. Else as it was.
std::string read_file(const std::string& path, bool* is_short) {
  const UniqueFd file = sys::open_file(path.c_str(), O_RDONLY);
  if (!file && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) *is_short = true;
  char bytes[4096];
  const ssize_t size = file ? read(file.get(), bytes, sizeof bytes) : 0;
  return {bytes, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

}  // namespace

namespace {

// What stands behind the name, which may hold anything, in /proc/PID/stat: the state first. Empty: as state_of_process().
std::string stat_of_process(pid_t pid) {
  bool is_short = false;
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat", &is_short);
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && name_end + 2 < stat.size() ? stat.substr(name_end + 2) : "";
}

char state_in(const std::string& stat) { return stat.empty() ? '?' : stat[0]; }

uint64_t work_in(const std::string& stat) {
  unsigned long faults = 0, big_faults = 0, user = 0, system = 0;
  std::sscanf(stat.c_str(), "%*c %*d %*d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu", &faults, &big_faults, &user, &system);
  return uint64_t{faults} + big_faults + user + system;
}

}  // namespace

char state_of_process(pid_t pid) { return state_in(stat_of_process(pid)); }

namespace {

// Whether a cgroup that it is in is frozen, as far as that can be read.
bool is_frozen(pid_t pid, bool* is_short) {
  const std::string groups = read_file("/proc/" + std::to_string(pid) + "/cgroup", is_short);
  std::string_view rest = groups;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        if (read_file(root + path + "/cgroup.events", is_short).find("frozen 1") != std::string::npos) return true;
      }
    } else if (controllers == "freezer") {
      if (read_file("/sys/fs/cgroup/freezer" + path + "/freezer.state", is_short).starts_with("FR")) return true;
    }
  }
  return false;
}

}  // namespace

Halts::Sighting look_at_process(pid_t pid, bool silent, bool waited) {
  const std::string stat = stat_of_process(pid);
  Halts::Sighting sighting{.state = state_in(stat), .silent = silent, .waited = waited, .work = work_in(stat)};
  if (!silent || sighting.state == 'T' || sighting.state == 't') return sighting;
  bool is_short = false;
  sighting.frozen = is_frozen(pid, &is_short);
  if (is_short && !sighting.frozen) sighting.state = '?';
  return sighting;
}

}  // namespace monarch
