// Starts the processes of a host and watches them to their end, by fork from a warm single-threaded server or by a clean
// exec, with a guard that ends them when this process is killed. What their end means is not known here: it is told.
//
// A launch holds a dozen descriptors until its process has them, so only kUnderWayMax hold any at a time; the others wait
// for their turn, each with the one descriptor that makes it known to its siblings: the socket on which it will be dialled.
// (Whoever dials a process that nobody listens for is told that it is dead.) Where even that many descriptors are not to be
// had, a launch waits for those under way to end.
//
// One that a program's own code starts (Launch::is_awaited) has its turn when it has come to the door (launch_door.h). Who
// has started it may say how it ends, or that it cannot be started; that is waited for, for kNewsLimitNs, but its pidfd
// decides whether it has ended.
//
// Signals to workers go by pidfd. That a worker is at its end its robust futex says (life.h), and how it ends /proc does,
// while its memory is still given back. That it has ended its pidfd says. How it did, who has reaped it knows: this
// process, or the fork server; if that says nothing within kReportLimitNs, /proc does.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "monarch/host/membership/job_address.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/start/fork_server.h"
#include "monarch/host/start/guard.h"
#include "monarch/host/start/launch.h"
#include "monarch/host/start/launch_door.h"
#include "monarch/host/start/life_watch.h"
#include "monarch/host/start/memory_events.h"
#include "monarch/host/start/process.h"
#include "monarch/host/start/warm_server.h"
#include "monarch/net/connector.h"

namespace monarch {

class Starter {
 public:
  // All on the reactor. For each process that was to be launched: on_spawned (with -1 if it has no number here) and later
  // on_exited, or on_not_started. Before on_exited there may be on_dying: nothing runs in it any more, and it will end so;
  // but it is still there.
  struct Events {
    std::function<void(NodeId, pid_t)> on_spawned;
    std::function<void(NodeId, const ExitStatus&)> on_dying;
    std::function<void(NodeId, const ExitStatus&)> on_exited;
    std::function<void(NodeId, const std::string& why)> on_not_started;
  };
  // What makes a process; tests put another one in its place.
  using StartProcess = std::function<Result<Process>(const ProcessSpec&)>;

  // `output` outlives it, and so does `budget_fd`, which is handed on to every process (kFdBudget).
  Starter(Reactor& reactor, Connector& connector, OutputRoute& output, int budget_fd, const JobAddress& address,
          NodeId self, Events events, StartProcess start_process = monarch::start_process);
  // Nobody outlives it. After the reactor has ended.
  ~Starter();

  // Any thread. The command that becomes the fork server; `argv` gets the number of its socket appended. Starting takes
  // a while and happens in the background; workers that are wanted meanwhile wait. If it dies it can be started again.
  // `warm`: one that has been started so before, and is used if it lives.
  void start_fork_server(std::vector<std::string> argv, std::vector<std::string> env, WarmServer warm = {});
  // Any thread, before either. What is started from now on is killed for want of memory before this process is.
  static constexpr int kWorkersOomScore = 300;  // thousandths; the shared memory that a host may fill is a quarter
  void offer_workers_to_oom_killer();
  bool has_fork_server() const { return fork_server_wanted_.load(); }
  // That it was started with.
  std::vector<std::string> fork_environment() const;

  // Reactor. Starts the guard of this process, if it does not run: it ends what this one leaves behind when it is killed.
  // That of a script takes away the job's token, too. One that dies is replaced.
  void start_guard();

  // One process that is to be started.
  struct Order {
    Bootstrap bootstrap;  // but for the pid of its parent
    Launch launch;
    uint64_t mesh = 0;
    std::shared_ptr<Link> link;  // from Connector::new_child(), with the listener. Shared: with the node
    UniqueFd listener;
  };
  // Any thread. Whether the descriptors for so many more processes can be had: those that each keeps while it lives.
  Status expect(size_t count) const;
  // Any thread.
  void launch(Order order);
  // Reactor. Kills it, now or as soon as it is there; a launch that waits for its turn is told as not started. Nothing
  // happens if it has ended.
  void kill(NodeId node);
  // Reactor. Nobody waits any more for one that is awaited and has not come; others are left alone.
  void withdraw(NodeId node);
  // Any thread. Where processes come that this one awaits.
  std::string door_path() const;
  // Reactor. What is said of one that was awaited, or is.
  void hear_news(NodeId node, const LaunchNews& news);
  // Reactor. From now on nothing is started any more; what waits is told as not started.
  void end();
  // Reactor. The fork server is killed, and what it has started with it.
  void give_up_fork_server() { lose_fork_server(); }

  // In a child that fork() made: what it must not keep open.
  void after_fork_in_child() {
    guard_pipe_.reset();
    if (door_) door_->after_fork_in_child();
  }

  static constexpr int kUnderWayMax = 32;
  static constexpr size_t kDescriptorsEach = 5;  // a socket, a bell, two pipes of its output, a pidfd
  static constexpr int64_t kReportLimitNs = 300'000'000;
  static constexpr int64_t kNewsLimitNs = 200'000'000;  // others learn of a death before they take its links for cut

 private:
  // From launch() until the process is there, or is not to be.
  struct Launching {
    explicit Launching(Order wanted) : order(std::move(wanted)) {}
    NodeId node() const { return order.bootstrap.key.id(); }
    Order order;
    BootstrapFds fds;
    Mapping life{}, last_words{};
    bool has_output = false;
    bool has_ends = false;
    std::optional<LaunchDoor::Guest> guest{};  // of one that was awaited: it has come
    int64_t short_since_ns = 0;  // 0: nothing is short
  };
  using LaunchingPtr = std::shared_ptr<Launching>;  // shared: posted tasks must be copyable
  // From there to its end.
  struct Running {
    Process process;  // pid -1: the fork server has not said it yet. No pidfd: there was no descriptor for it
    Mapping life{};   // until it is watched
    Mapping last_words{};
    std::optional<ExitStatus> told{};  // how it ends, once that is known
    bool forked = false;
    bool elsewhere = false;  // by a monarch-hostd: no fork server of this process has to do with it
    UniqueFd hostd{};        // on which that tells of it, once it has been asked
    bool kill_when_known = false;
    bool given_up = false;  // nobody waits to hear of it any more
    bool ended = false;  // says its pidfd
    bool awaited = false;  // a program's own code has started it
    bool end_seen = false;  // of such: nothing runs in it any more, `seen` says how it ended as far as that is known
    ExitStatus seen{};
    std::optional<LaunchNews> news{};
    std::string because;
  };

  bool take_slot();
  void give_slot();
  Status prepare(Launching& launching);
  void pump();
  bool begin(const LaunchingPtr& launching);
  bool wait_out(Launching& launching, int64_t limit_ns);
  std::string begin_exec(Launching& launching, const std::vector<int>& numbers);
  void begin_elsewhere(const LaunchingPtr& launching);
  void ask_hostd(const LaunchingPtr& launching, Result<UniqueFd> socket);
  void on_hostd(NodeId node);
  void leave_hostd(NodeId node, const std::string& because);
  Status open_door();
  void on_guest(NodeId node, LaunchDoor::Guest guest);
  void admitted(Launching& launching);
  void see_end(NodeId node, const ExitStatus& status);
  void tell_end(NodeId node);
  bool drop_waiting(NodeId node, const std::string& why);
  void fail_waiting(const std::string& why, bool forks_only);
  void pump_later(int64_t delay_ns);

  void watch(NodeId node);
  void on_life_released(NodeId node, int tries);
  void on_ended(NodeId node);
  void look_for_end(NodeId node);
  void reap_exec(NodeId node, int tries);
  void reap_held(Process process);
  void find_pidfd(NodeId node);
  void spawned(NodeId node, Process process);
  void exited(NodeId node, const ExitStatus& status);
  const ExitStatus& complete(Running& running, const ExitStatus& status);
  void not_started(NodeId node, const std::string& why);

  void on_fork_server();
  void on_fork_report(const ForkReport& report, UniqueFd pidfd);
  void try_fork_server(const ProcessSpec& command, int64_t until_ns);
  bool take_warm_server(WarmServer& warm);
  void use_fork_server(Process server, UniqueFd socket);
  void lose_fork_server();
  void fork_server_ended();
  void fork_server_gone(const std::string& how);

  void guard_died();
  void tell_guard(GuardEntry entry);
  void flush_guard();

  Reactor& reactor_;
  Connector& connector_;
  OutputRoute& output_;
  const JobAddress address_;
  const int budget_fd_;
  const NodeId self_;
  const Events events_;
  const StartProcess start_process_;
  const bool shows_runtime_;  // its frames, in the stack of a crash
  std::atomic<bool> fork_server_wanted_{false};
  mutable std::mutex fork_env_mutex_;  // a leaf
  std::vector<std::string> fork_env_;
  std::atomic<int> slots_{0};  // launches that hold descriptors

  // Reactor only.
  std::deque<LaunchingPtr> ready_;    // prepared
  std::deque<LaunchingPtr> waiting_;  // for a slot
  std::unordered_map<NodeId, LaunchingPtr> awaited_;  // they have not come yet
  std::unique_ptr<LaunchDoor> door_;  // once one is awaited
  std::unordered_map<NodeId, Running> running_;
  bool pump_posted_ = false;
  bool retry_armed_ = false;
  bool guard_short_ = false;  // it could not be started, which has been said
  std::string oom_score_;  // ProcessSpec::oom_score of workers
  bool ending_ = false;
  UniqueFd guard_pipe_;
  Process guard_;
  bool guard_missing_ = false;
  int guard_deaths_ = 0;
  std::deque<GuardEntry> guard_waiting_;  // what it has not taken yet
  Process fork_server_;
  UniqueFd fork_socket_;
  UniqueFd fork_line_;  // to the holder of one that was warm; none: it is our child
  std::atomic<bool> fork_ready_{false};
  MemoryEventsReader memory_reader_;
  std::optional<MemoryEvents> memory_known_;  // since the first process was started; see judge_kill()
  std::string fork_server_end_ = "is not running";  // of the last one

  LifeWatch lives_;  // last: its threads tell this object
};

}  // namespace monarch
