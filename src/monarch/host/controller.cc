#include "monarch/host/controller.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "monarch/actor/native_cell.h"
#include "monarch/base/forked.h"
#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/host/runtime.h"
#include "monarch/host/stacks/crash_handler.h"
#include "monarch/host/start/bootstrap.h"
#include "monarch/host/start/guard.h"
#include "monarch/host/start/life.h"

namespace monarch {

namespace {

constexpr int64_t kStopPollNs = 1'000'000'000;
constexpr int64_t kRestNs = 100'000'000;  // for what actors have still to do when their process is to end
// As for scripts in Python (python/monarch/_running/unhandled.py): main() may be between two calls, and who was told that a
// mesh has failed need not be told of what else of it fails at the same time.
constexpr int64_t kPatienceNs = 800'000'000;
constexpr int64_t kSameTimeNs = 1'000'000'000;
constexpr std::string_view kWorkerMark = "--monarch-worker";

std::atomic<Runtime*> innermost{nullptr};

[[noreturn]] void fail_worker(const std::string& why) {
  log_line("a worker cannot start: " + why);
  flush_log();
  _exit(1);
}

// What a fresh process of this program does instead of main().
[[noreturn]] void run_worker(int record_fd, Runtime::Options options) {
  hold_life(record_fd);
  LastWords* const last_words = map_own_last_words(record_fd);
  if (last_words != nullptr) note_crashes(*last_words, -1, 0);
  std::vector<int> numbers;
  auto bootstrap = read_bootstrap(record_fd, &numbers);
  if (!bootstrap) fail_worker(bootstrap.error().message);
  if (numbers.size() != kFdCount) fail_worker("its bootstrap record has no descriptors");
  BootstrapFds fds;
  fds[kFdRecord].reset(record_fd);
  for (int i = kFdRecord + 1; i < kFdCount; ++i) fds[i].reset(numbers[i]);
  for (UniqueFd& fd : fds) fcntl(fd.get(), F_SETFD, FD_CLOEXEC);  // not for what actors start
  take_up_output(fds);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != bootstrap->parent_pid) _exit(1);  // it died before the line above
  guard_register(fds[kFdGuard].get(), getpid());
  fds[kFdGuard].reset();

  ProcessRuntime::Options process_options;
  process_options.transport = options.transport;
  std::unique_ptr<ProcessRuntime> process;
  std::unique_ptr<NativeFactory> actors;
  const auto keep = [&](std::unique_ptr<ProcessRuntime> made) {
    process = std::move(made);
    if (last_words != nullptr) process->node().activity().use(*last_words);
    actors = install_native_actors(*process, options.actor_threads);
  };
  auto started = ProcessRuntime::make_worker(*bootstrap, std::move(fds), std::move(process_options), keep);
  if (!started) fail_worker(started.error().message);
  while (!process->wait_for_stop(kStopPollNs)) {
  }
  // What was sent before the stop has come, and is done. Actors that are busy cannot be joined: what they have printed goes
  // out, the rest ends with the process.
  actors->rest(kRestNs);
  process->node().report_failures();
  std::cout.flush();
  std::fflush(nullptr);
  flush_log();
  _exit(0);
}

void end_program(const MeshFailure& failure) {
  static std::atomic<bool> ending{false};
  if (ending.exchange(true)) return;
  log_line(failure.origin() + "\nUnhandled monarch error on the root actor, hostname=" + host_name() +
           ", PID=" + std::to_string(getpid()) + ":\n" + failure.report());
  std::thread([] {
    flush_log();
    _exit(1);
  }).detach();
}

std::string own_program() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0 || size == sizeof path) throw std::runtime_error("cannot find this program: /proc/self/exe");
  return std::string(path, static_cast<size_t>(size));
}

}  // namespace

std::unique_ptr<NativeFactory> install_native_actors(ProcessRuntime& runtime, uint32_t threads) {
  auto actors = std::make_unique<NativeFactory>(runtime.reactor(), runtime.driver(), threads);
  runtime.node().set_factory(CellKind::kNative, *actors);
  return actors;
}

// ---- Runtime ----

Runtime::Runtime(int argc, char** argv, Options options) {
  if (argc >= 3 && argv[argc - 2] == kWorkerMark) run_worker(std::atoi(argv[argc - 1]), options);
  argv_.push_back(own_program());
  for (int i = 1; i < argc; ++i) argv_.emplace_back(argv[i]);
  ProcessRuntime::Options process_options;
  process_options.transport = options.transport;
  process_options.on_undeliverable = [](const ActorId&, const Failure& why) {
    log_line("a message of main() could not be delivered: " + why.text());
  };
  process_options.on_mesh_failure = [this, decide = options.on_unhandled_failure](const MeshFailure& failure) {
    Node& node = process_->node();
    if (node.is_awaited(*failure.why)) return;
    const int64_t now_ns = node.clock().now_ns();
    process_->reactor().after(kPatienceNs, [this, &node, decide, failure, now_ns] {
      if (node.is_ending() || !node.supervisor().is_current(failure)) return;  // made anew
      if (node.was_told(*failure.why, std::max(now_ns - kSameTimeNs, failure.made_ns))) return;
      if (!decide) return end_program(failure);
      decide(failure);
      process_->note_observed(failure.why->node);  // it need not be said on stderr
    });
  };
  auto process = ProcessRuntime::make_root(std::move(process_options));
  if (!process) throw std::runtime_error(process.error().message);
  process_ = std::move(*process);
  actors_ = install_native_actors(*process_, options.actor_threads);
  outer_ = innermost.exchange(this);
}

Runtime::~Runtime() {
  innermost.store(outer_);
  if (!in_forked_child() && !process_->reactor().has_its_descriptors()) {
    // This program has closed them (closefrom()): threads sleep that nobody can wake, and the numbers may be anybody's. The
    // guard ends what was started.
    static_cast<void>(process_.release());
    static_cast<void>(actors_.release());
    return;
  }
  process_->shutdown(kGraceNs);
  actors_.reset();
}

Runtime* Runtime::current() { return innermost.load(); }

ProcMesh Runtime::this_proc() {
  return ProcMesh(process_->node(), nullptr, "this_proc", {process_->node().id()}, Extent());
}

void Runtime::stop(const std::vector<NodeId>& nodes, const std::string& reason) {
  std::vector<NodeId> here, there;
  for (const NodeId each : nodes) {
    const NodeId now = process_->node().successions().latest(each);
    (process_->host_of(now) == 0 ? here : there).push_back(now);
  }
  if (!there.empty()) stop_on_hosts(there, reason);
  if (!here.empty()) stop_own(here, reason, kGraceNs);
}

void Runtime::stop_own(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns) {
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
  process_->host().stop(nodes, reason, grace_ns, [&] {
    std::lock_guard lock(mutex);
    done = true;
    condition.notify_one();
  });
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return done; });
}

// What a worker is started as.
LaunchCommand Runtime::worker_command(const ProcOptions& options) const {
  LaunchCommand command;
  command.program = options.program.empty() ? argv_[0] : options.program;
  command.args = options.args ? *options.args : std::vector<std::string>(argv_.begin() + 1, argv_.end());
  command.args.emplace_back(kWorkerMark);
  command.env = options.env;
  return command;
}

HostMesh this_host() {
  Runtime* runtime = Runtime::current();
  if (runtime == nullptr) {
    throw std::logic_error("this_host() needs a monarch::Runtime: make one first thing in main()");
  }
  return runtime->this_host();
}

}  // namespace monarch
