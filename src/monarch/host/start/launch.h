// What a process is started from. Whoever asks for processes says in a LaunchOrder what is theirs; the host that starts
// them adds what is its own, its LaunchDefaults: interpreter, environment, search path. Together they are a Launch for
// each process, which is what Starter takes. An order travels in the native codec (wire/value.h), so that it can be
// carried out where nobody runs the language on top.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/start/host_dial.h"
#include "monarch/wire/node_key.h"
#include "monarch/wire/value.h"

namespace monarch {

// What is to be started.
struct Launch {
  bool use_fork_server = true;
  bool is_host = false;           // it has an agent (host/agent.h)
  bool is_awaited = false;        // a program's own code starts it: it comes to a door (launch_door.h)
  std::string program;            // exec only; empty: argv[0]
  std::vector<std::string> argv;  // exec only; gets the number of the bootstrap descriptor appended
  std::vector<std::string> env;   // exec only
  std::string cwd;                // exec only; empty: as here
  std::string payload;            // for the language on top
  std::string label;              // for people: "rank {'gpus': 2/4} of procs 'trainer'"
  OutputName output;              // who it is in what it prints
  std::vector<int64_t> coordinates;  // in its mesh
  uint32_t tail_lines = 10;       // so many of its last lines on stderr are told with its death
  std::optional<HostdAddress> hostd;  // who starts it, in the place of this process; it is a host
  std::optional<NodeKey::Seed> key;   // of its node; none: whoever starts it makes one
};

// How to start a process otherwise than its host would. Texts are bytes, as for execve: without NUL.
struct LaunchCommand {
  std::string program;              // looked up in PATH if it has no slash
  std::optional<std::string> arg0;  // none: the program
  std::vector<std::string> args;    // the others
  std::vector<std::pair<std::string, std::optional<std::string>>> env;  // added to the host's; none: taken away
  bool inherit_env = true;          // false: `env` is all

  friend bool operator==(const LaunchCommand&, const LaunchCommand&) = default;
};

// One process of an order.
struct LaunchRequest {
  std::optional<LaunchCommand> command;
  std::vector<std::string> prefix;  // a program, with arguments, that starts it in turn: numactl
  std::string label;                // these as Launch's
  OutputName output;
  std::vector<int64_t> coordinates;
  uint32_t tail_lines = 10;
  std::optional<NodeKey::Seed> key{};  // as Launch's: so that who asks knows the node before the host has answered
};

// Processes of one mesh, on one host.
struct LaunchOrder {
  uint64_t mesh = 0;        // an id of that mesh, below 2^63, which may have others elsewhere; 0: it has none yet
  bool are_hosts = false;   // as Launch::is_host
  bool are_awaited = false;  // as Launch::is_awaited
  std::string interpreter;  // what runs them; empty: what the host runs
  std::string payload;      // for the language on top, of all of them
  std::vector<LaunchRequest> launches;

  static constexpr size_t kLaunchesMax = 1 << 16;
};

// What a host gives to all that is started there.
struct LaunchDefaults {
  std::string interpreter;  // what runs processes unless somebody says otherwise
  std::string forkable;     // the interpreter that a fork server's children would be run by; empty: nothing is forked
  std::vector<std::string> args;         // what makes it run a worker
  std::vector<std::string> env;          // "NAME=value", the whole environment
  std::vector<std::string> new_only;     // beginnings of the names of variables that only a new interpreter takes up
  std::vector<std::string> fork_server;  // the command of the fork server
  std::string payload;                   // for the language on top, beside the order's
};

// What the language on top is given in a new process (Launch::payload).
struct WorkerPayload {
  std::string of_host;   // LaunchDefaults::payload
  std::string of_order;  // LaunchOrder::payload
  std::optional<std::vector<std::string>> env;  // is to be its environment; none: what the command has made of it stands
};

std::string encode(const LaunchOrder& order);
std::string encode(const LaunchDefaults& defaults);
std::string encode(const WorkerPayload& payload);
// kMalformed, or kBug where the bytes are another value than that: texts with a NUL where execve takes none, names of
// variables that are none, more processes than kLaunchesMax. Where texts are bytes, a str will do.
Result<LaunchOrder> decode_launch_order(ByteSpan bytes);
Result<LaunchDefaults> decode_launch_defaults(ByteSpan bytes);
Result<WorkerPayload> decode_worker_payload(ByteSpan bytes);

// Whether a fork server would have something to do for this order.
bool wants_fork_server(const LaunchOrder& order, const LaunchDefaults& host);
// One for each process of the order. `fork_env`: the environment that the fork server was started with; where only a new
// interpreter can take up what is different now, that is what there will be.
std::vector<Launch> complete(const LaunchOrder& order, const LaunchDefaults& host,
                             const std::vector<std::string>& fork_env);

}  // namespace monarch
