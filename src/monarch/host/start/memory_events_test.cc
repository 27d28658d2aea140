#include "monarch/host/start/memory_events.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "monarch/base/system.h"

namespace monarch {
namespace {

MemoryEvents cgroup(uint64_t kills, uint64_t hits) { return {.cgroup_kills = kills, .limit_hits = hits, .kills = {}}; }
MemoryEvents machine(uint64_t kills) { return {.cgroup_kills = {}, .limit_hits = {}, .kills = kills}; }

TEST(MemoryEvents, WhereNobodyWasKilledForMemorySomebodyElseHasKilled) {
  MemoryEvents known = cgroup(3, 7);
  EXPECT_EQ(judge_kill(known, cgroup(3, 9)), OutOfMemory::kNo) << "at the limit, but memory was found";
  EXPECT_EQ(judge_kill(known, cgroup(4, 9)), OutOfMemory::kCgroup) << "those hits were before";
  MemoryEvents all = machine(5);
  EXPECT_EQ(judge_kill(all, machine(5)), OutOfMemory::kNo);
}

TEST(MemoryEvents, AKillAccountsForOneDeath) {
  MemoryEvents known = cgroup(0, 0);
  EXPECT_EQ(judge_kill(known, cgroup(2, 5)), OutOfMemory::kCgroupLimit);
  EXPECT_EQ(judge_kill(known, cgroup(2, 5)), OutOfMemory::kCgroupLimit);
  EXPECT_EQ(judge_kill(known, cgroup(2, 5)), OutOfMemory::kNo);
  MemoryEvents all = machine(1);
  EXPECT_EQ(judge_kill(all, machine(2)), OutOfMemory::kMachine);
  EXPECT_EQ(judge_kill(all, machine(2)), OutOfMemory::kNo);
}

TEST(MemoryEvents, WhatTheKernelDoesNotCountIsNotKnown) {
  MemoryEvents known;
  EXPECT_EQ(judge_kill(known, MemoryEvents{}), OutOfMemory::kUnknown);
  EXPECT_EQ(judge_kill(known, machine(1)), OutOfMemory::kUnknown) << "not before";
}

TEST(MemoryEvents, WhatCouldNotBeReadOnceIsKnownFromTheNextDeathOn) {
  MemoryEvents known;  // nothing could, when the first process was started
  EXPECT_EQ(judge_kill(known, cgroup(4, 9)), OutOfMemory::kUnknown);
  EXPECT_EQ(judge_kill(known, cgroup(4, 9)), OutOfMemory::kNo);
  EXPECT_EQ(judge_kill(known, MemoryEvents{}), OutOfMemory::kUnknown);
  EXPECT_EQ(judge_kill(known, cgroup(5, 10)), OutOfMemory::kUnknown) << "which may have been the one before";
  EXPECT_EQ(judge_kill(known, cgroup(6, 11)), OutOfMemory::kCgroupLimit);
  MemoryEvents without_hits = cgroup(6, 0);
  without_hits.limit_hits.reset();
  EXPECT_EQ(judge_kill(known, without_hits), OutOfMemory::kNo);
  EXPECT_EQ(judge_kill(known, cgroup(7, 12)), OutOfMemory::kCgroupLimit) << "the hits before are still known";
}

class Files : public testing::Test {
 protected:
  Files() {
    char name[] = "/tmp/monarch-memory-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Files() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root_;
};

TEST_F(Files, OfVersionTwo) {
  write("/proc/self/cgroup", "0::/job/7\n");
  write("/sys/fs/cgroup/job/7/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n");
  EXPECT_EQ(MemoryEventsReader(root_).read(), cgroup(2, 3));
}

TEST_F(Files, OfVersionOne) {
  write("/proc/self/cgroup", "8:pids:/\n4:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  write("/sys/fs/cgroup/memory/job/memory.failcnt", "17\n");
  EXPECT_EQ(MemoryEventsReader(root_).read(), cgroup(5, 17));
}

TEST_F(Files, OfAProcessWithoutACgroupOfItsOwn) {
  write("/proc/self/cgroup", "0::/\n");
  write("/proc/vmstat", "nr_free_pages 77\noom_kill 4\noom_kill_else 9\n");
  EXPECT_EQ(MemoryEventsReader(root_).read(), machine(4));
}

TEST_F(Files, ThatCannotBeOpenedAtFirst) {
  write("/proc/self/cgroup", "0::/job/7\n");
  write("/sys/fs/cgroup/job/7/memory.events", "oom 3\noom_kill 2\n");
  sys::fail_nth(1);
  MemoryEventsReader reader(root_);
  EXPECT_EQ(reader.read(), cgroup(2, 3));
}

TEST_F(Files, StayOpenAndAreReadFromTheirBeginning) {
  write("/proc/self/cgroup", "0::/job/7\n");
  write("/sys/fs/cgroup/job/7/memory.events", "oom 3\noom_kill 2\n");
  MemoryEventsReader reader(root_);
  EXPECT_EQ(reader.read(), cgroup(2, 3));
  write("/sys/fs/cgroup/job/7/memory.events", "oom 30\noom_kill 20\n");
  sys::fail_nth(1);
  EXPECT_EQ(reader.read(), cgroup(20, 30)) << "nothing is opened any more";
  sys::fail_nth(0);
}

TEST_F(Files, OfVersionTwoSayTheLeastLimitOfACgroupAndThoseAroundIt) {
  write("/proc/self/cgroup", "0::/job/7\n");
  EXPECT_EQ(memory_limit(root_), memory_limit("/nowhere")) << "the machine's";
  write("/sys/fs/cgroup/job/7/memory.max", "max\n");
  write("/sys/fs/cgroup/job/memory.max", "4194304\n");
  EXPECT_EQ(memory_limit(root_), 4u << 20);
  write("/sys/fs/cgroup/job/7/memory.max", "1048576\n");
  EXPECT_EQ(memory_limit(root_), 1u << 20);
}

TEST_F(Files, OfVersionOneSayTheLimit) {
  write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit(root_), memory_limit("/nowhere"));
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n");
  EXPECT_EQ(memory_limit(root_), 2u << 20);
}

TEST_F(Files, ThatAreNotThere) { EXPECT_EQ(MemoryEventsReader(root_).read(), MemoryEvents{}); }

}  // namespace
}  // namespace monarch
