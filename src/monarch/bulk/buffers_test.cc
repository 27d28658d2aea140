#include "monarch/bulk/buffers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "monarch/bulk/kernel_copy.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {
namespace {

constexpr NodeId kHere = 77;

struct BuffersTest : ::testing::Test {
  BufferHandle add(bool writable = true) {
    return buffers->add(kHere, Memory(bytes.data(), bytes.size()), writable, keeper).value();
  }
  Refusal why(const BufferHandle& handle, bool to_write = false) {
    Refusal found = Refusal::kNone;
    const auto buffer = buffers->find(handle, to_write, &found);
    EXPECT_EQ(buffer != nullptr, found == Refusal::kNone);
    return found;
  }
  std::unique_ptr<Buffers> buffers = Buffers::make().value();
  std::vector<std::byte> bytes = std::vector<std::byte>(4096);
  std::shared_ptr<void> keeper = std::make_shared<int>(1);
};

TEST_F(BuffersTest, AHandleIsGoodUntilItsBufferIsDropped) {
  const BufferHandle handle = add();
  EXPECT_EQ(why(handle), Refusal::kNone);
  EXPECT_EQ(why(handle, true), Refusal::kNone);
  EXPECT_EQ(keeper.use_count(), 2);
  bool done = false;
  EXPECT_EQ(buffers->drop(handle, false, [&] { done = true; }), Refusal::kNone);
  EXPECT_TRUE(done);
  EXPECT_EQ(keeper.use_count(), 1);
  EXPECT_EQ(why(handle), Refusal::kDropped);
  EXPECT_EQ(buffers->drop(handle, false, [] {}), Refusal::kDropped);
  const BufferHandle next = add();
  EXPECT_EQ(next.index, handle.index) << "places are taken again";
  EXPECT_EQ(why(handle), Refusal::kDropped);
  EXPECT_EQ(why(next), Refusal::kNone);
}

TEST_F(BuffersTest, ADropWaitsForWhoeverUsesIt) {
  const BufferHandle handle = add();
  Refusal found;
  auto used = buffers->find(handle, true, &found);
  bool done = false;
  buffers->drop(handle, false, [&] { done = true; });
  EXPECT_FALSE(done);
  EXPECT_EQ(keeper.use_count(), 2);
  used.reset();
  EXPECT_TRUE(done);
  EXPECT_EQ(keeper.use_count(), 1);
}

TEST_F(BuffersTest, ASecondDropWaitsForThemToo) {
  const BufferHandle handle = add();
  Refusal why;
  auto used = buffers->find(handle, false, &why);
  ASSERT_TRUE(used);
  int done = 0;
  buffers->drop(handle, false, [&] { ++done; });
  EXPECT_EQ(buffers->drop(handle, false, [&] { ++done; }), Refusal::kNone);
  EXPECT_EQ(done, 0);
  used.reset();
  EXPECT_EQ(done, 2);
  EXPECT_EQ(buffers->drop(handle, false, [] {}), Refusal::kDropped);
}

TEST_F(BuffersTest, WhatWasNeverGivenOutIsForged) {
  const BufferHandle handle = add();
  BufferHandle forged = handle;
  forged.key.low ^= 1;
  EXPECT_EQ(why(forged), Refusal::kForged);
  EXPECT_EQ(buffers->drop(forged, false, [] {}), Refusal::kForged);
  forged = handle;
  forged.generation += 1;
  EXPECT_EQ(why(forged), Refusal::kForged);
  forged.generation = 0;
  EXPECT_EQ(why(forged), Refusal::kForged);
  forged = handle;
  forged.index = 5;
  EXPECT_EQ(why(forged), Refusal::kForged);
  EXPECT_EQ(why(handle), Refusal::kNone);
}

TEST_F(BuffersTest, WhoMayOnlyReadDoesNotWriteNorDrop) {
  const BufferHandle handle = add();
  BufferHandle reader = *buffers->read_only(handle);
  EXPECT_EQ(why(reader), Refusal::kNone);
  EXPECT_EQ(why(reader, true), Refusal::kReadOnly);
  EXPECT_EQ(buffers->drop(reader, false, [] {}), Refusal::kReadOnly);
  reader.writable = true;  // that is another key
  EXPECT_EQ(why(reader, true), Refusal::kForged);
  const BufferHandle of_constants = add(/*writable=*/false);
  EXPECT_FALSE(of_constants.writable);
  EXPECT_EQ(why(of_constants, true), Refusal::kReadOnly);
  EXPECT_EQ(buffers->drop(of_constants, false, [] {}), Refusal::kReadOnly);
  EXPECT_EQ(buffers->drop(of_constants, true, [] {}), Refusal::kNone);
}

TEST_F(BuffersTest, APartDoesNotReachPastTheEnd) {
  BufferHandle part = add();
  part.offset = 4000, part.size = 96;
  EXPECT_EQ(why(part), Refusal::kNone);
  part.size = 97;
  EXPECT_EQ(why(part), Refusal::kBeyond);
  part.offset = UINT64_MAX, part.size = 2;
  EXPECT_EQ(why(part), Refusal::kBeyond);
}

TEST_F(BuffersTest, ABlockIsNoMoreThanItSays) {
  BufferHandle block = add();
  const auto with = [&](uint64_t offset, uint64_t run, std::vector<Memory::Dim> dims, uint64_t size) {
    block.offset = offset, block.run = run, block.dims = std::move(dims), block.size = size;
    return why(block);
  };
  EXPECT_EQ(with(96, 100, {{10, 400}, {3, 100}}, 3000), Refusal::kNone);
  EXPECT_EQ(with(196, 100, {{10, 400}, {3, 100}}, 3000), Refusal::kNone);
  EXPECT_EQ(with(197, 100, {{10, 400}, {3, 100}}, 3000), Refusal::kBeyond);
  EXPECT_EQ(with(0, 100, {{10, 400}}, 1001), Refusal::kBeyond) << "its size is not that of its pieces";
  EXPECT_EQ(with(0, 100, {{0, 400}}, 0), Refusal::kBeyond);
  EXPECT_EQ(with(4000, 1, {{2, -8}}, 2), Refusal::kBeyond);
  EXPECT_EQ(with(0, 1, {{UINT64_MAX, 1}, {UINT64_MAX, 1}}, 1), Refusal::kBeyond);
  EXPECT_EQ(with(0, 1, {{3, INT64_MAX}}, 3), Refusal::kBeyond);
  EXPECT_EQ(with(0, 0, {{3, 1}}, 3), Refusal::kBeyond);
}

TEST_F(BuffersTest, AHundredThousandOfThem) {
  std::vector<BufferHandle> handles;
  for (int i = 0; i < 100'000; ++i) handles.push_back(add());
  EXPECT_EQ(buffers->size(), 100'000u);
  for (const BufferHandle& handle : handles) ASSERT_EQ(why(handle), Refusal::kNone);
  for (const BufferHandle& handle : handles) buffers->drop(handle, false, [] {});
  EXPECT_EQ(buffers->size(), 0u);
  EXPECT_EQ(keeper.use_count(), 1);
}

TEST(KernelCopy, MemoryThatIsNotThereIsAnOutcome) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* there = static_cast<std::byte*>(memory);
  std::vector<std::byte> here(2 * page, std::byte{3});
  const Memory whole(there, 2 * page), rows(there, 16, {{4, 64}, {2, 32}});
  EXPECT_EQ(scatter_checked(whole, 0, 2 * page, here.data()), CopyOutcome::kDone);
  EXPECT_EQ(there[2 * page - 1], std::byte{3});
  munmap(there + page, page);
  EXPECT_EQ(scatter_checked(whole, 0, 2 * page, here.data()), CopyOutcome::kFault);
  EXPECT_EQ(gather_checked(whole, page - 4, 8, here.data()), CopyOutcome::kFault);
  EXPECT_EQ(gather_checked(rows, 0, rows.size(), here.data()), CopyOutcome::kDone);
  ASSERT_EQ(mprotect(there, page, PROT_READ), 0);
  EXPECT_EQ(scatter_checked(rows, 0, rows.size(), here.data()), CopyOutcome::kFault);
  EXPECT_EQ(gather_checked(rows, 0, rows.size(), here.data()), CopyOutcome::kDone);
  munmap(there, page);
  EXPECT_EQ(gather_checked(rows, 0, rows.size(), here.data()), CopyOutcome::kFault);
}

// Seen in what a copy that fails at its first byte leaves.
TEST(KernelCopy, ALargeTargetThatNobodyHasTouchedIsEnteredBeforeTheCopy) {
  constexpr size_t kSize = 1 << 20;
  std::byte touched{};
  if (!are_there(&touched, 1, /*to_write=*/true)) GTEST_SKIP() << "not run: the kernel enters no pages (before 5.14)";
  void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, kSize, MADV_NOHUGEPAGE);
  const Memory into(static_cast<std::byte*>(memory), kSize), nowhere(reinterpret_cast<std::byte*>(4096), kSize);
  const std::byte* const last = into.data() + kSize - 1;
  EXPECT_EQ(copy_from_process(getpid(), nowhere, 0, into, 0, 4096), CopyOutcome::kFault);
  EXPECT_FALSE(is_resident(last));
  EXPECT_EQ(copy_from_process(getpid(), nowhere, 0, into, 0, kSize), CopyOutcome::kFault);
  EXPECT_TRUE(is_resident(last));
  munmap(memory, kSize);
}

TEST(KernelCopy, AProcessThatIsNotThereIsGone) {
  std::byte byte;
  EXPECT_EQ(copy_from_process(1 << 22, Memory(&byte, 1), 0, Memory(&byte, 1), 0, 1), CopyOutcome::kGone);
}

// ---- Handles of parts ----

BufferHandle part_of(const BufferHandle& handle, uint64_t offset, uint64_t size) {
  BufferHandle part = handle;
  part.offset += offset;
  part.size = size;
  part.confine();
  return part;
}

TEST_F(BuffersTest, APartIsForNoMoreThanWhatItMeans) {
  const BufferHandle whole = add(), part = part_of(whole, 100, 50), within = part_of(part, 10, 20);
  for (const BufferHandle& good : {whole, part, within}) EXPECT_EQ(why(good, true), Refusal::kNone);
  EXPECT_EQ(within.offset, 110u);
  BufferHandle altered = part;
  altered.offset -= 1;
  EXPECT_EQ(why(altered), Refusal::kForged);
  altered = part;
  altered.size += 1;
  EXPECT_EQ(why(altered), Refusal::kForged);
  altered.within = {{100, 51}};
  EXPECT_EQ(why(altered), Refusal::kForged);
  altered.within.clear();
  EXPECT_EQ(why(altered), Refusal::kForged) << "its key is not that of the buffer";
  altered = within;
  altered.within.pop_back();
  EXPECT_EQ(why(altered), Refusal::kForged);
  altered = within;
  std::swap(altered.within[0], altered.within[1]);
  EXPECT_EQ(why(altered), Refusal::kForged);
  BufferHandle less = part;  // as whoever moves it by and by
  less.offset += 7, less.size -= 8;
  EXPECT_EQ(why(less), Refusal::kNone);
  EXPECT_EQ(buffers->drop(part_of(whole, 1, 1), false, [] {}), Refusal::kNone);
}

TEST_F(BuffersTest, APartCanBeForReadersOnly) {
  const BufferHandle part = part_of(add(), 100, 50);
  BufferHandle reader = *buffers->read_only(part);
  EXPECT_EQ(why(reader), Refusal::kNone);
  EXPECT_EQ(why(reader, true), Refusal::kReadOnly);
  reader.size += 1;
  EXPECT_EQ(why(reader), Refusal::kForged);
}

TEST_F(BuffersTest, ABlockIsForWhatLiesBetweenItsFirstByteAndItsLast) {
  BufferHandle block = add();
  block.offset = 256, block.run = 16, block.size = 64, block.dims = {{4, 64}};
  block.confine();
  EXPECT_EQ(why(block), Refusal::kNone);
  EXPECT_EQ(block.within, (std::vector<BufferPart>{{256, 3 * 64 + 16}}));
  block.dims = {{4, 65}};
  EXPECT_EQ(why(block), Refusal::kForged);
}

TEST_F(BuffersTest, PartsOfPartsHaveABound) {
  BufferHandle part = add();
  for (size_t i = 1; i <= BufferHandle::kWithinMax + 2; ++i) part = part_of(part, 1, part.size - 1);
  EXPECT_EQ(part.within.size(), BufferHandle::kWithinMax);
  EXPECT_EQ(why(part), Refusal::kNone);
  part.within.push_back({part.offset, 1});
  EXPECT_EQ(why(part), Refusal::kForged);
}

// Of 16 bytes 0 to 15 under the key 0 to 15, as `openssl mac -macopt size:16 SIPHASH` gives it.
TEST(BufferKeys, AreMadeBySipHash) {
  constexpr uint64_t kLow = 0x0706050403020100, kHigh = 0x0f0e0d0c0b0a0908, kBits = UINT64_MAX >> 1;
  const BufferKey made = sip_hash({kLow, kHigh}, kLow, kHigh);
  EXPECT_EQ(made, (BufferKey{0xbb54b067caa4e26e & kBits, 0x77052385bf1533fd & kBits}));
}

}  // namespace
}  // namespace monarch
