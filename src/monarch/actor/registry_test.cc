#include "monarch/actor/registry.h"

#include <gtest/gtest.h>

namespace registry_test {
struct Named : monarch::Actor {
  void first() {}
  int second(int x, std::vector<std::string>) { return x; }
  monarch::Task<void> third() { co_return; }
};
MONARCH_ACTOR(Named, first, second, third)
struct Plain : monarch::Actor {};
MONARCH_ACTOR(Plain)
}  // namespace registry_test

namespace monarch {
namespace {

TEST(Registry, NumbersEndpointsInTheOrderOfTheMacro) {
  const ActorClass* found = ActorRegistry::instance().find("Named");
  ASSERT_NE(found, nullptr);
  ASSERT_EQ(found->methods.size(), 3u);
  EXPECT_EQ(found->methods[0].name, "first");
  EXPECT_EQ(found->methods[2].name, "third");
  EXPECT_TRUE(found->methods[2].is_task);
  constexpr uint32_t kNumber = internal::method_number<registry_test::Named, &registry_test::Named::second>();
  EXPECT_EQ(kNumber, 1u);
  EXPECT_TRUE(ActorRegistry::instance().find("Plain")->methods.empty());
  EXPECT_EQ(ActorRegistry::instance().find("Nobody"), nullptr);
}

TEST(Registry, TwoClassesOfOneNameAreAmbiguousAndOneClassTwiceIsNot) {
  struct One {};
  struct Two {};
  ActorClass entry;
  entry.name = "Twice";
  entry.type = &typeid(One);
  ActorRegistry::instance().add(entry);
  ActorRegistry::instance().add(entry);
  EXPECT_FALSE(ActorRegistry::instance().find("Twice")->ambiguous);
  entry.type = &typeid(Two);
  ActorRegistry::instance().add(entry);
  EXPECT_TRUE(ActorRegistry::instance().find("Twice")->ambiguous);
}

TEST(Registry, ALibraryThatIsNotThereIsAnError) {
  auto loaded = ActorRegistry::instance().load_library("/nowhere/libactors.so");
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("/nowhere/libactors.so"), std::string::npos);
}

TEST(Actor, AloneIsRankZeroOfNothing) {
  registry_test::Named named;
  EXPECT_EQ(named.rank(), 0);
  EXPECT_EQ(named.size(), 1);
  EXPECT_THROW(named.coordinate("gpus"), std::invalid_argument);
}

}  // namespace
}  // namespace monarch
