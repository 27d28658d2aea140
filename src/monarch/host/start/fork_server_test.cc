// What a new process is given, and the fork server's protocol.
#include "monarch/host/start/fork_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"
#include "monarch/testing/runtime_fixture.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

TEST(ForkServer, ReportsWhatItStartsAndHowThatEnds) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const pid_t server_pid = fork();
  if (server_pid == 0) {
    ::close(pair[0]);
    SystemClock clock;
    ForkServer server(pair[1], clock);
    server.report_ready();
    while (auto request = server.next()) {
      if (request->node == 13) {
        server.report_failed(13, EAGAIN);
        continue;
      }
      const pid_t pid = fork();
      if (pid == 0) {
        char code = 0;
        if (read(request->fds[kFdSocket].get(), &code, 1) != 1) _exit(99);
        if (code == 'k') raise(SIGKILL);
        _exit(code);
      }
      server.report_spawned(request->node, pid);
    }
    _exit(0);
  }
  ::close(pair[1]);
  UniqueFd pidfd;
  auto next = [&] {
    pollfd fd{pair[0], POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, 5000), 1);
    return receive_fork_report(pair[0], &pidfd).value();
  };
  EXPECT_EQ(next().kind, ForkReport::kReady);
  for (const char code : {char(7), 'k'}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
    std::array<int, kFdCount> fds;
    fds.fill(pipe_ends[0]);
    ASSERT_TRUE(send_fork_request(pair[0], 42, fds));
    ForkReport report = next();
    EXPECT_EQ(report.kind, ForkReport::kSpawned);
    EXPECT_EQ(report.node, 42u);
    ASSERT_TRUE(pidfd);  // whose else could it be: only the server reaps it
    EXPECT_TRUE(signal_process(Process{report.pid, std::move(pidfd)}, 0));
    ASSERT_EQ(write(pipe_ends[1], &code, 1), 1);
    const int pid = report.pid;
    report = next();
    EXPECT_EQ(report.kind, ForkReport::kExited);
    EXPECT_EQ(report.pid, pid);
    EXPECT_EQ(report.code, code == 'k' ? 0 : 7);
    EXPECT_EQ(report.signal, code == 'k' ? SIGKILL : 0);
    std::array<int, kFdCount> more;
    more.fill(pipe_ends[0]);
    ASSERT_TRUE(send_fork_request(pair[0], 13, more));
    report = next();
    EXPECT_EQ(report.kind, ForkReport::kFailed);
    EXPECT_EQ(report.signal, EAGAIN);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
  }
  ::close(pair[0]);
  int status;
  ASSERT_EQ(waitpid(server_pid, &status, 0), server_pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// What leads a session of its own is out of reach of the guard and of the kill of a group, but not of a subreaper.
TEST(ForkServer, EndsWithAllThatItsWorkersHaveLeft) {
  for (const bool by_signal : {false, true}) {
    UniqueFd pair[2], alive[2];
    ASSERT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, pair));
    ASSERT_TRUE(sys::make_pipe(alive));  // its end: everybody has gone
    const pid_t server_pid = fork();
    if (server_pid == 0) {
      pair[0].reset();
      alive[0].reset();
      SystemClock clock;
      ForkServer server(pair[1].get(), clock);
      const pid_t worker = fork();
      if (worker == 0) {
        if (fork() == 0) {
          setsid();
          if (fork() == 0) setsid();
          for (;;) pause();
        }
        _exit(0);
      }
      server.report_spawned(7, worker);
      while (server.next()) {
      }
      _exit(0);
    }
    pair[1].reset();
    alive[1].reset();
    ForkReport report;
    for (UniqueFd ignored; report.kind != ForkReport::kExited;) {
      pollfd fd{pair[0].get(), POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, 5000), 1);
      report = receive_fork_report(pair[0].get(), &ignored).value();
    }
    pollfd fd{alive[0].get(), POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, 20), 0);
    by_signal ? static_cast<void>(kill(server_pid, SIGTERM)) : pair[0].reset();
    EXPECT_EQ(poll(&fd, 1, 5000), 1) << "somebody lives";
    int status;
    ASSERT_EQ(waitpid(server_pid, &status, 0), server_pid);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

// It cannot be reaped before its debugger has looked at its end, which may be never.
TEST(ForkServer, DoesNotWaitForTheDebuggerOfWhatIsDead) {
  UniqueFd pair[2];
  ASSERT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, pair));
  const pid_t server_pid = fork();
  if (server_pid == 0) {
    pair[0].reset();
    SystemClock clock;
    become_subreaper(clock);
    const pid_t worker = fork();
    if (worker == 0) {
      for (;;) pause();
    }
    char byte;
    static_cast<void>(!write(pair[1].get(), &worker, sizeof worker));
    static_cast<void>(!read(pair[1].get(), &byte, 1));
    end_descendants();
    _exit(0);
  }
  pid_t worker = -1;
  ASSERT_EQ(read(pair[0].get(), &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  const bool traced = ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) == 0;
  const int64_t began_ns = monotonic_ns();
  ASSERT_EQ(write(pair[0].get(), "x", 1), 1);
  int status;
  ASSERT_EQ(waitpid(server_pid, &status, 0), server_pid);
  const int64_t took_ns = monotonic_ns() - began_ns;
  if (!traced) GTEST_SKIP() << "ptrace is not allowed here";
  EXPECT_EQ(waitpid(worker, &status, 0), worker);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_LT(took_ns, 1'500'000'000) << "it has waited until its own limit";
}

// Its first thread may have ended long before the last one does, and only then are its children left to others.
TEST(ForkServer, WaitsForTheLastThreadOfWhatItHasKilled) {
  UniqueFd pair[2];
  ASSERT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET, pair));
  static int told;
  told = pair[1].get();
  const pid_t server_pid = fork();
  if (server_pid == 0) {
    pair[0].reset();
    SystemClock clock;
    become_subreaper(clock);
    if (fork() == 0) {
      pthread_t thread;
      pthread_create(&thread, nullptr, [](void*) -> void* {
        pid_t ids[] = {static_cast<pid_t>(syscall(SYS_gettid)), fork()};
        if (ids[1] == 0) {
          setsid();
          for (;;) pause();
        }
        static_cast<void>(!write(told, ids, sizeof ids));
        for (;;) pause();
      }, nullptr);
      for (;;) pause();
    }
    char byte;
    static_cast<void>(!read(pair[1].get(), &byte, 1));
    end_descendants();
    _exit(0);
  }
  pid_t ids[2] = {};
  ASSERT_EQ(read(pair[0].get(), ids, sizeof ids), static_cast<ssize_t>(sizeof ids));
  const pid_t thread = ids[0];
  const bool traced = ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXIT) == 0;
  const UniqueFd server = sys::open_pidfd(server_pid), kin = sys::open_pidfd(ids[1]);
  pollfd gone{kin.get(), POLLIN, 0};
  ASSERT_EQ(write(pair[0].get(), "x", 1), 1);
  int status;
  if (traced) {
    EXPECT_EQ(waitpid(thread, &status, __WALL), thread);
    EXPECT_EQ(status >> 16, PTRACE_EVENT_EXIT);
    pollfd fd{server.get(), POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, 300), 0) << "it has gone while a thread was there";
    ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  }
  EXPECT_EQ(waitpid(server_pid, &status, 0), server_pid);
  EXPECT_EQ(poll(&gone, 1, 0), 1) << "it lives";
  if (!traced) GTEST_SKIP() << "ptrace is not allowed here";
}

constexpr int kNoNamespaces = 77;

// The first process of a namespace whose /proc is that of another one. There the processes 3 and 4 are children of 2; here
// 2 is a server, 3 its child, and 4 has nothing to do with it. The exit status: whether that one has ended.
[[noreturn]] void be_first_inside() {
  UniqueFd ready[2], go[2];
  if (!sys::make_pipe(ready) || !sys::make_pipe(go)) _exit(kNoNamespaces);
  char byte;
  const pid_t server = fork();
  if (server == 0) {
    SystemClock clock;
    become_subreaper(clock);
    if (fork() == 0) {
      for (;;) pause();
    }
    static_cast<void>(!write(ready[1].get(), "x", 1));
    static_cast<void>(!read(go[0].get(), &byte, 1));
    end_descendants();
    _exit(0);
  }
  static_cast<void>(!read(ready[0].get(), &byte, 1));
  const pid_t stranger = fork();
  if (stranger == 0) {
    for (;;) pause();
  }
  if (server != 2 || stranger != 4) _exit(kNoNamespaces);
  const UniqueFd end = sys::open_pidfd(stranger);
  static_cast<void>(!write(go[1].get(), "x", 1));
  waitpid(server, nullptr, 0);
  pollfd ended{end.get(), POLLIN, 0};
  _exit(poll(&ended, 1, 100));
}

// The first process of the other one.
[[noreturn]] void be_first_outside() {
  const bool made = mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                    mount("proc", "/proc", "proc", 0, nullptr) == 0;
  UniqueFd ready[2];
  if (!made || !sys::make_pipe(ready)) _exit(kNoNamespaces);
  if (fork() == 0) {
    for (int i = 0; i < 2; ++i) {
      if (fork() == 0) {
        for (;;) pause();
      }
    }
    static_cast<void>(!write(ready[1].get(), "x", 1));
    for (;;) pause();
  }
  char byte;
  if (read(ready[0].get(), &byte, 1) != 1 || unshare(CLONE_NEWPID) != 0) _exit(kNoNamespaces);
  const pid_t inside = fork();
  if (inside == 0) be_first_inside();
  int status = 0;
  waitpid(inside, &status, 0);
  _exit(WEXITSTATUS(status));
}

TEST(ForkServer, EndsNobodyByNumbersOfAnotherNamespace) {
  const pid_t maker = fork();
  if (maker == 0) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) _exit(kNoNamespaces);
    const pid_t outside = fork();
    if (outside == 0) be_first_outside();
    int status = 0;
    waitpid(outside, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(waitpid(maker, &status, 0), maker);
  if (WEXITSTATUS(status) == kNoNamespaces) GTEST_SKIP() << "this kernel, or this user, makes no namespaces";
  EXPECT_EQ(status, 0) << "it was killed";
}

TEST(Bootstrap, SurvivesTheWayThroughItsDescriptor) {
  Bootstrap out;
  SystemRandom random;
  out.key = NodeKey::make(random);
  out.parent = 6;
  out.parent_pid = 7;
  out.transport = "shm";
  out.address = "an address";
  out.payload = std::string(100'000, 'p');
  auto fd = write_bootstrap(out, {1, 2, 3});
  ASSERT_TRUE(fd.ok());
  std::vector<int> numbers;
  auto in = read_bootstrap(fd->get(), &numbers);
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in->key.id(), out.key.id());
  EXPECT_EQ(in->transport, out.transport);
  EXPECT_EQ(in->address, out.address);
  EXPECT_EQ(in->payload, out.payload);
  EXPECT_EQ(numbers, (std::vector<int>{1, 2, 3}));
  UniqueFd null(open("/dev/null", O_RDONLY));
  EXPECT_FALSE(read_bootstrap(null.get(), &numbers).ok());
}

}  // namespace
}  // namespace monarch
