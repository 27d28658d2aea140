// What a process says of its stacks: a value (wire/value.h) that its asker makes a report of.
//
//   (pid, threads, modules, actors)
//     thread: (number, name, state, waits_in, taken, text, code)   as ThreadStack's; code: a list that alternates
//                                                                  between the index of a module and an offset in its file
//     module: path of a file that code is from
//     actor:  (thread, name, rank, doing, waiting)                 as RunningActor's
//
// And what is said of one that says nothing: (pid, state, waits_in).
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "monarch/host/stacks/thread_stacks.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

// An actor that is at something.
struct RunningActor {
  pid_t thread = 0;
  std::string name;
  int64_t rank = 0;  // in the mesh that it was spawned in
  std::string doing;  // the endpoint that its thread runs, or the constructor; empty: none
  std::vector<std::string> waiting;  // endpoints that it has begun with and awaits
};

// Which files the code of this process is from. What has been loaded since is found; what took the place of something
// that was unloaded may be taken for that.
class CodeMap {
 public:
  struct Mapping {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint64_t offset = 0;  // of `begin`, in the file
    std::string path;
  };
  // From here on it may look once more at what there is.
  void begin_round() { may_read_ = true; }
  const Mapping* find(uintptr_t address);  // null: of no file

 private:
  void read();
  const Mapping* find_known(uintptr_t address) const;

  std::vector<Mapping> mappings_;  // by address
  bool may_read_ = true;
};

// Writes at most about `bytes_max`; of threads that are too many, the last are left out.
void write_process_stacks(ValueWriter& out, const std::vector<ThreadStack>& threads,
                          const std::vector<RunningActor>& actors, CodeMap& code, size_t bytes_max);

struct SilentProcess {
  int64_t pid = -1;  // not known
  std::string state = "?";
  std::string waits_in;
  bool is_stopped() const { return state == "T" || state == "t"; }
};

SilentProcess look_at_silent_process(int64_t pid);
void write_silent_process(ValueWriter& out, const SilentProcess& seen);

template <>
struct ValueCodec<SilentProcess> {
  static void encode(ValueWriter& writer, const SilentProcess& seen) { write_silent_process(writer, seen); }
  static bool decode(ValueReader& reader, SilentProcess& seen) {
    return decode_into(reader, std::tie(seen.pid, seen.state, seen.waits_in));
  }
};

}  // namespace monarch
