// The address of a job: what a handle carries, beside the ids of its actors, when it leaves the messages of its job. With
// it any process of the same user on the same machine can reach them. Not secret: the token lies in a file (token_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/wire/hello.h"

namespace monarch {

struct JobAddress {
  JobId job{};
  NodeId script = 0;        // the root of the job, whose end is the job's
  int64_t script_pid = 0;   // for people
  uint32_t user = 0;        // whose processes may use it
  std::string machine;      // machine_id() where it runs
  std::string host;         // the name of that machine, for people
  std::string folder;       // absolute: where the token lies, once it has been published

  // Of a job whose script is this process. Reads the environment (runtime_folder()): before other threads may write it.
  static Result<JobAddress> of_this_script(const JobId& job, NodeId node);

  // One line, and back. kMalformed: it is none.
  std::string to_text() const;
  static Result<JobAddress> parse(std::string_view text);

  std::string token_path() const;
  // "job 1a2b3c4d (its script has pid 4711)".
  std::string name() const;
  // What stands in the way of a process of this user on this machine; kUnsupported, with what to do.
  Status check_here() const;

  friend bool operator==(const JobAddress&, const JobAddress&) = default;
};

// Tells machines apart, as far as processes can find each other: this start of the kernel, and its network namespace, to
// which the names of abstract sockets belong. One word.
Result<std::string> machine_id();

}  // namespace monarch
