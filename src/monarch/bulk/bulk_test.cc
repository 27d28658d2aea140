// Two Bulks, and between them each way that there is.
#include "monarch/bulk/bulk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/testing/bulk_side.h"
#include "monarch/testing/bytes.h"

namespace monarch::testing {
namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

enum class By { kLocal, kShm, kCma, kLink, kStream, kPlainStream, kUcx };

struct Side : BulkSide {
  explicit Side(By by)
      : BulkSide(Paths{by < By::kLink, by < By::kLink, by < By::kLink},
                 by > By::kLink ? std::optional<std::string>("127.0.0.1") : std::nullopt, by == By::kUcx) {
    if (by > By::kLink) bulk->streams()->use(by == By::kStream, 1);
  }
};

// To be written from.
Memory memory_of(const std::vector<std::byte>& bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

// kLocal: the owner itself; from kLink on nothing of the machine's own is allowed.
class BulkPaths : public ::testing::TestWithParam<By> {
 protected:
  BulkPaths() {
    owner.link_to(other);
  }
  ~BulkPaths() override {
    owner.end();
    other.end();
  }
  void SetUp() override {
    std::byte byte{};
    const Memory mine(&byte, 1);
    if (GetParam() == By::kCma && copy_from_process(getpid(), mine, 0, mine, 0, 1) == CopyOutcome::kDenied) {
      GTEST_SKIP() << "not run: the kernel does not copy between processes here";
    }
    if (GetParam() == By::kUcx && !UcxEnd::make()) GTEST_SKIP() << "not run: " << UcxEnd::make().error().message;
  }
  Side& user() { return GetParam() == By::kLocal ? owner : other; }

  // Memory of the owner, which others see in the way that this is about.
  std::byte* make(uint64_t size) {
    if (GetParam() == By::kShm) {
      shared.push_back(Freezable::make(size).value());
      return shared.back()->data();
    }
    heap.push_back(std::make_unique<std::byte[]>(size));
    return heap.back().get();
  }
  BufferHandle add(std::byte* data, uint64_t size) { return owner.bulk->add(Memory(data, size), true, nullptr).value(); }

  std::vector<BulkOutcome> run(std::vector<BulkOperation> operations, int64_t deadline_ns = kNoDeadline) {
    return run_by(user(), std::move(operations), deadline_ns);
  }
  static std::vector<BulkOutcome> run_by(Side& by, std::vector<BulkOperation> operations, int64_t deadline_ns) {
    std::latch done(1);
    std::vector<BulkOutcome> outcomes;
    by.bulk->submit(std::move(operations), deadline_ns, [&](std::vector<BulkOutcome> all) {
      outcomes = std::move(all);
      done.count_down();
    });
    done.wait();
    return outcomes;
  }
  BulkOutcome run_one(Kind kind, const BufferHandle& at, const Memory& local, int64_t deadline_ns = kNoDeadline) {
    return run({{kind, at, local, nullptr, 0, 0}}, deadline_ns)[0];
  }

  static void let_meet(Side& side, const BufferHandle& handle) {
    std::latch met(1);
    side.bulk->explain(handle, kNoDeadline, [&](Path, const std::string&) { met.count_down(); });
    met.wait();
  }
  void write_until_by_itself(Side& writer, const BufferHandle& handle, const std::vector<std::byte>& bytes) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!writer.bulk->writes_itself(handle)) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      const auto outcomes = run_by(writer, {{Kind::kWrite, handle, memory_of(bytes), nullptr, 0, 0}}, kNoDeadline);
      ASSERT_EQ(outcomes[0].code, Code::kDone);
    }
  }

  Side owner{GetParam()}, other{GetParam()};
  std::vector<std::shared_ptr<Freezable>> shared;
  std::vector<std::unique_ptr<std::byte[]>> heap;
};

std::string name_of(const ::testing::TestParamInfo<By>& param) {
  const char* const names[] = {"Local", "Shm", "Cma", "Link", "Stream", "PlainStream", "Ucx"};
  return names[static_cast<int>(param.param)];
}

INSTANTIATE_TEST_SUITE_P(By, BulkPaths,
                         ::testing::Values(By::kLocal, By::kShm, By::kCma, By::kLink, By::kStream, By::kPlainStream,
                                           By::kUcx),
                         name_of);

TEST_P(BulkPaths, WhatDoesNotFitIsNeitherWrittenNorRead) {
  std::byte* const data = make(64);
  const BufferHandle handle = add(data, 64);
  BufferHandle part = handle;
  part.size = 8;
  std::vector<std::byte> here(16, std::byte{7});
  const Memory all(here.data(), here.size());
  EXPECT_EQ(run_one(Kind::kWrite, part, all).refusal, Refusal::kBeyond);
  EXPECT_EQ(run_one(Kind::kRead, handle, all).refusal, Refusal::kBeyond);
  EXPECT_TRUE(std::all_of(data, data + 64, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(here, std::vector<std::byte>(16, std::byte{7}));
}

TEST_P(BulkPaths, IsTheOneThatIsMeant) {
  const BufferHandle handle = add(make(100'000), 100'000);
  std::latch done(1);
  user().bulk->explain(handle, kNoDeadline, [&](Path path, const std::string& why) {
    const Path paths[] = {Path::kLocal, Path::kShm, Path::kCma, Path::kLink, Path::kStream, Path::kStream, Path::kUcx};
    EXPECT_EQ(path, paths[static_cast<size_t>(GetParam())]) << why;
    done.count_down();
  });
  done.wait();
}

TEST_P(BulkPaths, AllSizesAndOffsetsAreReadAndWritten) {
  if (GetParam() >= By::kStream) let_meet(other, add(make(1), 1));  // connected: else what is slow to be goes by the link
  for (const uint64_t size : {uint64_t{1}, uint64_t{64}, uint64_t{4097}, uint64_t{70'001}, (uint64_t{1} << 20) + 3,
                              short_form() ? uint64_t{3} << 20 : uint64_t{40} << 20}) {
    constexpr uint64_t kBefore = 5, kAfter = 9;
    std::byte* const data = make(kBefore + size + kAfter);
    put(data, pattern(kBefore + size + kAfter, 1));
    BufferHandle part = add(data, kBefore + size + kAfter);
    part.offset = kBefore, part.size = size;
    std::vector<std::byte> here(size + 1, std::byte{255});
    ASSERT_EQ(run_one(Kind::kRead, part, Memory(here.data(), size)).code, Code::kDone) << size;
    ASSERT_TRUE(same({here.data(), size}, pattern(size, 1, kBefore))) << size;
    EXPECT_EQ(here[size], std::byte{255});
    put(here.data(), pattern(size, 2));
    ASSERT_EQ(run_one(Kind::kWrite, part, Memory(here.data(), size)).code, Code::kDone) << size;
    ASSERT_TRUE(same({data + kBefore, size}, pattern(size, 2))) << size;
    EXPECT_EQ(data[kBefore - 1], pattern_at(kBefore - 1, 1));
    EXPECT_EQ(data[kBefore + size], pattern_at(kBefore + size, 1));
  }
  if (GetParam() >= By::kStream) {
    EXPECT_EQ(other.bulk->streams()->done(), 4u) << "what is large, and that only";
  }
}

// 8 GiB where there is time for it. What is not written takes no memory, but at a target.
TEST_P(BulkPaths, Gibibytes) {
  const uint64_t size = std::getenv("MONARCH_TEST_LONG") != nullptr ? (uint64_t{8} << 30) + 5
                        : short_form()                              ? (uint64_t{9} << 20) + 5
                                                                    : (uint64_t{1} << 30) + 5;
  const uint64_t places[] = {0, size / 3, (size - 5) / 2 - 1, (size - 5) / 2, size - 6, size - 1};
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const auto map = [&] { return mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, -1, 0); };
  const Mapping memory(map(), size), target(map(), size);
  auto* const data = GetParam() == By::kShm ? make(size) : static_cast<std::byte*>(memory.get());
  auto* const here = static_cast<std::byte*>(target.get());
  for (const uint64_t at : places) data[at] = pattern_at(at, 8);
  const BufferHandle handle = add(data, size);
  ASSERT_EQ(run_one(Kind::kRead, handle, Memory(here, size)).code, Code::kDone);
  for (const uint64_t at : places) ASSERT_EQ(here[at], pattern_at(at, 8)) << at;
  for (const uint64_t at : places) here[at] = pattern_at(at, 9);
  ASSERT_EQ(run_one(Kind::kWrite, handle, Memory(here, size)).code, Code::kDone);
  for (const uint64_t at : places) ASSERT_EQ(data[at], pattern_at(at, 9)) << at;
}

TEST_P(BulkPaths, StridesOnEitherSide) {
  constexpr uint64_t kRows = 300, kColumns = 200;
  std::byte* const data = make(kRows * kColumns * 4);
  put(data, pattern(kRows * kColumns * 4, 3));
  const Memory columns(data, 4, {{kColumns, 4}, {kRows, kColumns * 4}});
  const BufferHandle flat = add(data, kRows * kColumns * 4);
  const BufferHandle turned = owner.bulk->add(columns, true, nullptr).value();
  std::vector<std::byte> whole(flat.size), here(flat.size), wide(2 * flat.size);
  ASSERT_TRUE(columns.gather(0, flat.size, whole.data()));
  ASSERT_EQ(run_one(Kind::kRead, turned, Memory(here.data(), here.size())).code, Code::kDone);
  EXPECT_TRUE(same(here, whole));
  const Memory spread(wide.data(), 4, {{flat.size / 4, 8}});
  ASSERT_EQ(run_one(Kind::kRead, turned, spread).code, Code::kDone);
  ASSERT_TRUE(spread.gather(0, flat.size, here.data()));
  EXPECT_TRUE(same(here, whole));
  ASSERT_EQ(run_one(Kind::kWrite, flat, spread).code, Code::kDone);
  EXPECT_TRUE(same(whole, {data, whole.size()}));
  ASSERT_EQ(run_one(Kind::kWrite, turned, spread).code, Code::kDone);
  ASSERT_TRUE(columns.gather(0, flat.size, here.data()));
  EXPECT_TRUE(same(here, whole));
}

TEST_P(BulkPaths, BlocksOfAnArray) {
  constexpr uint64_t kRows = 500, kColumns = 3000;
  std::byte* const data = make(kRows * kColumns);
  put(data, pattern(kRows * kColumns, 5));
  struct Case {
    uint64_t row, column, rows, columns;
  };
  for (const auto& [row, column, rows, columns] : {Case{3, 7, 400, 2000}, Case{0, 0, 500, 1}, Case{499, 10, 1, 5}}) {
    BufferHandle block = add(data, kRows * kColumns);
    block.offset = row * kColumns + column;
    block.run = columns;
    block.dims = {{rows, kColumns}};
    block.size = rows * columns;
    std::vector<std::byte> here(block.size), spread(2 * block.size);
    const Memory flat(here.data(), here.size()), wide(spread.data(), 1, {{block.size, 2}});
    ASSERT_EQ(run_one(Kind::kRead, block, flat).code, Code::kDone);
    for (uint64_t i = 0; i < rows; ++i) {
      ASSERT_TRUE(same({here.data() + i * columns, columns}, pattern(columns, 5, block.offset + i * kColumns))) << i;
    }
    ASSERT_EQ(run_one(Kind::kRead, block, wide).code, Code::kDone);
    std::vector<std::byte> gathered(block.size);
    ASSERT_TRUE(wide.gather(0, block.size, gathered.data()));
    EXPECT_TRUE(same(gathered, here));
    std::vector<std::byte> before(data, data + kRows * kColumns);
    for (std::byte& each : here) each = each ^ std::byte{0x80};
    ASSERT_EQ(run_one(Kind::kWrite, block, flat).code, Code::kDone);
    const Memory of_block(before.data() + block.offset, columns, {{rows, kColumns}});
    ASSERT_TRUE(of_block.scatter(0, block.size, here.data()));
    EXPECT_TRUE(same(before, {data, before.size()})) << "nothing else was written";
    put(data, pattern(kRows * kColumns, 5));
  }
  BufferHandle bad = add(data, kRows * kColumns);
  std::vector<std::byte> here(kRows * kColumns);
  bad.run = 10, bad.dims = {{kRows + 1, kColumns}}, bad.size = 10 * (kRows + 1);
  EXPECT_EQ(run_one(Kind::kRead, bad, Memory(here.data(), bad.size)).refusal, Refusal::kBeyond);
  const BufferHandle turned =
      owner.bulk->add(Memory(data, 1, {{kColumns, 1}, {kRows, kColumns}}), true, nullptr).value();
  bad = turned;
  bad.run = 10, bad.dims = {{2, 100}}, bad.size = 20;
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    EXPECT_EQ(run_one(kind, bad, Memory(here.data(), bad.size)).refusal, Refusal::kStrides);
  }
}

TEST_P(BulkPaths, ThirtyTwoAtATime) {
  constexpr uint64_t kSize = 300'000;
  std::vector<BulkOperation> operations;
  std::vector<std::vector<std::byte>> here;
  for (int i = 0; i < 32; ++i) {
    std::byte* const data = make(kSize);
    put(data, pattern(kSize, i));
    here.emplace_back(kSize);
    operations.push_back({Kind::kRead, add(data, kSize), Memory(here.back().data(), kSize), nullptr, 0, 0});
  }
  for (const BulkOutcome& outcome : run(std::move(operations))) EXPECT_EQ(outcome.code, Code::kDone);
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(same(here[static_cast<size_t>(i)], pattern(kSize, i))) << i;
}

TEST_P(BulkPaths, WhatFollowsAFenceSeesWhatWasBefore) {
  std::byte* const data = make(400'000);
  const BufferHandle handle = add(data, 400'000);
  std::vector<std::byte> written(400'000, std::byte{9}), read(400'000);
  const auto outcomes = run({{Kind::kWrite, handle, Memory(written.data(), written.size()), nullptr, 0, 0},
                             {},
                             {Kind::kRead, handle, Memory(read.data(), read.size()), nullptr, 0, 0},
                             {},
                             {Kind::kDrop, handle, {}, nullptr, 0, 0},
                             {},
                             {Kind::kRead, handle, Memory(read.data(), read.size()), nullptr, 0, 0},
                             {},
                             {Kind::kRead, handle, Memory(read.data(), read.size()), nullptr, 0, 0}});
  ASSERT_EQ(outcomes.size(), 5u);
  EXPECT_EQ(read, written);
  EXPECT_EQ(outcomes[2].code, Code::kDone);
  EXPECT_EQ(outcomes[3].refusal, Refusal::kDropped);
  EXPECT_EQ(outcomes[4].code, Code::kNotBegun);
  EXPECT_TRUE(run({}).empty());
}

TEST_P(BulkPaths, AHandleThatIsNoGoodIsRefused) {
  const BufferHandle handle = add(make(300'000), 300'000);
  std::vector<std::byte> here(300'000);
  const Memory local(here.data(), here.size());
  ASSERT_EQ(run_one(Kind::kRead, handle, local).code, Code::kDone);
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    BufferHandle bad = handle;
    bad.key.high ^= 4;
    EXPECT_EQ(run_one(kind, bad, local).refusal, Refusal::kForged);
    bad = handle;
    bad.offset = 1;
    EXPECT_EQ(run_one(kind, bad, local).refusal, Refusal::kBeyond);
  }
  const BufferHandle reader = *owner.bulk->read_only(handle);
  EXPECT_EQ(run_one(Kind::kRead, reader, local).code, Code::kDone);
  EXPECT_EQ(run_one(Kind::kWrite, reader, local).refusal, Refusal::kReadOnly);
  EXPECT_EQ(run_one(Kind::kFetchAdd, reader, {}).refusal, Refusal::kReadOnly);
  EXPECT_EQ(run_one(Kind::kDrop, handle, {}).code, Code::kDone);
  EXPECT_EQ(owner.bulk->buffers(), 0u);
  for (const Kind kind : {Kind::kRead, Kind::kWrite, Kind::kFetchAdd, Kind::kDrop}) {
    EXPECT_EQ(run_one(kind, handle, local).refusal, Refusal::kDropped);
  }
}

TEST_P(BulkPaths, AtomicOperationsAreThat) {
  std::byte* const data = make(4096);
  BufferHandle word = add(data, 4096);
  word.offset = 8, word.size = 8;
  constexpr int kThreads = 4, kEach = 200;
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) sum += run({{Kind::kFetchAdd, word, {}, nullptr, 1, 0}})[0].value;
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr int64_t kAll = kThreads * kEach;
  EXPECT_EQ(sum, kAll * (kAll - 1) / 2) << "each value was there once";
  EXPECT_EQ(run({{Kind::kCompareSwap, word, {}, nullptr, 5, 4}})[0].value, kAll);
  EXPECT_EQ(run({{Kind::kCompareSwap, word, {}, nullptr, 5, kAll}})[0].value, kAll);
  EXPECT_EQ(run({{Kind::kFetchAdd, word, {}, nullptr, 0, 0}})[0].value, 5);
  word.offset = 4;
  EXPECT_NE(run({{Kind::kFetchAdd, word, {}, nullptr, 0, 0}})[0].text, "") << "not aligned";
}

// Whatever is read without an error was there before the drop.
TEST_P(BulkPaths, DroppedWhileItIsRead) {
  constexpr uint64_t kSize = 600'000;
  for (int round = 0; round < rounds(100, 10); ++round) {
    std::byte* const data = make(kSize);
    std::fill(data, data + kSize, std::byte{1});
    const BufferHandle handle = add(data, kSize);
    std::atomic<bool> dropped{false};
    std::jthread reader([&] {
      std::vector<std::byte> here(kSize);
      for (;;) {
        const bool is_last = dropped;
        const BulkOutcome outcome = run_one(Kind::kRead, handle, Memory(here.data(), kSize));
        if (outcome.code != Code::kDone) {
          EXPECT_EQ(outcome.refusal, Refusal::kDropped);
          return;
        }
        EXPECT_FALSE(is_last);
        for (const std::byte each : here) ASSERT_EQ(each, std::byte{1});
      }
    });
    std::latch gone(1);
    owner.bulk->submit({{Kind::kDrop, handle, {}, nullptr, 0, 0}}, kNoDeadline, [&](auto) { gone.count_down(); });
    gone.wait();
    dropped = true;
    if (GetParam() != By::kShm) std::fill(data, data + kSize, std::byte{2});
  }
}

// Nobody writes to what has been dropped, whoever has begun to.
TEST_P(BulkPaths, DroppedWhileItIsWritten) {
  constexpr uint64_t kSize = 600'000;
  const std::vector<std::byte> ones(kSize, std::byte{1}), twos(kSize, std::byte{2});
  for (int round = 0; round < rounds(100, 10); ++round) {
    std::byte* const data = make(kSize);
    const BufferHandle handle = add(data, kSize);
    const auto write = [&] {
      const BulkOperation operation{Kind::kWrite, handle, memory_of(ones), nullptr, 0, 0};
      const auto now = user().bulk->try_now(operation, kNoDeadline);
      return now ? *now : run({operation})[0];
    };
    while (GetParam() == By::kCma && !user().bulk->writes_itself(handle)) ASSERT_EQ(write().code, Code::kDone);
    std::latch begun(1);
    std::jthread writer([&] {
      EXPECT_EQ(write().code, Code::kDone);
      begun.count_down();
      BulkOutcome outcome;
      while ((outcome = write()).code == Code::kDone) {
      }
      EXPECT_EQ(outcome.refusal, Refusal::kDropped);
    });
    begun.wait();
    std::latch gone(1);
    owner.bulk->submit({{Kind::kDrop, handle, {}, nullptr, 0, 0}}, kNoDeadline, [&](auto) { gone.count_down(); });
    gone.wait();
    put(data, twos);
    writer.join();
    ASSERT_TRUE(same({data, kSize}, twos)) << round;
  }
}

TEST_P(BulkPaths, WhoHasBeenAdmittedWritesItself) {
  std::byte* const data = make(300'000);
  const BufferHandle handle = add(data, 300'000);
  std::vector<std::byte> here(handle.size, std::byte{3});
  const Memory local(here.data(), here.size());
  const BulkOperation operation{Kind::kWrite, handle, local, nullptr, 0, 0};
  ASSERT_EQ(run_one(Kind::kWrite, handle, local).code, Code::kDone);
  if (GetParam() != By::kCma) {
    EXPECT_FALSE(user().bulk->writes_itself(handle));
    return;
  }
  ASSERT_TRUE(drive_until(*user().home.driver, [&] { return user().bulk->writes_itself(handle); }));
  here[0] = std::byte{4};
  const auto outcome = user().bulk->try_now(operation, kNoDeadline);
  ASSERT_TRUE(outcome) << "without another thread";
  EXPECT_EQ(outcome->code, Code::kDone);
  EXPECT_TRUE(same({data, here.size()}, here));
  EXPECT_EQ(user().bulk->try_now(operation, user().node.clock().now_ns())->code, Code::kDeadline);
  EXPECT_FALSE(user().bulk->writes_itself(*owner.bulk->read_only(handle)));
  run_one(Kind::kDrop, handle, {});
  EXPECT_FALSE(user().bulk->try_now(operation, kNoDeadline)) << "its owner says why";
  EXPECT_EQ(run_one(Kind::kWrite, handle, local).refusal, Refusal::kDropped);
}

// That its owner had no descriptor left to know a writer by is told as a shortage, and is not for ever.
TEST_P(BulkPaths, WhoWasNotAdmittedInAShortageAsksAgain) {
  if (GetParam() != By::kCma) return;
  const BufferHandle handle = add(make(300'000), 300'000);
  const std::vector<std::byte> here(handle.size, std::byte{3});
  let_meet(other, handle);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> all;
  do all.emplace_back(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  while (all.back());
  EXPECT_EQ(run_one(Kind::kWrite, handle, memory_of(here)).code, Code::kDone) << "by its owner";
  let_meet(other, handle);
  EXPECT_FALSE(other.bulk->writes_itself(handle));
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  write_until_by_itself(other, handle, here);
}

TEST_P(BulkPaths, WhoeverIsAdmittedIsSoIfOneCallOnTheWayFails) {
  if (GetParam() != By::kCma) return;
  const BufferHandle handle = add(make(8), 8);
  uint64_t calls = 1;
  for (uint64_t nth = 1; nth <= calls; ++nth) {
    Side writer{By::kCma};
    owner.link_to(writer);
    let_meet(writer, handle);
    sys::fail_nth(nth);
    write_until_by_itself(writer, handle, std::vector<std::byte>(8));
    calls = std::min<uint64_t>(sys::calls_seen(), 6);
    sys::fail_nth(0);
    writer.end();
  }
  EXPECT_GE(calls, 2u) << "the descriptor of the process, and its table";
}

TEST_P(BulkPaths, ADeadlineThatHasPassed) {
  const BufferHandle handle = add(make(uint64_t{40} << 20), uint64_t{40} << 20);
  std::vector<std::byte> here(handle.size);
  const Memory local(here.data(), here.size());
  if (GetParam() == By::kLocal) return;  // nothing waits
  ASSERT_EQ(run_one(Kind::kRead, handle, local).code, Code::kDone);
  EXPECT_EQ(run_one(Kind::kRead, handle, local, user().node.clock().now_ns()).code, Code::kDeadline);
  EXPECT_EQ(run_one(Kind::kWrite, handle, local, user().node.clock().now_ns()).code, Code::kDeadline);
}

TEST_P(BulkPaths, AnOwnerThatIsGone) {
  if (GetParam() == By::kLocal) return;
  const BufferHandle handle = add(make(300'000), 300'000);
  std::vector<std::byte> here(handle.size);
  other.node.node_down(owner.node.id(), std::make_shared<const Failure>(Failure::Kind::kExited, "it was time"));
  const BulkOutcome outcome = run_one(Kind::kWrite, handle, Memory(here.data(), here.size()));
  EXPECT_EQ(outcome.code, Code::kFailed);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->kind, Failure::Kind::kExited);
}

TEST_P(BulkPaths, WhatIsDroppedIsNotKeptByThoseWhoHaveReadIt) {
  if (GetParam() != By::kShm) return;
  std::byte* const data = make(1 << 20);
  const BufferHandle handle = add(data, 1 << 20);
  std::vector<std::byte> here(handle.size);
  const auto maps = [] {
    std::ifstream file("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(file, line);) count += line.find("monarch-frozen") != line.npos;
    return count;
  };
  const int before = maps();
  ASSERT_EQ(run_one(Kind::kRead, handle, Memory(here.data(), here.size())).code, Code::kDone);
  EXPECT_EQ(maps(), before + 1);
  EXPECT_TRUE(drive_until(*user().home.driver, [&] { return maps() == before; })) << "not read any more, it is unmapped";
  ASSERT_EQ(run_one(Kind::kRead, handle, Memory(here.data(), here.size())).code, Code::kDone);
}

// Also of who has been admitted as a writer, and so is known twice.
TEST_P(BulkPaths, WhatIsReadAllTheTimeStaysMapped) {
  if (GetParam() != By::kShm) return;
  const BufferHandle read = add(make(1 << 20), 1 << 20);
  std::vector<std::byte> here(read.size), written(8);
  const Memory into(here.data(), here.size());
  const BufferHandle own = other.bulk->add(Memory(written.data(), written.size()), true, nullptr).value();
  let_meet(owner, own);
  write_until_by_itself(owner, own, std::vector<std::byte>(8));
  const auto read_for = [&](int64_t milliseconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (std::chrono::steady_clock::now() < until) ASSERT_EQ(run_one(Kind::kRead, read, into).code, Code::kDone);
  };
  // Looks for what is idle may need a thread, sooner or later; one that forgets what is in use would map it in each period.
  uint64_t fewest = UINT64_MAX;
  for (int period = 0; period < 4 && fewest != 0; ++period) {
    sys::fail_nth(0);
    read_for(2'500);
    fewest = std::min(fewest, sys::calls_seen());
  }
  EXPECT_EQ(fewest, 0u) << "it was mapped again";
}

TEST_P(BulkPaths, AfterTheEndNothingBegins) {
  const BufferHandle handle = add(make(100'000), 100'000);
  std::vector<std::byte> here(handle.size);
  user().bulk->stop();
  EXPECT_EQ(run_one(Kind::kRead, handle, Memory(here.data(), here.size())).code, Code::kFailed);
}

TEST_P(BulkPaths, WhatKeepsMemoryIsDroppedWithTheLastUse) {
  const auto keeper = std::make_shared<int>(1);
  std::byte* const data = make(300'000);
  const BufferHandle handle = owner.bulk->add(Memory(data, 300'000), true, keeper).value();
  std::vector<std::byte> here(handle.size);
  const auto of_target = std::make_shared<int>(2);
  run({{Kind::kRead, handle, Memory(here.data(), here.size()), of_target, 0, 0}});
  EXPECT_TRUE(drive_until(*user().home.driver, [&] { return of_target.use_count() == 1; }));
  EXPECT_EQ(keeper.use_count(), 2);
  run_one(Kind::kDrop, handle, {});
  EXPECT_TRUE(drive_until(*user().home.driver, [&] { return keeper.use_count() == 1; }));
}

}  // namespace
}  // namespace monarch::testing
