// For tests of ProcessRuntime: a script with workers that are this test program itself, by exec and by a fork server. The
// program's main() calls run_if_worker() first.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "monarch/actor/pending_call.h"
#include "monarch/actor/calls.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/start/fork_server.h"
#include "monarch/host/start/guard.h"
#include "monarch/host/start/launch_door.h"
#include "monarch/host/start/life.h"
#include "monarch/host/runtime.h"
#include "monarch/testing/home.h"

namespace monarch::testing {

// Methods of the test's actor.
enum Method : uint32_t {
  kEcho, kExit, kKillSelf, kCallOther, kIgnoreStop, kCloseLinks, kSleepThenEcho, kTellPid, kNeverAnswer, kPublish,
  kFailNthCall,  // the body: which system call of the worker fails (sys::fail_nth)
  kCallsSeen     // -> sys::calls_seen()
};

// What a worker runs. Its work is done on one thread of its own, as an actor's would be.
class TestActor final : public Cell, public std::enable_shared_from_this<TestActor> {
 public:
  explicit TestActor(ProcessRuntime& runtime) : runtime_(runtime), thread_([this] { loop(); }) {}
  ~TestActor() override {
    push(nullptr);
    thread_.join();
  }
  void deliver(MessagePtr message) override { push(std::move(message)); }
  inline static std::atomic<bool> ignores_stop{false};

 private:
  void push(MessagePtr message) {
    std::lock_guard lock(mutex_);
    if (message) {
      queue_.push_back(std::move(message));
    } else {
      ending_ = true;
    }
    condition_.notify_one();
  }
  void loop() {
    for (;;) {
      MessagePtr message;
      {
        std::unique_lock lock(mutex_);
        condition_.wait(lock, [&] { return ending_ || !queue_.empty(); });
        if (ending_) return;
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      handle(*message);
    }
  }
  void handle(const Message& message) {
    Node& node = runtime_.node();
    std::vector<ByteSpan> parts;  // an echo is one of them too
    for (const auto& part : message.parts) parts.emplace_back(part.data, part.size);
    Outgoing answer{FrameHeader{}, message.body, parts};
    const int32_t pid = getpid();
    uint64_t seen;
    switch (message.header.method) {
      case kExit:
        _exit(std::to_integer<int>(message.body[0]));
      case kKillSelf:
        raise(SIGKILL);
        return;
      case kIgnoreStop:
        ignores_stop = true;
        break;
      case kCloseLinks:
        for (auto& link : node.links()) link->close();
        return;
      case kNeverAnswer:
        return;
      case kPublish: {
        const auto call = runtime_.publish();
        drive_until(runtime_.driver(), [&] { return call->complete(); });
        break;
      }
      case kFailNthCall: {
        uint64_t nth;
        std::memcpy(&nth, message.body.data(), sizeof nth);
        node.reply(message.header, message.from, FrameKind::kReply, answer);  // first: what sends it is not counted
        sys::fail_nth(nth);
        return;
      }
      case kCallsSeen:
        seen = sys::calls_seen();
        answer.body = as_byte_span(&seen, sizeof seen);
        break;
      case kTellPid:
        answer.body = as_byte_span(&pid, sizeof pid);
        break;
      case kCallOther: {
        ActorId other;
        std::memcpy(&other, message.body.data(), sizeof other);
        auto members = std::make_shared<Members>();
        members->ids = {other};
        auto call = std::make_shared<PendingCall>(members);
        Outgoing request{FrameHeader{}, message.body, {}};
        request.header.kind = FrameKind::kRequest;
        node.cast(*members, request, call);
        drive_until(runtime_.driver(), [&] { return call->complete(); });
        const std::string text = call->complete() ? reply_text(*call->reply(0)) : "no answer";
        answer.body = as_byte_span(text.data(), text.size());
        node.reply(message.header, message.from, FrameKind::kReply, answer);
        return;
      }
      default:
        break;
    }
    node.reply(message.header, message.from, FrameKind::kReply, answer);
  }
  ProcessRuntime& runtime_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<MessagePtr> queue_;
  bool ending_ = false;
  std::thread thread_;
};
struct TestFactory : CellFactory {
  std::shared_ptr<Cell> make(Node&, ActorIndex, MessagePtr) override {
    return std::make_shared<TestActor>(*runtime);
  }
  ProcessRuntime* runtime = nullptr;
};

// MONARCH_TEST_FAIL_NTH=3: the third system call of a process that the fixture starts fails, and of its forks.
inline void fail_as_environment_says() {
  const char* nth = std::getenv("MONARCH_TEST_FAIL_NTH");
  if (nth != nullptr) sys::fail_nth(std::strtoull(nth, nullptr, 10));
}

[[noreturn]] inline void give_up(const Error& why, int code) {
  log_line(why.message);
  flush_log();
  _exit(code);
}

inline std::vector<std::string> environment() {
  std::vector<std::string> env;
  for (char** at = environ; *at != nullptr; ++at) env.emplace_back(*at);
  return env;
}

// Of a host that is this program.
inline LaunchDefaults defaults_of_test() {
  LaunchDefaults defaults;
  defaults.interpreter = defaults.forkable = "/proc/self/exe";
  defaults.args = {"--worker"};
  defaults.env = environment();
  defaults.fork_server = {"/proc/self/exe", "--fork-server"};
  return defaults;
}

[[noreturn]] inline void run_worker(const Bootstrap& bootstrap, BootstrapFds fds) {
  take_up_output(fds);
  guard_register(fds[kFdGuard].get(), getpid());
  TestFactory factory;
  std::unique_ptr<ProcessRuntime> runtime;
  const auto keep = [&](std::unique_ptr<ProcessRuntime> made) {
    runtime = std::move(made);
    factory.runtime = runtime.get();
    runtime->node().set_factory(CellKind::kNative, factory);
  };
  if (auto made = ProcessRuntime::make_worker(bootstrap, std::move(fds), {}, keep); !made) give_up(made.error(), 9);
  if (Agent* agent = runtime->agent()) agent->offer(defaults_of_test());
  while (!runtime->wait_for_stop(1'000'000'000) || TestActor::ignores_stop) {
    if (TestActor::ignores_stop) pause();
  }
  _exit(0);
}

[[noreturn]] inline void run_exec_worker(int record) {
  fail_as_environment_says();
  hold_life(record);
  std::vector<int> numbers;
  auto bootstrap = read_bootstrap(record, &numbers);
  if (!bootstrap) give_up(bootstrap.error(), 8);
  BootstrapFds fds;
  for (int i = kFdRecord + 1; i < kFdCount; ++i) fds[i].reset(numbers[static_cast<size_t>(i)]);
  run_worker(*bootstrap, std::move(fds));
}

// One that the test has started itself, and that the fixture awaits.
[[noreturn]] inline void run_awaited_worker(const std::string& address) {
  auto fds = enter_launch_door(address);
  if (!fds) give_up(fds.error(), 7);
  setsid();
  const int record = (*fds)[kFdRecord].get();
  hold_life(record);
  std::vector<int> numbers;
  auto bootstrap = read_bootstrap(record, &numbers);
  if (!bootstrap) give_up(bootstrap.error(), 8);
  run_worker(*bootstrap, std::move(*fds));
}

[[noreturn]] inline void run_fork_server(int socket) {
  fail_as_environment_says();
  SystemClock clock;
  ForkServer server(socket, clock);
  server.report_ready();
  while (auto request = server.next()) {
    const pid_t pid = fork();
    if (pid == 0) {
      ::close(socket);
      leave_fork_server();
      setsid();
      hold_life(request->fds[kFdRecord].get());
      std::vector<int> numbers;
      auto bootstrap = read_bootstrap(request->fds[kFdRecord].get(), &numbers);
      if (!bootstrap) give_up(bootstrap.error(), 8);
      run_worker(*bootstrap, std::move(request->fds));
    }
    pid < 0 ? server.report_failed(request->node, errno) : server.report_spawned(request->node, pid);
  }
  _exit(0);
}

struct Variant {
  std::string transport;
  bool fork_server;
};

inline const auto kEveryVariant =
    ::testing::Values(Variant{"shm", false}, Variant{"shm", true}, Variant{"unix", false},
                      Variant{"unix", true});
inline std::string name_of_variant(const ::testing::TestParamInfo<Variant>& variant) {
  return variant.param.transport +
         (variant.param.fork_server ? "_fork" : "_exec");
}

// Whether this is what a shortage that sys::fail_nth() makes is told as.
inline bool names_shortage(std::string_view text) {
  for (const char* each : {"out of file descriptors", "No space left on device", "Cannot allocate memory",
                           "Resource temporarily unavailable", "Too many references"}) {
    if (text.find(each) != text.npos) return true;
  }
  return false;
}

// A script, root_, that can start workers.
class RuntimeFixture : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    ProcessRuntime::Options options;
    options.transport = GetParam().transport;
    options.arena_bytes_max = 64 << 20;
    root_ = std::move(ProcessRuntime::make_root(std::move(options))).value();
    start_fork_server();
  }
  // If there is to be one, and none runs.
  void start_fork_server() {
    if (!GetParam().fork_server || root_->host().has_fork_server()) return;
    root_->host().start_fork_server({"/proc/self/exe", "--fork-server"}, environment());
  }
  void TearDown() override {
    if (root_) root_->shutdown(0);
  }
  std::vector<Host::Launch> launches(int count) {
    std::vector<Host::Launch> made;
    for (int i = 0; i < count; ++i) {
      Host::Launch launch;
      launch.use_fork_server = GetParam().fork_server;
      launch.argv = {"/proc/self/exe", "--worker"};
      launch.env = environment();
      launch.label = "rank " + std::to_string(i);
      made.push_back(std::move(launch));
    }
    return made;
  }
  std::vector<NodeId> spawn(int count) { return root_->host().spawn(launches(count)).value(); }
  // One actor on each node. A node may be down already; then the calls say why.
  std::shared_ptr<const Members> actors(const std::vector<NodeId>& nodes) {
    auto members = std::make_shared<Members>();
    for (NodeId node : nodes) {
      const ActorId id{node, root_->node().new_actor_index()};
      Outgoing spawn{FrameHeader{}, {}, {}};
      spawn.header.kind = FrameKind::kSpawn;
      spawn.header.dest = id.index;
      spawn.header.method = static_cast<uint32_t>(CellKind::kNative);
      std::string why;
      root_->node().send(node, spawn, &why);
      members->ids.push_back(id);
    }
    return members;
  }
  std::shared_ptr<PendingCall> call(const std::shared_ptr<const Members>& members, Method method,
                                    std::string_view body = "x") {
    return call_from(*root_, members, method, body);
  }
  static std::shared_ptr<PendingCall> call_from(ProcessRuntime& caller, const std::shared_ptr<const Members>& members,
                                                Method method, std::string_view body = "x",
                                                std::string_view part = {}) {
    auto pending = std::make_shared<PendingCall>(members);
    const ByteSpan beside = as_byte_span(part.data(), part.size());
    const std::span<const ByteSpan> parts(&beside, part.empty() ? 0 : 1);
    Outgoing request{FrameHeader{}, as_byte_span(body.data(), body.size()), parts};
    request.header.kind = FrameKind::kRequest;
    request.header.method = method;
    caller.node().cast(*members, request, pending);
    return pending;
  }
  static bool has_part(const Message& answer, std::string_view part) {
    return answer.parts.size() == 1 && answer.parts[0].size == part.size() &&
           std::memcmp(answer.parts[0].data, part.data(), part.size()) == 0;
  }
  static std::shared_ptr<const Members> only(const Members& members, size_t rank) {
    auto one = std::make_shared<Members>();
    one->ids = {members.ids[rank]};
    return one;
  }
  bool wait(const std::shared_ptr<PendingCall>& pending) {
    return drive_until(root_->driver(), [&] { return pending->complete(); });
  }
  // A worker may answer before the host has heard its number.
  pid_t pid_of(NodeId node) {
    MONARCH_CHECK(drive_until(root_->driver(), [&] { return root_->host().pid_of(node) != -1; }));
    return root_->host().pid_of(node);
  }
  std::string text(const std::shared_ptr<PendingCall>& pending, uint32_t rank = 0) {
    if (!wait(pending)) return "no answer";
    return (reply_text(*pending->reply(rank)));
  }

  std::unique_ptr<ProcessRuntime> root_;
};

// Does not return in a process that the fixture has started.
inline void run_if_worker(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--worker") run_exec_worker(atoi(argv[2]));
  if (argc == 3 && std::string_view(argv[1]) == "--door") run_awaited_worker(argv[2]);
  if (argc == 3 && std::string_view(argv[1]) == "--fork-server") run_fork_server(atoi(argv[2]));
}

}  // namespace monarch::testing
