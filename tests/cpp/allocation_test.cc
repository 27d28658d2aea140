// What sends among actors of one process take from the allocator. It replaces that of the whole program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "monarch/monarch.h"

namespace {
thread_local int64_t allocations = 0;
}  // namespace

// Message blocks have an allocator of their own, with an alignment; they come back.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace {

int g_argc = 0;
char** g_argv = nullptr;

struct Sink : monarch::Actor {
  void take(int64_t value) { sum += value; }
  int64_t total() { return sum; }
  int64_t sum = 0;
};
MONARCH_ACTOR(Sink, take, total)

TEST(Allocation, AOneWayMessageInAProcessTakesNoMemoryOfItsOwn) {
  monarch::Runtime runtime(g_argc, g_argv);
  auto sink = runtime.this_proc().spawn<Sink>("sink");
  sink.broadcast<&Sink::take>(int64_t{1});
  ASSERT_EQ(sink.call_one<&Sink::total>().get(), 1);
  const int64_t before = allocations;
  for (int i = 0; i < 1000; ++i) sink.broadcast<&Sink::take>(int64_t{1});
  EXPECT_LE(allocations - before, 20);  // the pool's queue grows; 1000 where each message takes some
  EXPECT_EQ(sink.call_one<&Sink::total>().get(), 1001);
}

}  // namespace

int main(int argc, char** argv) {
  g_argc = argc;
  g_argv = argv;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
