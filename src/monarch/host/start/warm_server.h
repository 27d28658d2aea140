// A fork server (fork_server.h) that is warm before there is a host that wants it: a daemon keeps one for its next client,
// who would wait longest of all for an interpreter and what that imports.
//
// It is the child of a small process of its own, its *holder*, and never of the host that uses it. The holder is a
// subreaper: whatever the server leaves behind comes to it, and it ends all of that when the line to it ends. Only the host
// has that line from then on, so however the host ends, nothing of its server is left.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "monarch/base/clock.h"
#include "monarch/base/unique_fd.h"
#include "monarch/host/start/process.h"

namespace monarch {

// What a child has of its parent and somebody may change while that runs: priorities, processors, limits, badness, cgroups.
// Bytes to be compared.
std::string inherited_traits();

class WarmServer {
 public:
  WarmServer() = default;
  // In a process of a single thread: forks the holder, whose `prepare` lets go of what it has of that process. The server
  // is `command`, with the number of its socket appended. Nothing: there was a shortage.
  template <typename Prepare>
  static WarmServer start(const ProcessSpec& command, Clock& clock, Prepare prepare) {
    WarmServer warm;
    UniqueFd server, held;
    if (!warm.connect(&server, &held)) return {};
    const pid_t parent = getpid();
    warm.traits_ = inherited_traits();
    warm.holder_ = fork();
    if (warm.holder_ != 0) return warm.holder_ < 0 ? WarmServer{} : std::move(warm);
    warm = {};
    prepare(parent);
    hold(command, std::move(server), std::move(held), clock);
  }

  // Of this process, when it was started (inherited_traits()).
  const std::string& traits() const { return traits_; }

  explicit operator bool() const { return static_cast<bool>(line_); }
  pid_t holder() const { return holder_; }

  // Waits for it, as long as an exec takes, and no longer. nullopt: it has ended by now, or could not be started.
  std::optional<Process> started();
  // The host's end of the server's socket; the line.
  UniqueFd take_socket() { return std::move(socket_); }
  UniqueFd take_line() { return std::move(line_); }
  // How it has ended, for who has the line. nullopt: its holder has not said so yet.
  static std::optional<ExitStatus> read_end(int line);

 private:
  bool connect(UniqueFd* server, UniqueFd* held);
  [[noreturn]] static void hold(const ProcessSpec& command, UniqueFd server, UniqueFd line, Clock& clock);

  UniqueFd socket_, line_;
  std::string traits_;
  pid_t holder_ = -1;
};

}  // namespace monarch
