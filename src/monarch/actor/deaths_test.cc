#include "monarch/actor/deaths.h"

#include <gtest/gtest.h>

#include <string>

namespace monarch {
namespace {

using Kind = Deaths::EventKind;
using Do = Deaths::ActionKind;

constexpr NodeId kSelf = 1, kParent = 2, kChild = 10, kNested = 20, kOther = 30;
constexpr int64_t kSecond = 1'000'000'000;

class DeathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Failure who;
    who.label = "rank 0 of procs 'trainer'";
    deaths_.add_child(kChild, kSelf, who, 0);
    deaths_.started(kChild, 4711);
  }
  // The actions that an event brings, in words.
  std::string on(Deaths::Event event, int64_t now_ns = 0) {
    Deaths::Actions actions;
    deaths_.handle(now_ns, event, actions);
    return words(actions);
  }
  std::string tick(int64_t now_ns) {
    Deaths::Actions actions;
    deaths_.tick(now_ns, actions);
    return words(actions);
  }
  std::string words(const Deaths::Actions& actions) {
    static constexpr const char* kNames[] = {"end-links", "declare", "close-links", "tell-all", "tell-tree",
                                             "kill",      "ask",     "stop-orphan", "end-self", "report",
                                             "inquire",   "let-go"};
    std::string text;
    for (const Deaths::Action& action : actions) {
      text += (text.empty() ? "" : " ") + std::string(kNames[static_cast<int>(action.kind)]) + ":" +
              std::to_string(action.node);
      if (action.failure) last_ = action.failure;
    }
    return text;
  }
  static Deaths::Event killed(NodeId node) { return {.kind = Kind::kExited, .node = node, .status = {true, 0, 9}}; }
  static Deaths::Event link_lost(NodeId node) {
    return {.kind = Kind::kLinkLost, .node = node, .text = "the peer closed the connection"};
  }
  static Deaths::Event noticed(NodeId node, NodeId from) {
    Failure failure(Failure::Kind::kExited, "");
    failure.node = node;
    failure.status = {true, 3, 0};
    return {.kind = Kind::kNoticed, .node = node, .from = from, .failure = std::make_shared<Failure>(failure)};
  }

  Deaths deaths_{kSelf};
  FailurePtr last_;
};

TEST_F(DeathsTest, AChildIsDeclaredWhenItsStatusIsKnownAndAllThatItSentIsHere) {
  EXPECT_EQ(on(killed(kChild)), "end-links:10");
  EXPECT_EQ(on(link_lost(kChild)), "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(last_->headline(),
            "the process this actor was running on failed: Killed(sig=9) (rank 0 of procs 'trainer', pid 4711)");
  EXPECT_EQ(last_->node, kChild);
}

TEST_F(DeathsTest, WhatAHostThatEndsTakesAlongHasFailedWithIt) {
  deaths_.end_as_host("was ended with its monarch-hostd");
  ASSERT_TRUE(deaths_.stop_asked(kChild, "its monarch-hostd was ended"));
  EXPECT_EQ(on({.kind = Kind::kExited, .node = kChild, .status = {true, 0, 0}}), "end-links:10");
  EXPECT_EQ(on(link_lost(kChild)), "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(last_->kind, Failure::Kind::kExited);
  EXPECT_EQ(last_->headline(), "the host of the process this actor was running on was ended with its monarch-hostd");
  EXPECT_EQ(tick(10 * kSecond), "") << "it was to end";

  Deaths script(kOther);  // which knows what that host is called
  Failure who;
  who.label = "rank {'hosts': 1/2} of 'hosts'";
  script.add_child(kSelf, kOther, who, 0);
  script.started(kSelf, 4712);
  Deaths::Actions actions;
  script.add_hosted(kChild, kSelf, 0, actions);
  script.handle(0, {.kind = Kind::kNoticed, .node = kChild, .from = kSelf, .failure = last_}, actions);
  ASSERT_FALSE(actions.empty());
  EXPECT_EQ(words(actions).substr(0, 12), "tell-tree:10");
  EXPECT_EQ(last_->headline(),
            "the host of the process this actor was running on was ended with its monarch-hostd (rank {'hosts': 1/2} of "
            "'hosts', pid 4712)");
  EXPECT_EQ(last_->node, kChild);
}

TEST_F(DeathsTest, AHostThatHasSaidWhyItEndsHasEndedSoThoughItIsKilled) {
  Deaths::Actions actions;
  deaths_.add_hosted(kOther, kChild, 0, actions);
  deaths_.ends_as_host(kChild, "was ended with its monarch-hostd");
  deaths_.ends_as_host(kNested, "is no child");
  deaths_.observed(kOther, kSecond);
  on(killed(kChild), kSecond);
  on(link_lost(kChild), kSecond);
  EXPECT_EQ(deaths_.why_down(kChild)->headline(),
            "the process this actor was running on was ended with its monarch-hostd (rank 0 of procs 'trainer', pid 4711)");
  EXPECT_EQ(tick(10 * kSecond), "") << "somebody was told of what ran there";
}

TEST_F(DeathsTest, AHostThatHasSaidWhyItEndsHasEndedSoThoughTheWayToItIsLost) {
  deaths_.ends_as_host(kChild, "was ended with its monarch-hostd");
  const auto why = std::make_shared<Failure>(Failure::Kind::kLost, "the connection broke");
  EXPECT_EQ(on({.kind = Kind::kWayLost, .node = kChild, .failure = why}), "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(last_->headline(),
            "the process this actor was running on was ended with its monarch-hostd (rank 0 of procs 'trainer', pid 4711)");
}

TEST_F(DeathsTest, WhatHadBeenAskedToEndBeforeItsHostEndsHasStopped) {
  ASSERT_TRUE(deaths_.stop_asked(kChild, "enough"));
  deaths_.end_as_host("was ended with its monarch-hostd");
  ASSERT_TRUE(deaths_.stop_asked(kChild, "its monarch-hostd was ended"));
  on({.kind = Kind::kExited, .node = kChild, .status = {true, 0, 0}});
  on(link_lost(kChild));
  EXPECT_EQ(last_->headline(), "stopped: enough");
}

TEST_F(DeathsTest, AChildThatHasBeenReplacedAndLivesIsEnded) {
  const auto replaced = [](NodeId node) { return Deaths::Event{.kind = Kind::kReplaced, .node = node}; };
  EXPECT_EQ(on(replaced(kChild)), "kill:10");
  EXPECT_EQ(on(killed(kChild)), "end-links:10");
  EXPECT_EQ(on(replaced(kChild)), "") << "it has ended";
  EXPECT_EQ(on(replaced(kOther)), "") << "whoever has started it sees to that";
  deaths_.add_child(kNested, kOther, {}, 0);
  deaths_.stop_asked(kNested, "enough");
  EXPECT_EQ(on(replaced(kNested)), "") << "it has time for its end";
}

TEST_F(DeathsTest, InTheOtherOrderToo) {
  EXPECT_EQ(on(link_lost(kChild)), "");
  EXPECT_EQ(on(killed(kChild)), "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(tick(10 * kSecond), "report:10");
}

TEST_F(DeathsTest, WhoIsAtItsEndIsDeclaredWithoutWaitingForThat) {
  const Deaths::Event dying{.kind = Kind::kDying, .node = kChild, .status = {true, 0, 11}};
  EXPECT_EQ(on(dying), "end-links:10");
  EXPECT_EQ(on(dying), "");
  EXPECT_EQ(on(link_lost(kChild)), "declare:10 close-links:10 tell-all:10");
  EXPECT_NE(last_->text().find("Segmentation fault(sig=11)"), std::string::npos);
  EXPECT_EQ(on({.kind = Kind::kExited, .node = kChild, .status = {true, 0, 11}}), "") << "that is no news";
}

TEST_F(DeathsTest, WhoIsAtItsEndWithoutALinkIsDeclaredAtOnce) {
  on(link_lost(kChild));
  EXPECT_EQ(on({.kind = Kind::kDying, .node = kChild, .status = {true, 3, 0}}), "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(deaths_.next_ns(), kSecond) << "nobody kills it, and it is reported";
  EXPECT_EQ(tick(kSecond), "report:10");
  EXPECT_EQ(on(killed(kChild)), "");
}

TEST_F(DeathsTest, WhoWasAskedToEndAndIsAtItsEndIsNoNews) {
  deaths_.stop_asked(kChild, "done");
  on({.kind = Kind::kDying, .node = kChild, .status = {true, 0, 0}});
  on(link_lost(kChild));
  EXPECT_EQ(last_->text(), "stopped: done");
  EXPECT_EQ(tick(9 * kSecond), "");
}

TEST_F(DeathsTest, IsSaidOnce) {
  on(link_lost(kChild));
  on(killed(kChild));
  for (const Deaths::Event& again : {killed(kChild), link_lost(kChild), noticed(kChild, kParent)}) {
    EXPECT_EQ(on(again), "");
  }
}

TEST_F(DeathsTest, WhoLivesOnWithoutItsLinkIsKilledForIt) {
  on(link_lost(kChild), 5);
  EXPECT_EQ(deaths_.next_ns(), 5 + kSecond);
  EXPECT_EQ(tick(5 + kSecond), "kill:10");
  on(killed(kChild));
  EXPECT_NE(last_->headline().find("it had closed its connection and did not end"), std::string::npos);
}

TEST_F(DeathsTest, WhoWasAskedToEndHasTheTimeThatItWasGivenAndIsNoNews) {
  EXPECT_TRUE(deaths_.stop_asked(kChild, "done"));
  on(link_lost(kChild));
  EXPECT_EQ(tick(kSecond), "");
  on(killed(kChild));
  EXPECT_EQ(last_->text(), "stopped: done");
  EXPECT_EQ(tick(9 * kSecond), "");
}

TEST_F(DeathsTest, WhoWasAskedToEndAndCrashesIsNews) {
  deaths_.stop_asked(kChild, "done");
  on({.kind = Kind::kExited, .node = kChild, .status = {true, 0, 11}});
  on(link_lost(kChild));
  EXPECT_EQ(last_->text(), "stopped: done");
  EXPECT_EQ(tick(9 * kSecond), "report:10");
  EXPECT_NE(last_->text().find("Segmentation fault(sig=11)"), std::string::npos) << last_->text();
}

TEST_F(DeathsTest, ADeathThatSomebodyWasToldOfIsNotReported) {
  on(link_lost(kChild));
  on(killed(kChild), kSecond);
  EXPECT_TRUE(deaths_.observed(kChild, kSecond));
  EXPECT_FALSE(deaths_.observed(kChild, kSecond));
  EXPECT_EQ(tick(9 * kSecond), "");
}

TEST_F(DeathsTest, WhatWasSaidOfOneThatLivedIsNotEnoughWhenItDies) {
  EXPECT_TRUE(deaths_.observed(kChild, kSecond));  // a call has failed that it had a part in, of another one's death
  on(link_lost(kChild));
  on(killed(kChild), 5 * kSecond);
  EXPECT_TRUE(deaths_.observed(kChild, 5 * kSecond));
  EXPECT_FALSE(deaths_.observed(kChild, 8 * kSecond));
  EXPECT_EQ(tick(9 * kSecond), "");
}

TEST_F(DeathsTest, AtTheEndWhatNobodyWasToldOfIsReportedAtOnce) {
  on(link_lost(kChild));
  on(killed(kChild));
  Deaths::Actions actions;
  deaths_.report_rest(actions);
  EXPECT_EQ(words(actions), "report:10");
}

TEST_F(DeathsTest, LastLinesAreWaitedForAndNotForLong) {
  deaths_.add_child(kNested, kSelf, {}, 10);
  deaths_.add_child(kOther, kSelf, {}, 10);
  for (NodeId node : {kNested, kOther}) {
    on(link_lost(node));
    EXPECT_EQ(on(killed(node), 100), "ask:" + std::to_string(node));
  }
  EXPECT_EQ(on({.kind = Kind::kLastLines, .node = kNested, .text = "oh"}), "declare:20 close-links:20 tell-all:20");
  EXPECT_EQ(last_->last_lines, "oh");
  EXPECT_EQ(tick(300'000'000), "declare:30 close-links:30 tell-all:30");
}

TEST_F(DeathsTest, AStrangersEndIsToldByItsHostAndSpreadAtOnce) {
  Deaths::Actions actions;
  deaths_.add_hosted(kNested, kChild, 0, actions);
  EXPECT_EQ(on(noticed(kNested, kChild)), "tell-tree:20 end-links:20");
  EXPECT_EQ(on({.kind = Kind::kNoLinks, .node = kNested}), "declare:20 close-links:20");
}

TEST_F(DeathsTest, ALostLinkWaitsForWhoeverKnowsAndNotForLong) {
  on(link_lost(kOther), 0);
  EXPECT_EQ(deaths_.next_ns(), 1'000'000'000);
  EXPECT_EQ(tick(1'000'000'000), "declare:30 close-links:30");
  EXPECT_EQ(last_->text(), "the process this actor was running on was lost: the peer closed the connection");
  deaths_.set_parent(kParent, {});
  on(link_lost(kNested), 0);
  EXPECT_EQ(on(noticed(kNested, kParent)), "tell-tree:20 declare:20 close-links:20");
  EXPECT_EQ(last_->status.code, 3);
}

// Others may reach it in another way: they are not told.
TEST_F(DeathsTest, AWayThatIsLostIsTheEndOfWhoIsBehindIt) {
  auto way_lost = [](NodeId node) -> Deaths::Event {
    return {.kind = Kind::kWayLost, .node = node, .failure = std::make_shared<Failure>(Failure::Kind::kLost, "no way")};
  };
  EXPECT_EQ(on(way_lost(kOther)), "tell-tree:30 declare:30 close-links:30") << "others may wait for it too";
  EXPECT_NE(last_->text().find("no way"), std::string::npos);
  for (const Deaths::Event& late : {way_lost(kOther), link_lost(kOther), noticed(kOther, kParent)}) EXPECT_EQ(on(late), "");
  EXPECT_EQ(on(link_lost(kNested)), "inquire:20");
  EXPECT_EQ(on(way_lost(kNested)), "tell-tree:20 declare:20 close-links:20");
  EXPECT_EQ(deaths_.next_ns(), INT64_MAX);
}

// Of what is on another host nobody says how it has ended once that host is not heard of any more.
TEST_F(DeathsTest, AWayThatIsLostIsTheEndOfAChildOnAnotherHost) {
  const auto why = std::make_shared<Failure>(Failure::Kind::kLost, "not heard of for 5 s");
  EXPECT_EQ(on({.kind = Kind::kWayLost, .node = kChild, .failure = why}), "declare:10 close-links:10 tell-all:10");
  EXPECT_NE(last_->text().find("not heard of for 5 s"), std::string::npos);
  deaths_.add_child(kNested, kSelf, {}, 10);
  on(link_lost(kNested));
  EXPECT_EQ(on({.kind = Kind::kWayLost, .node = kNested, .failure = why}), "declare:20 close-links:20 tell-all:20");
}

TEST_F(DeathsTest, AWayThatIsLostSaysNothingOfWhoIsKnownBetter) {
  deaths_.set_parent(kParent, {});
  const auto why = std::make_shared<Failure>(Failure::Kind::kLost, "no way");
  for (const NodeId node : {kSelf, kParent}) {
    EXPECT_EQ(on({.kind = Kind::kWayLost, .node = node, .failure = why}), "");
  }
  EXPECT_EQ(on(noticed(kNested, kParent)), "tell-tree:20 end-links:20");
  EXPECT_EQ(on({.kind = Kind::kWayLost, .node = kNested, .failure = why}), "") << "its links bring what it left";
  EXPECT_EQ(on(link_lost(kNested)), "declare:20 close-links:20");
  EXPECT_EQ(last_->status.code, 3);
}

// Who does not reach it hears of its death from the script, and of nothing else.
TEST_F(DeathsTest, AThirdHostThatIsNotReachedIsNotDead) {
  deaths_.set_parent(kParent, {});
  const auto why = std::make_shared<Failure>(Failure::Kind::kUnreachable, "broken");
  const Deaths::Event out{.kind = Kind::kOutOfReach, .node = kOther, .failure = why};
  const Deaths::Event reached{.kind = Kind::kReached, .node = kOther};
  EXPECT_EQ(on(reached), "");
  for (int64_t now_ns : {kSecond, 5 * kSecond}) {  // it may be so again
    EXPECT_EQ(on(out, now_ns), "inquire:30");
    EXPECT_EQ(tick(now_ns + kSecond), "let-go:30");
    EXPECT_EQ(last_, why);
    EXPECT_EQ(deaths_.why_down(kOther), nullptr);
  }
  EXPECT_EQ(on(out), "inquire:30");
  EXPECT_EQ(on(reached), "let-go:30") << "before what comes on the new session is taken";
  EXPECT_EQ(deaths_.next_ns(), INT64_MAX);
  EXPECT_EQ(on(out), "inquire:30");
  EXPECT_EQ(on(noticed(kOther, kParent)), "tell-tree:30 declare:30 close-links:30");
  EXPECT_EQ(last_->status.code, 3);
  for (const Deaths::Event& late : {out, reached, link_lost(kOther)}) EXPECT_EQ(on(late), "");
}

TEST_F(DeathsTest, AThirdHostThatIsDeadIsDownWhenItsSessionIsOver) {
  deaths_.set_parent(kParent, {});
  const auto why = std::make_shared<Failure>(Failure::Kind::kUnreachable, "broken");
  EXPECT_EQ(on(noticed(kOther, kParent)), "tell-tree:30 end-links:30");
  EXPECT_EQ(on({.kind = Kind::kOutOfReach, .node = kOther, .failure = why}), "declare:30 close-links:30");
  EXPECT_EQ(last_->status.code, 3);
}

TEST_F(DeathsTest, TheEndOfAHostIsTheEndOfWhatItHasStarted) {
  Deaths::Actions actions;
  deaths_.add_hosted(kNested, kChild, 0, actions);
  on(link_lost(kChild));
  EXPECT_EQ(on(killed(kChild)), "declare:10 close-links:10 tell-all:10 tell-tree:20 end-links:20");
  EXPECT_TRUE(last_->of_host);
  deaths_.add_hosted(kOther, kChild, 0, actions);  // it was made just before
  EXPECT_EQ(words(actions), "tell-tree:30 end-links:30");
}

TEST_F(DeathsTest, OnlyWhoHasStartedItOrIsAboveThatSpeaksForANode) {
  deaths_.set_parent(kParent, {});
  Deaths::Actions actions;
  deaths_.add_hosted(kNested, kChild, 0, actions);
  deaths_.add_hosted(21, kNested, 0, actions);
  EXPECT_TRUE(deaths_.may_speak(kParent, kNested));
  EXPECT_TRUE(deaths_.may_speak(kChild, kNested));
  EXPECT_TRUE(deaths_.may_speak(kChild, 21));
  EXPECT_FALSE(deaths_.may_speak(kOther, kNested));
  EXPECT_FALSE(deaths_.may_speak(kChild, kOther));
  EXPECT_FALSE(deaths_.may_speak(kParent, kChild));
  EXPECT_FALSE(deaths_.may_speak(kChild, kParent));
  EXPECT_FALSE(deaths_.may_speak(kParent, kSelf));
}

TEST_F(DeathsTest, WhoMayNotSpeakForANodeIsNotHeard) {
  EXPECT_EQ(on(noticed(kNested, kOther)), "");
  EXPECT_EQ(on({.kind = Kind::kNoLinks, .node = kNested}), "") << "it lives";
  EXPECT_EQ(deaths_.why_down(kNested), nullptr);
}

TEST_F(DeathsTest, ANeighbourIsToldAndItsWordCountsIfItIsBelieved) {
  constexpr NodeId kHost = 40, kScript = 50;
  deaths_.set_parent(kParent, {});
  deaths_.add_neighbour(kHost, false);
  deaths_.add_neighbour(kScript, true);
  for (const NodeId node : {kParent, kChild, kHost, kScript}) EXPECT_TRUE(deaths_.is_told(node));
  EXPECT_FALSE(deaths_.is_told(kOther));
  EXPECT_EQ(on(noticed(kNested, kHost)), "");
  EXPECT_EQ(on(noticed(kNested, kScript)), "tell-tree:20 end-links:20");
  for (const NodeId own : {kParent, kChild, kSelf}) EXPECT_EQ(on(noticed(own, kScript)), "");
  Deaths::Actions actions;
  deaths_.add_hosted(kOther, kHost, 0, actions);
  EXPECT_EQ(on(noticed(kOther, kHost)), "tell-tree:30 end-links:30") << "it has started that one";
}

TEST_F(DeathsTest, TheEndOfTheParentIsTheEndOfThisProcess) {
  deaths_.set_parent(kParent, Failure(Failure::Kind::kOwnerEnded, "job 1a2b"));
  EXPECT_EQ(on(link_lost(kParent)), "declare:2 close-links:2 end-self:2");
  EXPECT_EQ(last_->text(), "job 1a2b has ended");
}

TEST_F(DeathsTest, ProcessesOfAnOwnerThatIsGoneAreStopped) {
  deaths_.add_child(kNested, kOther, {}, 0);
  on(link_lost(kOther));
  EXPECT_EQ(tick(kSecond), "declare:30 close-links:30 stop-orphan:20");
}

TEST_F(DeathsTest, AProcessThatCouldNotBeStartedIsDownAtOnce) {
  EXPECT_EQ(on({.kind = Kind::kNotStarted, .node = kChild, .text = "cannot fork: no"}),
            "declare:10 close-links:10 tell-all:10");
  EXPECT_EQ(last_->text(),
            "the process this actor was to run on could not be started (rank 0 of procs 'trainer'): cannot fork: no");
  EXPECT_EQ(on(link_lost(kChild)), "");
}

TEST(DeathsMemory, IsBounded) {
  Deaths::Limits limits;
  limits.remembered_max = 10;
  Deaths deaths(kSelf, limits);
  Deaths::Actions actions;
  for (NodeId node = 100; node < 200; ++node) {
    deaths.handle(0, {.kind = Kind::kLinkLost, .node = node}, actions);
    deaths.tick(kSecond, actions);
  }
  EXPECT_EQ(deaths.why_down(100), nullptr);
  EXPECT_NE(deaths.why_down(199), nullptr);
}

}  // namespace
}  // namespace monarch
