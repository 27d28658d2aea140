// Processes that somebody else than the host object starts: here the test itself, with this test program.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "monarch/host/start/host_dial.h"
#include "monarch/testing/runtime_fixture.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

class Launched : public RuntimeFixture {
 protected:
  void TearDown() override {
    RuntimeFixture::TearDown();
    for (const pid_t pid : started_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  NodeId await_one() {
    auto wanted = launches(1);
    wanted[0].is_awaited = true;
    wanted[0].use_fork_server = false;
    return root_->host().spawn(wanted).value()[0];
  }
  std::string address_of(NodeId node) { return launch_door_address(root_->host().door_path(), node); }
  pid_t start(NodeId node) {
    const std::string address = address_of(node);
    drive_until(root_->driver(), [&] { return access(root_->host().door_path().c_str(), F_OK) == 0; });
    const pid_t pid = fork();
    if (pid == 0) {
      execl("/proc/self/exe", "test", "--door", address.c_str(), nullptr);
      _exit(100);
    }
    started_.push_back(pid);
    return pid;
  }
  int status_of(pid_t pid) {
    std::erase(started_, pid);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string why(NodeId node) {
    if (!drive_until(root_->driver(), [&] { return root_->node().is_down(node); })) return "it lives";
    return text(call(actors({node}), kEcho));
  }
  static LaunchNews exited(int code, std::string text) {
    LaunchNews news;
    news.status.known = true;
    news.status.code = code;
    news.text = std::move(text);
    return news;
  }
  std::vector<pid_t> started_;
};

INSTANTIATE_TEST_SUITE_P(Transports, Launched, ::testing::Values(Variant{"shm", false}, Variant{"unix", false}),
                         name_of_variant);

TEST_P(Launched, IsAWorkerLikeAnyOther) {
  const NodeId node = await_one();
  const auto members = actors({node});
  const auto early = call(members, kEcho, "before it is there");
  const pid_t pid = start(node);
  EXPECT_EQ(text(early), "before it is there");
  EXPECT_EQ(pid_of(node), pid);
  const auto others = actors(spawn(1));
  const auto& id = others->ids[0];
  EXPECT_EQ(text(call(members, kCallOther, {reinterpret_cast<const char*>(&id), sizeof id})).size(), sizeof id);
}

TEST_P(Launched, ItsSocketIsThisUsersAloneAndGoesWithTheRuntime) {
  const NodeId node = await_one();
  start(node);
  ASSERT_EQ(text(call(actors({node}), kEcho)), "x");
  const std::string path = root_->host().door_path();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  root_->shutdown(1'000'000'000);
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST_P(Launched, ASecondOneIsRefused) {
  const NodeId node = await_one();
  start(node);
  ASSERT_EQ(text(call(actors({node}), kEcho)), "x");
  EXPECT_EQ(status_of(start(node)), 7);
  EXPECT_EQ(text(call(actors({node}), kEcho, "lives")), "lives");
}

TEST_P(Launched, ItsDeathIsSeenByItself) {
  const NodeId node = await_one();
  start(node);
  const auto members = actors({node});
  ASSERT_EQ(text(call(members, kEcho)), "x");
  const std::string told = text(call(members, kKillSelf));
  EXPECT_NE(told.find("Killed(sig=9)"), std::string::npos) << told;
}

TEST_P(Launched, ItsDeathIsToldOnceWithWhatItsLauncherSays) {
  const NodeId node = await_one();
  const pid_t pid = start(node);
  const auto members = actors({node});
  ASSERT_EQ(text(call(members, kEcho)), "x");
  const char code = 3;
  const auto pending = call(members, kExit, {&code, 1});
  EXPECT_EQ(status_of(pid), 3);
  root_->host().hear_news(node, exited(3, "the container was evicted"));
  EXPECT_NE(text(pending).find("exited with non-zero code 3"), std::string::npos) << text(pending);
  EXPECT_NE(why(node).find("its launcher says: the container was evicted"), std::string::npos) << why(node);
}

TEST_P(Launched, AWrongReportOfItsEndChangesNothing) {
  const NodeId node = await_one();
  start(node);
  const auto members = actors({node});
  ASSERT_EQ(text(call(members, kEcho)), "x");
  root_->host().hear_news(node, exited(3, "wrong"));
  EXPECT_FALSE(drive_until(root_->driver(), [&] { return root_->node().is_down(node); }, 500'000'000));
  EXPECT_EQ(text(call(members, kEcho, "lives")), "lives");
}

TEST_P(Launched, OneThatEndsBeforeItIsThereIsToldSo) {
  const NodeId node = await_one();
  LaunchNews news = exited(125, "no such image");
  news.tail = "docker: not found";
  root_->host().hear_news(node, news);
  const std::string told = why(node);
  EXPECT_NE(told.find("could not be started"), std::string::npos) << told;
  EXPECT_NE(told.find("exited with code 125; no such image"), std::string::npos) << told;
  EXPECT_NE(told.find("docker: not found"), std::string::npos) << told;
  EXPECT_EQ(status_of(start(node)), 7);
}

TEST_P(Launched, OneThatIsLateIsGivenUpAndOneThatIsThereIsNot) {
  const NodeId late = await_one(), there = await_one();
  start(there);
  ASSERT_EQ(text(call(actors({there}), kEcho)), "x");
  for (const NodeId node : {late, there}) root_->host().hear_news(node, {.kind = LaunchNews::kLate, .text = "too late"});
  EXPECT_NE(why(late).find("too late"), std::string::npos) << why(late);
  EXPECT_EQ(text(call(actors({there}), kEcho, "lives")), "lives");
}

TEST_P(Launched, WhenItsLauncherFailsItEnds) {
  const NodeId node = await_one();
  const pid_t pid = start(node);
  ASSERT_EQ(text(call(actors({node}), kEcho)), "x");
  root_->host().hear_news(node, {.kind = LaunchNews::kFailed, .text = "its launcher has failed"});
  EXPECT_NE(why(node).find("was ended because its launcher has failed"), std::string::npos) << why(node);
  EXPECT_EQ(status_of(pid), -SIGKILL);
}

TEST_P(Launched, OneThatIsStoppedBeforeItIsThereIsRefused) {
  const NodeId node = await_one();
  std::atomic<bool> stopped{false};
  root_->host().stop({node}, "not wanted", 10'000'000'000, [&] { stopped = true; });
  ASSERT_TRUE(drive_until(root_->driver(), [&] { return stopped.load(); }));
  EXPECT_NE(why(node).find("stopped: not wanted"), std::string::npos) << why(node);
  EXPECT_EQ(status_of(start(node)), 7);
}

TEST_P(Launched, WhoComesWithNonsenseIsRefused) {
  const NodeId node = await_one();
  drive_until(root_->driver(), [&] { return access(root_->host().door_path().c_str(), F_OK) == 0; });
  sockaddr_un address;
  const auto size = socket_address(root_->host().door_path(), address).value();
  for (const std::string& nonsense : {std::string("GET / HTTP/1.0"), std::string("m"), std::string(9, '\0')}) {
    const UniqueFd socket(sys::make_socket(AF_UNIX, SOCK_SEQPACKET));
    ASSERT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ASSERT_EQ(send(socket.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL), static_cast<ssize_t>(nonsense.size()));
    char answer[256];
    const ssize_t got = recv(socket.get(), answer, sizeof answer, 0);
    EXPECT_EQ(std::string(answer, static_cast<size_t>(std::max<ssize_t>(got, 0))), "nnot a process of a mesh");
  }
  start(node);
  EXPECT_EQ(text(call(actors({node}), kEcho)), "x");
}

TEST_P(Launched, AnAddressThatIsNoneIsRefused) {
  for (const char* text : {"", "#", "/tmp/x", "/tmp/x#", "/tmp/x#zz", "/tmp/x#1 ", "#1"}) {
    const auto entered = enter_launch_door(text);
    ASSERT_FALSE(entered.ok()) << text;
  }
  const auto entered = enter_launch_door("/nowhere/launch.sock#00ab");
  ASSERT_FALSE(entered.ok());
  EXPECT_EQ(entered.error().code, ErrorCode::kClosed);
  EXPECT_NE(entered.error().message.find("nobody waits for it there"), std::string::npos) << entered.error().message;
}

}  // namespace
}  // namespace monarch
