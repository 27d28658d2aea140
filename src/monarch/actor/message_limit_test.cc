// Messages that are too large are refused at their sender (Node::set_message_bytes_max).
#include <gtest/gtest.h>

#include "monarch/actor/calls.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr ActorIndex kActor = 1;
constexpr uint64_t kMax = 1000;

// Keeps what comes, and answers a request with as many bytes as `answer` says.
struct Recorder : Cell {
  explicit Recorder(Node& where) : node(where) {}
  void deliver(MessagePtr message) override {
    const bool back = message->header.kind == FrameKind::kUndeliverable;
    (back ? bounced : came).push_back(back ? failure_of(*message).text() : std::string(message->text()));
    const std::string text(answer, 'a');
    Outgoing reply{FrameHeader{}, as_byte_span(text.data(), text.size()), {}};
    node.reply(message->header, message->from, FrameKind::kReply, reply);
  }
  Node& node;
  size_t answer = 1;
  std::vector<std::string> came, bounced;
};

struct MessageLimit : ::testing::Test {
  MessageLimit() : here(sim.node(sim.add_node())), there(sim.node(sim.add_node())) {
    here.add_cell(kActor, sender);
    there.add_cell(kActor, receiver);
    here.set_message_bytes_max(kMax);
    there.set_message_bytes_max(kMax);
  }
  Outgoing message(FrameKind kind) {
    Outgoing outgoing{FrameHeader{}, as_byte_span(body.data(), body.size()), parts};
    outgoing.header.kind = kind;
    outgoing.header.sender = kActor;
    return outgoing;
  }
  std::shared_ptr<PendingCall> call(FrameKind kind = FrameKind::kRequest) {
    auto members = std::make_shared<Members>();
    members->ids = {{there.id(), kActor}};
    auto pending = std::make_shared<PendingCall>(members);
    Outgoing outgoing = message(kind);
    here.cast(*members, outgoing, pending);
    sim.run();
    return pending;
  }

  SimWorld sim{1};
  Node& here;
  Node& there;
  std::shared_ptr<Recorder> sender = std::make_shared<Recorder>(here);
  std::shared_ptr<Recorder> receiver = std::make_shared<Recorder>(there);
  std::string body = std::string(kMax + 1, 'x');
  std::vector<ByteSpan> parts;
};

TEST_F(MessageLimit, ACallFailsAndOneOfThatSizeDoesNot) {
  auto failed = call();
  ASSERT_TRUE(failed->complete());
  EXPECT_EQ(failed->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_TRUE(reply_text(*failed->reply(0)).starts_with("rejected an oversized frame: the message has 1001 bytes"));
  EXPECT_TRUE(receiver->came.empty());
  body.pop_back();
  EXPECT_EQ(call()->reply(0)->header.kind, FrameKind::kReply);
  const ByteSpan one = as_byte_span("p", 1);
  parts = {one};  // parts count too
  EXPECT_EQ(call()->reply(0)->header.kind, FrameKind::kReplyFailed);
}

TEST_F(MessageLimit, AOneWayMessageComesBackUnlessItIsQuiet) {
  Outgoing outgoing = message(FrameKind::kOneway);
  here.cast(Members{{{there.id(), kActor}}}, outgoing, nullptr);
  here.post({there.id(), kActor}, outgoing);
  sim.run();
  ASSERT_EQ(sender->bounced.size(), 2u);
  EXPECT_TRUE(sender->bounced[1].starts_with("rejected an oversized frame"));
  outgoing.header.flags = kFlagQuiet;
  here.post({there.id(), kActor}, outgoing);
  sim.run();
  EXPECT_EQ(sender->bounced.size(), 2u);
  EXPECT_TRUE(receiver->came.empty());
}

TEST_F(MessageLimit, AnAnswerBecomesAFailureAndAStopIsNeverRefused) {
  body = "x";
  receiver->answer = kMax + 1;
  EXPECT_EQ(call()->reply(0)->header.kind, FrameKind::kReplyFailed);
  there.set_message_bytes_max(1);  // less than the text of the failure
  EXPECT_EQ(call()->reply(0)->header.kind, FrameKind::kReplyFailed);
  here.set_message_bytes_max(0);
  receiver->came.clear();
  call(FrameKind::kStopActor);
  EXPECT_EQ(receiver->came.size(), 1u);
}

TEST_F(MessageLimit, PartsAreCounted) {
  body = "x";
  parts.resize(kPartsMax + 1);
  auto failed = call();
  EXPECT_EQ(failed->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_TRUE(receiver->came.empty());
}

}  // namespace
}  // namespace monarch::testing
