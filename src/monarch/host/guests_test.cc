// Two jobs on one machine: a script with workers, and other scripts that are given handles to them. All scripts live in
// this process; the workers do not.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/actor/calls.h"
#include "monarch/testing/runtime_fixture.h"

namespace monarch {
namespace {

using namespace testing;  // NOLINT: the fixture

size_t entries(const std::string& folder) {
  const std::filesystem::directory_iterator begin(folder), end;
  return static_cast<size_t>(std::distance(begin, end));
}

class Guests : public RuntimeFixture {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/monarch-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    setenv("XDG_RUNTIME_DIR", folder, 1);
    RuntimeFixture::SetUp();
    guest_ = new_script();
  }
  void TearDown() override {
    if (guest_) guest_->shutdown(0);
    RuntimeFixture::TearDown();
    EXPECT_EQ(entries(folder_), 0u) << "something is left in the runtime folder";
    std::filesystem::remove_all(folder_);
    unsetenv("XDG_RUNTIME_DIR");
  }
  static std::unique_ptr<ProcessRuntime> new_script() {
    ProcessRuntime::Options options;
    options.transport = GetParam().transport;
    options.arena_bytes_max = 64 << 20;
    return std::move(ProcessRuntime::make_root(std::move(options))).value();
  }
  static std::vector<NodeId> nodes_of(const Members& members) {
    std::vector<NodeId> nodes;
    for (const ActorId& id : members.ids) nodes.push_back(id.node);
    return nodes;
  }
  bool publish() {
    const auto call = root_->publish();
    return wait(call) && root_->why_not_published(*call).empty();
  }
  // What somebody does who has been given a handle of the script's job.
  static Status introduce(ProcessRuntime& guest, const std::string& job, const std::vector<NodeId>& nodes) {
    auto call = guest.introduce(job, nodes);
    if (!call) return call.error();
    if (*call == nullptr) return Ok{};
    if (!drive_until(guest.driver(), [&] { return (*call)->complete(); })) return Error{ErrorCode::kDeadline, "hangs"};
    guest.note_answer(**call, nodes);
    return Ok{};
  }
  // Of a call from the guest: what was sent comes back whole, or somebody says that there was no memory for it.
  void expect_echo_or_no_memory(const std::shared_ptr<const Members>& members, const std::string& large) {
    try {
      const auto answer = call_from(*guest_, members, kEcho, "large", large);
      const std::string text = text_at_guest(answer);
      if (text.find("memory") != std::string::npos) return;
      EXPECT_EQ(text, "large");
      EXPECT_TRUE(answer->complete() && has_part(*answer->reply(0), large));
    } catch (const std::bad_alloc&) {  // it was this process, which says so at once
    }
  }
  std::string text_at_guest(const std::shared_ptr<PendingCall>& pending, uint32_t rank = 0) {
    if (!drive_until(guest_->driver(), [&] { return pending->complete(); })) return "no answer";
    return (reply_text(*pending->reply(rank)));
  }
  // Workers, published, that the guest may call.
  std::shared_ptr<const Members> shared_actors(int count) {
    auto members = actors(spawn(count));
    MONARCH_CHECK(publish() && introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
    return members;
  }
  std::string token_path() const { return JobAddress::parse(root_->job_address())->token_path(); }
  std::string job_name() const { return JobAddress::parse(root_->job_address())->name(); }

  std::string folder_;
  std::unique_ptr<ProcessRuntime> guest_;
};

TEST_P(Guests, CallWorkersOfAnotherJob) {
  const auto members = shared_actors(2);
  EXPECT_EQ(text_at_guest(call_from(*guest_, members, kEcho, "hello"), 1), "hello");
  const std::string large(3 << 20, 'x');  // through the arena, both ways
  const auto answer = call_from(*guest_, members, kEcho, "large", large);
  EXPECT_EQ(text_at_guest(answer), "large");
  EXPECT_TRUE(has_part(*answer->reply(0), large));
  EXPECT_EQ(text(call(members, kEcho, "and its own")), "and its own");
}

TEST_P(Guests, TheTokenIsPublishedWhenItIsAskedForAndGoneWithTheJob) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(wait(call(members, kEcho)));
  EXPECT_EQ(entries(folder_), 0u);
  EXPECT_FALSE(root_->is_published());
  ASSERT_TRUE(wait(call(members, kPublish)));  // a worker asks
  EXPECT_TRUE(root_->is_published());
  struct stat info;
  ASSERT_EQ(stat(token_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  root_->shutdown(0);
  EXPECT_EQ(entries(folder_), 0u);
}

TEST_P(Guests, ADeathReachesThemWithItsCause) {
  const auto members = shared_actors(3);
  EXPECT_NE(text_at_guest(call_from(*guest_, only(*members, 1), kKillSelf)).find("Killed(sig=9) (rank 1, pid "),
            std::string::npos);
  EXPECT_NE(text_at_guest(call_from(*guest_, only(*members, 1), kEcho)).find("Killed(sig=9)"), std::string::npos);
  EXPECT_EQ(text_at_guest(call_from(*guest_, only(*members, 0), kEcho, "lives")), "lives");
}

TEST_P(Guests, ADeathBeforeTheyCameIsKnownToThem) {
  const auto members = actors(spawn(1));
  EXPECT_NE(text(call(members, kExit, "\5")).find("non-zero code 5"), std::string::npos);
  ASSERT_TRUE(publish());
  ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
  std::string why;
  const FailurePtr failure = guest_->node().why_down(members->ids[0].node);
  ASSERT_NE(failure, nullptr);
  why = failure->text();
  EXPECT_NE(why.find("non-zero code 5 (rank 0, pid "), std::string::npos) << why;
}

TEST_P(Guests, TheEndOfTheJobEndsTheirCallsAndAllLaterOnes) {
  const auto members = shared_actors(2);
  const auto others = actors(spawn(1));
  ASSERT_TRUE(wait(call(others, kEcho)));
  const auto pending = call_from(*guest_, members, kNeverAnswer);
  EXPECT_EQ(text_at_guest(call_from(*guest_, members, kEcho, "before")), "before");
  root_->shutdown(0);
  const std::string ended = job_name() + " has ended";
  EXPECT_EQ(text_at_guest(pending, 0), ended);
  EXPECT_EQ(text_at_guest(pending, 1), ended);
  EXPECT_EQ(text_at_guest(call_from(*guest_, members, kEcho)), ended);
  // A handle that comes only now.
  ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*others)).ok());
  EXPECT_EQ(text_at_guest(call_from(*guest_, others, kEcho)), ended);
}

TEST_P(Guests, AJobThatHadEndedBeforeIsSaidToHaveEnded) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(publish());
  root_->shutdown(0);
  ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
  EXPECT_NE(text_at_guest(call_from(*guest_, members, kEcho)).find(job_name() + " has ended"), std::string::npos);
}

TEST_P(Guests, TheirEndTouchesNobodyAndNothingOfThemStays) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(publish());
  const auto visit = [&] {
    ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
    const std::string large(1 << 20, 'x');
    ASSERT_EQ(text_at_guest(call_from(*guest_, members, kEcho, large)), large);
    guest_->shutdown(0);
    guest_.reset();
    EXPECT_EQ(text(call(members, kEcho, "still here")), "still here");
  };
  // A link that has ended is dropped when the next one comes.
  const auto settled = [&] {
    return drive_until(root_->driver(), [&] {
      for (const auto& link : root_->node().links()) {
        if (link->closed() && !link->over()) return false;
      }
      return true;
    });
  };
  visit();
  ASSERT_TRUE(settled());
  const size_t links = root_->node().links().size(), fds = entries("/proc/self/fd");
  for (int i = 0; i < testing::rounds(20, 5); ++i) {
    guest_ = new_script();
    visit();
    ASSERT_TRUE(settled());
  }
  EXPECT_LE(root_->node().links().size(), links + 1);
  EXPECT_LE(entries("/proc/self/fd"), fds + 8);
}

// Any one call, in the process of both scripts: who visits finds what it looks for, or is told of the shortage, and nobody
// is taken for dead.
TEST_P(Guests, AnyOneCallThatFailsInAVisitIsWaitedOutOrTold) {
  const std::string large(3 << 20, 'x');
  const auto members = actors(spawn(1));
  ASSERT_TRUE(publish());
  const int step = testing::short_form() ? 5 : 1;
  bool reached = true;
  for (uint64_t nth = 1; reached; nth += step) {
    SCOPED_TRACE(nth);
    sys::fail_nth(nth);
    const Status introduced = introduce(*guest_, root_->job_address(), nodes_of(*members));
    if (introduced.ok()) {
      expect_echo_or_no_memory(members, large);
    } else {
      EXPECT_TRUE(names_shortage(introduced.error().message)) << introduced.error().message;
    }
    reached = sys::calls_seen() >= nth;
    sys::fail_nth(0);
    ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
    ASSERT_EQ(text_at_guest(call_from(*guest_, members, kEcho, "well")), "well");
    ASSERT_EQ(text(call(members, kEcho, "well")), "well");
    guest_->shutdown(0);
    guest_ = new_script();
  }
}

// The same in the process that is visited.
TEST_P(Guests, AnyOneCallThatFailsInWhoIsVisitedHindersNobody) {
  const std::string large(3 << 20, 'x');
  const auto members = shared_actors(1);
  const int step = testing::short_form() ? 3 : 1;
  bool reached = true;
  for (uint64_t nth = 1; reached; nth += step) {
    SCOPED_TRACE(nth);
    ASSERT_TRUE(wait(call(members, kFailNthCall, {reinterpret_cast<const char*>(&nth), sizeof nth})));
    expect_echo_or_no_memory(members, large);
    auto counted = call(members, kCallsSeen);
    ASSERT_TRUE(wait(counted));
    uint64_t seen;
    std::memcpy(&seen, counted->reply(0)->body.data(), sizeof seen);
    reached = seen >= nth;
    guest_->shutdown(0);
    guest_ = new_script();
    ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
  }
}

TEST_P(Guests, AHandleIsRefusedWithAWordOnWhatToDo) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(publish());
  const std::vector<NodeId> nodes = nodes_of(*members);
  const auto refusal = [&](const std::string& job) {
    const Status done = introduce(*guest_, job, nodes);
    return done ? std::string("accepted") : done.error().message;
  };
  JobAddress address = *JobAddress::parse(root_->job_address());
  address.machine = "another";
  address.host = "far";
  EXPECT_NE(refusal(address.to_text()).find("on another machine or in another container"), std::string::npos);
  address = *JobAddress::parse(root_->job_address());
  address.user += 1;
  EXPECT_NE(refusal(address.to_text()).find("Use it as the same user"), std::string::npos);
  EXPECT_NE(refusal("nonsense").find("not the address of a job"), std::string::npos);

  chmod(token_path().c_str(), 0644);
  EXPECT_NE(refusal(root_->job_address()).find("is open to other users (its mode is 0644)"), std::string::npos);
  chmod(token_path().c_str(), 0600);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(token_path().c_str(), 65534, 0), 0);
    EXPECT_NE(refusal(root_->job_address()).find("belongs to the user with id 65534"), std::string::npos);
    ASSERT_EQ(chown(token_path().c_str(), 0, 0), 0);
  }
  // None of these was the last word.
  ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes).ok());
  EXPECT_EQ(text_at_guest(call_from(*guest_, members, kEcho, "welcome")), "welcome");
}

TEST_P(Guests, AWrongTokenIsRefusedByTheJobAndNamed) {
  const auto members = actors(spawn(1));
  ASSERT_TRUE(publish());
  JobToken wrong{};
  ASSERT_TRUE(write_token_file(token_path(), wrong).ok());
  ASSERT_TRUE(introduce(*guest_, root_->job_address(), nodes_of(*members)).ok());
  const std::string why = text_at_guest(call_from(*guest_, members, kEcho));
  EXPECT_NE(why.find(job_name() + " cannot be joined with the token in " + token_path()), std::string::npos) << why;
  EXPECT_EQ(text(call(members, kEcho, "unharmed")), "unharmed");
}

INSTANTIATE_TEST_SUITE_P(All, Guests, kEveryVariant, name_of_variant);

}  // namespace
}  // namespace monarch
