#include "monarch/wire/last_words.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace monarch {
namespace {

using Names = std::vector<std::string>;

class LastWordsTest : public testing::Test {
 protected:
  LastWordsTest() { activity_.use(*left_); }
  const std::unique_ptr<LastWords> left_ = std::make_unique<LastWords>();
  Activity activity_;
};

TEST_F(LastWordsTest, SayWhichEndpointsActorsAreIn) {
  LastWords::Actor* trainer = activity_.enter("trainer", {"fit", "step"});
  LastWords::Actor* loader = activity_.enter("loader", {"next"});
  EXPECT_EQ(read_endpoints(*left_), Names{});
  trainer->doing = 1;
  loader->begin_waiting(0);
  EXPECT_EQ(read_endpoints(*left_), (Names{"loader.next", "trainer.step"}));
  loader->end_waiting(0);
  trainer->doing = LastWords::kConstructor;
  EXPECT_EQ(read_endpoints(*left_), Names{"trainer.__init__"});
  trainer->doing = 2;
  EXPECT_EQ(read_endpoints(*left_), Names{}) << "there is no such endpoint";
  trainer->doing = 0;
  activity_.leave(trainer);
  EXPECT_EQ(read_endpoints(*left_), Names{}) << "it has ended";
}

TEST_F(LastWordsTest, OneActorMayAwaitSeveralEndpoints) {
  LastWords::Actor* actor = activity_.enter("a", {"x", "y", "z"});
  for (const uint32_t method : {0u, 1u, 1u, 2u}) actor->begin_waiting(method);
  EXPECT_EQ(read_endpoints(*left_), (Names{"a.x", "a.y", "a.z"}));
  actor->end_waiting(1);
  EXPECT_EQ(read_endpoints(*left_), (Names{"a.x", "a.y", "a.z"}));
  actor->end_waiting(1);
  actor->end_waiting(0);
  EXPECT_EQ(read_endpoints(*left_), Names{"a.z"});
  for (int i = 0; i < 100; ++i) actor->begin_waiting(0);  // more than there is room for
  EXPECT_EQ(read_endpoints(*left_), (Names{"a.x", "a.z"}));
}

TEST_F(LastWordsTest, MoreActorsThanThereIsRoomForAreNotKnown) {
  std::vector<LastWords::Actor*> actors;
  for (size_t i = 0; i < LastWords::kActors; ++i) actors.push_back(activity_.enter("a", {"x"}));
  EXPECT_EQ(activity_.enter("b", {"x"}), nullptr);
  activity_.leave(actors.back());
  EXPECT_NE(activity_.enter("b", {"x"}), nullptr);
  EXPECT_EQ(activity_.enter("c", {"x"}), nullptr);
  activity_.leave(actors.front());
  EXPECT_EQ(activity_.enter("d", {std::string(5000, 'x')}), nullptr) << "its names have no room";
  EXPECT_NE(activity_.enter(std::string(5000, 'd'), {"x"}), nullptr);
}

TEST_F(LastWordsTest, AStackIsTheUsersOwn) {
  EXPECT_EQ(read_stack(*left_, false), "");
  strcpy(left_->language,
         "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
         "  File \"/home/me/train.py\", line 7 in step\n  File \"/usr/lib/python3.11/asyncio/events.py\", line 84 in _run\n"
         "  File \"/x/monarch/_running/event_loop.py\", line 9 in _run\n  File \"<string>\", line 3 in <module>\n\n"
         "Extension modules: numpy (total: 1)\n  File \"no frame\"\n");
  strcpy(left_->native,
         "_ZN4mine4workEv+0x12 in /opt/monarch-apps/libmine.so\n+0x77 in /lib/libc.so.6\n"
         "_PyEval_EvalFrameDefault+0x9 in /usr/bin/python3\n?? in /x/monarch/_core.so\n");
  EXPECT_EQ(read_stack(*left_, false),
            "Python stack, innermost first:\n  File \"/home/me/train.py\", line 7 in step\n"
            "C stack, innermost first:\n  mine::work()+0x12 in libmine.so\n  +0x77 in libc.so.6");
  const std::string all = read_stack(*left_, true);
  EXPECT_NE(all.find("event_loop.py"), std::string::npos);
  EXPECT_NE(all.find("_PyEval_EvalFrameDefault"), std::string::npos);
  EXPECT_EQ(all.find("no frame"), std::string::npos);
}

TEST_F(LastWordsTest, NothingThatIsLeftIsTrusted) {
  LastWords::Actor* actor = activity_.enter("a", {"x"});
  memset(actor->name, '\n', sizeof actor->name);
  actor->doing = 0;
  for (const uint32_t at : {4095u, 4096u, 0xffffffffu}) {
    actor->methods = at;
    actor->doing = INT64_MAX;
    for (const std::string& endpoint : read_endpoints(*left_)) EXPECT_EQ(endpoint.find('\n'), std::string::npos);
  }
  memset(left_->native, 'x', sizeof left_->native + sizeof left_->language);
  EXPECT_LT(read_stack(*left_, true).size(), 1000u);
}

}  // namespace
}  // namespace monarch
