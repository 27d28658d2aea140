#include "monarch/mesh/gather.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "monarch/loop/driver.h"
#include "monarch/loop/reactor.h"
#include "monarch/mesh/view.h"
#include "monarch/wire/value.h"

namespace monarch {
namespace {

struct Call {
  BellPage page{};
  UniqueFd event{eventfd(0, EFD_NONBLOCK)};
  Reactor reactor;
  Driver driver{reactor, page, event.get()};
  std::shared_ptr<const Members> members;
  PendingCall call;

  explicit Call(uint32_t size) : members(make_members(size)), call(members) {}
  static std::shared_ptr<const Members> make_members(uint32_t size) {
    auto members = std::make_shared<Members>();
    for (uint32_t i = 0; i < size; ++i) members->ids.push_back({7, 100 + i});
    return members;
  }
  void answer(uint32_t rank, FrameKind kind = FrameKind::kReply) {
    FrameHeader header;
    header.kind = kind;
    call.fill(rank, Message::make(header, "x"), driver);
  }
  Gather gather(Gather::Wants wants, uint32_t arrival = 0) const { return Gather(call, wants, arrival); }
};

TEST(Gather, OfValuesIsThereWithTheLastOrTheFirstFailureAndNamesTheLowest) {
  Call of(3);
  const Gather values = of.gather(Gather::Wants::kValues);
  of.answer(0);
  EXPECT_FALSE(values.is_there());
  of.answer(2, FrameKind::kReplyError);
  EXPECT_TRUE(values.is_there());
  EXPECT_EQ(values.failed_rank(), 2);
  of.answer(1, FrameKind::kReplyFailed);
  EXPECT_EQ(values.failed_rank(), 1);
}

TEST(Gather, OfAnswersWaitsForAllAndIsNoFailure) {
  Call of(2);
  for (const auto wants : {Gather::Wants::kAnswers, Gather::Wants::kEnd}) {
    EXPECT_EQ(of.gather(wants).arrivals_wanted(), 2u);
  }
  of.answer(1, FrameKind::kReplyError);
  EXPECT_FALSE(of.gather(Gather::Wants::kAnswers).is_there());
  of.answer(0);
  EXPECT_TRUE(of.gather(Gather::Wants::kAnswers).is_there());
  EXPECT_EQ(of.gather(Gather::Wants::kAnswers).failed_rank(), -1);
  EXPECT_TRUE(of.gather(Gather::Wants::kAnswers).is_failure(1));
  EXPECT_EQ(of.gather(Gather::Wants::kEnd).failed_rank(), -1);
}

TEST(Gather, OfArrivalsIsThereOneByOneInTheirOrder) {
  Call of(3);
  of.answer(2);
  EXPECT_TRUE(of.gather(Gather::Wants::kArrival, 0).is_there());
  EXPECT_FALSE(of.gather(Gather::Wants::kArrival, 1).is_there());
  EXPECT_EQ(of.gather(Gather::Wants::kArrival, 0).arrived(), 2u);
  EXPECT_EQ(of.gather(Gather::Wants::kArrival, 0).failed_rank(), -1);
  of.answer(0, FrameKind::kReplyError);
  EXPECT_EQ(of.gather(Gather::Wants::kArrival, 1).failed_rank(), 0);
}

TEST(View, TellsMembersItsShapeUnlessItIsAWholeMesh) {
  const auto members = Call::make_members(4);
  const Region region = Region::row_major(*Extent::create({"hosts", "gpus"}, {2, 2}));
  EXPECT_EQ(View::of(members, region, true).flags, 0);
  const View part = View::of(members, region, false);
  EXPECT_EQ(part.flags, kFlagView);
  ValueReader reader(part.shape);
  uint32_t count = 0;
  EXPECT_TRUE(reader.begin_tuple(count));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(View::of(members, Region(), true).flags, kFlagScalarView);
}

TEST(View, FindsWhoSharesTheThreadOfWhoWaits) {
  const auto members = Call::make_members(4);  // 100 to 103 of node 7
  EXPECT_EQ(find_own(*members, {7, 99}), nullptr);
  EXPECT_EQ(find_own(*members, {8, 100}), nullptr);
  EXPECT_EQ(find_own(*members, {7, 102}), &members->ids[2]);
  EXPECT_EQ(find_own(*members, {7, 90, 12}), &members->ids[0]);
  EXPECT_EQ(find_own(*members, {7, 104, 12}), nullptr);
}

}  // namespace
}  // namespace monarch
