// What has failed, as a record: from whoever has seen it to the exception that somebody catches, over any number of
// processes. Its text is made at the end, for people; nothing is decided by it.
//
// The native codec carries it (wire/value.h), as a tuple that may grow at its end: a reader ignores what it does not know.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/wire/value.h"

namespace monarch {

// Of a reason that somebody gives.
inline constexpr size_t kReasonMax = size_t{64} << 10;

// Of a process that SIGKILL has ended: whether it was the kernel's OOM killer. That does not say whom it kills.
enum class OutOfMemory : uint8_t {
  kUnknown = 0,
  kNo = 1,           // it has killed nobody
  kMachine = 2,      // it has killed somebody on this machine; of the cgroup nothing is known
  kCgroup = 3,       // it has killed somebody in this cgroup
  kCgroupLimit = 4,  // and that was at its memory limit
};
inline constexpr int64_t kOutOfMemoryMax = static_cast<int64_t>(OutOfMemory::kCgroupLimit);

// How a process has ended.
struct ExitStatus {
  bool known = false;
  int code = 0;    // exit code, if signal is 0
  int signal = 0;  // what killed it
  std::string because{};  // if that says more, "was killed because ..."; the rest is not known then
  OutOfMemory out_of_memory = OutOfMemory::kUnknown;
  std::vector<std::string> endpoints{};  // that it was in: "trainer.step"
  std::string stack{};                   // of the thread that crashed
  std::string launcher{};                // what who has started it says of its end, if that was a program's own code
  std::string launcher_tail{};           // and what that has kept of its stderr
};

struct Failure {
  enum class Kind : uint8_t {
    kRefused = 1,     // a message that could not be handled as it is: `detail` says why. Nobody has died
    kExited = 2,      // the process ended, as `status` says
    kNotStarted = 3,  // the process could not be started: `detail`
    kStopped = 4,     // somebody asked for its end: `detail` is the reason
    kLost = 5,        // the connection to it broke, and nobody could say more than `detail`
    kOwnerEnded = 6,  // that on whose behalf it was there has ended: `detail` names it
    kUnreachable = 7, // this process has no means to reach it: `detail`. Says nothing of the other
    kEnding = 8,      // this process is ending itself
    kNoActor = 9,     // there is no such actor, or not any more
    kActor = 10,      // the actor failed: `detail` is its epitaph
    kForeign = 11,    // a process of another job: `detail` says what became of that
    kActorStopped = 12,  // somebody asked for the actor's end: `detail` is its epitaph
    kNotSent = 13,    // the message was never sent: `detail` says why
  };

  Failure() = default;
  Failure(Kind what, std::string why) : kind(what), detail(std::move(why)) {}
  // A refusal, in words.
  Failure(std::string why) : detail(std::move(why)) {}         // NOLINT: implicit by design
  Failure(std::string_view why) : detail(why) {}               // NOLINT
  Failure(const char* why) : detail(why) {}                    // NOLINT

  Kind kind = Kind::kRefused;
  bool of_host = false;  // it is the host of the process that this is about which failed so, and the process with it
  bool cut_off = false;  // the process had closed its connection and lived on, and was killed for it
  NodeId node = 0;       // 0: not known
  ActorIndex actor = 0;
  int64_t rank = -1;     // in its mesh of processes (of actors, for an actor); -1: not known, or the mesh is one process
  std::vector<int64_t> coordinates;
  std::string mesh;      // the name of its mesh of processes
  std::string label;     // for people: "rank {'gpus': 2/4} of procs 'trainer'"
  std::string host;      // the name of the machine
  int64_t pid = -1;
  ExitStatus status;
  std::string detail;
  std::string origin;    // where an actor has failed of something that it owns: the headline of what that began with
  std::string last_lines;  // the last that it printed to stderr, if anybody wanted to know

  // Whether a process is meant that has ended, or never was.
  bool is_death() const;
  // What callers are told; several lines if there are last lines.
  std::string text() const;
  // text() without the last lines: for a log.
  std::string headline() const;

  // Long texts are shortened: a record fits into a control frame, however somebody has called his mesh.
  void encode(ValueWriter& writer) const;
  std::string encoded() const;
  // kMalformed: `bytes` are no such record.
  static Result<Failure> decode(ByteSpan bytes);
};

// shared: the tables of who is down, and whoever tells of it, have the same record.
using FailurePtr = std::shared_ptr<const Failure>;

// `text` without its middle, if it has more than `bytes_max` bytes; says how much is missing.
std::string shortened(std::string_view text, size_t bytes_max = kReasonMax);

// `lines`, each but the first two columns further in.
std::string indented(std::string_view lines);

// The lines of `text`, each with at most `bytes_max` bytes, the last `lines_max` of them.
std::string clipped_lines(std::string_view text, size_t lines_max, size_t bytes_max);

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string describe(const ExitStatus& status);
// `detail` of a process that was not started since there is no such host. It needs no more words around it.
std::string not_attached(const std::string& address, const std::string& why);

}  // namespace monarch
