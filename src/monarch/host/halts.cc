#include "monarch/host/halts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
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
  Halt now = judge(sighting);
  // Where much is being started, or read from a disk, processes are in such a wait every now and then.
  if (now != Halt::kHeld) {
    doubtful_.erase(node);
  } else if (doubtful_.insert(node).second) {
    now = Halt::kNone;
  }
  const auto known = halted_.find(node);
  const Halted before = known == halted_.end() ? Halted{} : known->second;
  if (now == before.halt) return std::nullopt;
  if (now == Halt::kNone) {
    halted_.erase(known);
  } else {
    halted_[node] = {now, now_ns};
  }
  return Change{before.halt, now, before.halt == Halt::kNone ? now_ns : before.since_ns};
}

namespace {

std::string read_file(const std::string& path) {
  const UniqueFd file = sys::open_file(path.c_str(), O_RDONLY);
  char bytes[4096];
  const ssize_t size = file ? read(file.get(), bytes, sizeof bytes) : 0;
  return {bytes, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

}  // namespace

char state_of_process(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');  // a name may hold anything
  return name_end != stat.npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
}

bool is_frozen(pid_t pid) {
  const std::string groups = read_file("/proc/" + std::to_string(pid) + "/cgroup");
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
        if (read_file(root + path + "/cgroup.events").find("frozen 1") != std::string::npos) return true;
      }
    } else if (controllers == "freezer") {
      if (read_file("/sys/fs/cgroup/freezer" + path + "/freezer.state").starts_with("FR")) return true;
    }
  }
  return false;
}

}  // namespace monarch
