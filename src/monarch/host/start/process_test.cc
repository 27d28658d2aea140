#include "monarch/host/start/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <thread>

#include "monarch/base/system.h"
#include "monarch/host/start/guard.h"

namespace monarch {
namespace {

Result<Process> run_shell(const std::string& script, ProcessSpec spec = {}) {
  spec.argv = {"/bin/sh", "-c", script};
  return start_process(spec);
}

bool ends(const Process& process, int limit_ms = 5000) {
  pollfd fd{process.pidfd.get(), POLLIN, 0};
  return poll(&fd, 1, limit_ms) == 1;
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[256];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(count));
  return text;
}

TEST(Process, TellsExitCodeAndSignal) {
  auto process = run_shell("exit 3");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(ends(*process));
  EXPECT_EQ(describe(reap(*process)), "exited with code 3");
  process = run_shell("kill -SEGV $$");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(ends(*process));
  const ExitStatus status = reap(*process);
  EXPECT_TRUE(status.known);
  EXPECT_EQ(status.signal, SIGSEGV);
}

TEST(Process, HasTheNumberThatItsReaderSees) {
  auto process = run_shell("sleep 100");
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(pid_behind(process->pidfd), process->pid);
  signal_process(*process, SIGKILL);
  ASSERT_TRUE(ends(*process));
  EXPECT_EQ(pid_behind(process->pidfd), process->pid) << "nobody has reaped it";
  reap(*process);
  EXPECT_EQ(pid_behind(process->pidfd), std::nullopt);
  EXPECT_EQ(pid_behind(UniqueFd()), std::nullopt);
}

// ThreadSanitizer makes a fork of a vfork, and blocks signals in it.
#ifdef __SANITIZE_THREAD__
#define SKIP_WITHOUT_VFORK() GTEST_SKIP() << "no vfork under ThreadSanitizer"
#else
#define SKIP_WITHOUT_VFORK() (void)0
#endif

TEST(Process, SaysWhyAProgramCannotBeRun) {
  SKIP_WITHOUT_VFORK();
  ProcessSpec spec;
  spec.argv = {"/no/such/program"};
  auto process = start_process(spec);
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.error().message, "cannot run /no/such/program: No such file or directory");
  process = run_shell("exit 0", {.program = {}, .argv = {}, .env = {}, .keep_fds = {}, .cwd = "/no/such/folder"});
  EXPECT_FALSE(process.ok());
}

TEST(Process, IsToldTheNameThatItsFirstArgumentSays) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ProcessSpec spec;
  spec.program = "/bin/sh";
  spec.argv = {"a-shell-of-another-name", "-c", "echo $0 >&" + std::to_string(out[1])};
  spec.keep_fds = {out[1]};
  auto process = start_process(spec);
  ::close(out[1]);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(read_to_end(out[0]), "a-shell-of-another-name\n");
  ::close(out[0]);
  ASSERT_TRUE(ends(*process));
  reap(*process);
}

TEST(Process, GivesEnvironmentFolderAndTheWantedDescriptorsOnly) {
  int kept[2], other[2];
  ASSERT_EQ(pipe2(kept, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(other, O_CLOEXEC), 0);
  ProcessSpec spec;
  spec.env = {"COLOUR=green"};
  spec.cwd = "/usr";
  spec.keep_fds = {kept[1]};
  const std::string fd = std::to_string(kept[1]);
  auto process = run_shell("echo \"$COLOUR $HOME $PWD $(cd /proc/$$/fd && echo *)\" >&" + fd, std::move(spec));
  ::close(kept[1]);
  ASSERT_TRUE(process.ok());
  const std::string text = read_to_end(kept[0]);
  EXPECT_EQ(text.rfind("green  /usr ", 0), 0u) << text;
  EXPECT_EQ((" " + text).find(" " + std::to_string(other[0]) + " "), std::string::npos) << text;
  ASSERT_TRUE(ends(*process));
  reap(*process);
  ::close(kept[0]);
  ::close(other[0]);
  ::close(other[1]);
}

TEST(Process, IsTakenByTheOomKillerBeforeItsParentWhereThatIsWanted) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ProcessSpec spec;
  spec.keep_fds = {out[1]};
  spec.oom_score = raised_oom_score(7);
  EXPECT_EQ(raised_oom_score(2000), "1000") << "the most there is";
  auto process = run_shell("cat /proc/self/oom_score_adj >&" + std::to_string(out[1]), std::move(spec));
  ::close(out[1]);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(read_to_end(out[0]), raised_oom_score(7) + "\n");
  ASSERT_TRUE(ends(*process));
  reap(*process);
  ::close(out[0]);
}

TEST(Process, LeadsASessionWithNothingBlockedOrIgnored) {
  SKIP_WITHOUT_VFORK();
  signal(SIGUSR2, SIG_IGN);
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ProcessSpec spec;
  spec.keep_fds = {out[1]};
  const std::string fd = std::to_string(out[1]);
  auto process = run_shell("exec grep -E '^Sig(Blk|Ign)|^NSsid' /proc/self/status >&" + fd, std::move(spec));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  signal(SIGUSR2, SIG_DFL);
  ::close(out[1]);
  ASSERT_TRUE(process.ok());
  const std::string text = read_to_end(out[0]);
  ::close(out[0]);
  EXPECT_NE(text.find("SigBlk:\t0000000000000000"), std::string::npos) << text;
  // Signals 32 and 33 are glibc's own: sigaction() refuses them, so what was inherited for them stays.
  const size_t ignored = text.find("SigIgn:\t");
  ASSERT_NE(ignored, std::string::npos) << text;
  EXPECT_EQ(std::stoull(text.substr(ignored + 8), nullptr, 16) & ~uint64_t{0x180000000}, 0u) << text;
  EXPECT_NE(text.find("NSsid:\t" + std::to_string(process->pid)), std::string::npos) << text;
  ASSERT_TRUE(ends(*process));
  reap(*process);
}

TEST(Process, DiesWithTheThreadThatStartedIt) {
  SKIP_WITHOUT_VFORK();
  Process process;
  std::thread([&] { process = std::move(*run_shell("exec sleep 60")); }).join();
  ASSERT_TRUE(ends(process));
  EXPECT_EQ(reap(process).signal, SIGKILL);
}

TEST(Process, ReapEndsWhatItLeftInItsGroup) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ProcessSpec spec;
  spec.keep_fds = {out[1]};
  auto process = run_shell("sleep 60 & exit 0", std::move(spec));  // the sleeper holds the pipe
  ::close(out[1]);
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(ends(*process));
  reap(*process);
  pollfd fd{out[0], POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 5000), 1) << "the grandchild lives";
  ::close(out[0]);
}

TEST(Process, ASignalByPidfdReachesNobodyElse) {
  auto process = run_shell("exec sleep 60");
  ASSERT_TRUE(process.ok());
  EXPECT_FALSE(read_exit_status(*process).known);
  signal_process(*process, SIGKILL);
  ASSERT_TRUE(ends(*process));
  EXPECT_EQ(read_exit_status(*process).signal, SIGKILL);  // a zombie says it to anybody
  const auto status = try_reap(*process);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->signal, SIGKILL);
  EXPECT_FALSE(signal_process(*process, SIGKILL));  // whoever has its number now
  EXPECT_FALSE(read_exit_status(*process).known);
}

TEST(Process, AShortageIsToldAsThatAndLeavesNothing) {
  SKIP_WITHOUT_VFORK();
  for (uint64_t nth = 1; nth <= 2; ++nth) {
    sys::fail_nth(nth);
    auto process = run_shell("exec sleep 60");
    ASSERT_FALSE(process.ok());
    EXPECT_EQ(process.error().message.rfind(nth == 1 ? "cannot start a process: " : "cannot watch a process: ", 0), 0u)
        << process.error().message;
  }
  sys::fail_nth(0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Guard, OneThatIsStoppedHoldsNobodyUp) {
  int ends_of_pipe[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_of_pipe), 0);
  int told = 0;
  while (told < 100'000 && guard_register(ends_of_pipe[1], 1234567)) ++told;
  EXPECT_LT(told, 100'000);
  EXPECT_EQ(errno, EAGAIN);
  ::close(ends_of_pipe[0]);
  ::close(ends_of_pipe[1]);
}

TEST(Guard, KillsRegisteredGroupsWhenEveryWriterIsGoneButNotTheForgotten) {
  int ends_of_pipe[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_of_pipe), 0);
  ProcessSpec spec;
  spec.argv = {MONARCH_GUARD_PROGRAM, std::to_string(ends_of_pipe[0])};
  spec.keep_fds = {ends_of_pipe[0]};
  auto guard = start_process(spec);
  ::close(ends_of_pipe[0]);
  ASSERT_TRUE(guard.ok()) << guard.error().message;
  auto registered = run_shell("sleep 60 & wait"), forgotten = run_shell("exec sleep 60");
  ASSERT_TRUE(registered.ok() && forgotten.ok());
  const int second_writer = fcntl(ends_of_pipe[1], F_DUPFD_CLOEXEC, 3);
  guard_register(ends_of_pipe[1], registered->pid);
  guard_register(second_writer, forgotten->pid);
  guard_forget(ends_of_pipe[1], forgotten->pid);
  ::close(ends_of_pipe[1]);
  EXPECT_FALSE(ends(*registered, 20));  // one writer is left
  ::close(second_writer);
  ASSERT_TRUE(ends(*registered));
  ASSERT_TRUE(ends(*guard));
  EXPECT_EQ(reap(*guard).code, 0);
  EXPECT_EQ(reap(*registered).signal, SIGKILL);
  EXPECT_FALSE(ends(*forgotten, 0));
  kill(forgotten->pid, SIGKILL);
  reap(*forgotten);
}

TEST(Guard, TakesTheTokenFileAwayAndItsFolderIfThatIsEmpty) {
  for (const bool other_job : {false, true}) {
    char folder[] = "/tmp/monarch-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    const std::string token = std::string(folder) + "/token", other = std::string(folder) + "/other";
    for (const std::string& path : {token, other}) {
      if (path == token || other_job) ::close(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    int ends_of_pipe[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_of_pipe), 0);
    ProcessSpec spec;
    spec.argv = {MONARCH_GUARD_PROGRAM, std::to_string(ends_of_pipe[0]), token};
    spec.keep_fds = {ends_of_pipe[0]};
    auto guard = start_process(spec);
    ::close(ends_of_pipe[0]);
    ASSERT_TRUE(guard.ok()) << guard.error().message;
    EXPECT_FALSE(ends(*guard, 20));
    EXPECT_EQ(access(token.c_str(), F_OK), 0);
    ::close(ends_of_pipe[1]);
    ASSERT_TRUE(ends(*guard));
    EXPECT_EQ(reap(*guard).code, 0);
    EXPECT_NE(access(token.c_str(), F_OK), 0);
    EXPECT_EQ(access(folder, F_OK) == 0, other_job);
    EXPECT_EQ(access(other.c_str(), F_OK) == 0, other_job);
    unlink(other.c_str());
    rmdir(folder);
  }
}

TEST(Guard, ItsDeathOrItsAbsenceCostsNobodyAnything) {
  int ends_of_pipe[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_of_pipe), 0);
  ::close(ends_of_pipe[0]);
  guard_register(ends_of_pipe[1], 1234567);  // no SIGPIPE
  ::close(ends_of_pipe[1]);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  guard_register(null, 1234567);
  ::close(null);
}

}  // namespace
}  // namespace monarch
