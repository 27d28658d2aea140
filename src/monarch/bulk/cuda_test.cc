// Memory of devices, with the driver that stands in for CUDA's (tests/native/fake_cuda.cc): on either side, each way.
#include "monarch/bulk/cuda.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <thread>

#include "monarch/base/forked.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/ucx.h"
#include "monarch/testing/bulk_side.h"
#include "monarch/testing/bytes.h"

namespace monarch::testing {
namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

// What tests ask of it.
struct FakeCuda {
  uint64_t (*allocate)(uint64_t size, int device, int shareable);
  void (*free)(uint64_t at);
  void* (*bytes)(uint64_t at);
  int (*opens)();
  int (*closes)();
  int (*copies)();

  static const FakeCuda& get() {
    static const FakeCuda made = [] {
      setenv("MONARCH_CUDA_LIBRARY", MONARCH_FAKE_CUDA, 1);
      void* const library = dlopen(MONARCH_FAKE_CUDA, RTLD_NOW);
      MONARCH_CHECK(library != nullptr && Cuda::find() != nullptr);
      FakeCuda fake;
      const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        MONARCH_CHECK(function != nullptr);
      };
      find(fake.allocate, "fake_cuda_allocate");
      find(fake.free, "fake_cuda_free");
      find(fake.bytes, "fake_cuda_bytes");
      find(fake.opens, "fake_cuda_opens");
      find(fake.closes, "fake_cuda_closes");
      find(fake.copies, "fake_cuda_copies");
      return fake;
    }();
    return made;
  }
};

// Bytes of the host or of a device, which the test sees in either case.
class Bytes {
 public:
  Bytes(uint64_t size, int device, bool shareable = true) : device_(device) {
    if (device == Memory::kHost) {
      heap_.resize(size);
      data = seen = heap_.data();
    } else {
      at_ = FakeCuda::get().allocate(size, device, shareable);
      data = reinterpret_cast<std::byte*>(at_);
      seen = static_cast<std::byte*>(FakeCuda::get().bytes(at_));
    }
  }
  explicit Bytes(std::shared_ptr<Freezable> shared) : device_(Memory::kHost), shared_(std::move(shared)) {
    data = seen = shared_->data();
  }
  ~Bytes() { free(); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  void free() {
    if (at_ != 0) FakeCuda::get().free(std::exchange(at_, 0));
  }
  Memory memory(uint64_t size) const { return Memory(data, size).on(device_); }
  // What strides make of it, to be looked at by the test.
  Memory seen_as(uint64_t item, std::vector<Memory::Dim> dims) const { return Memory(seen, item, std::move(dims)); }
  Memory memory_as(uint64_t item, std::vector<Memory::Dim> dims) const {
    return Memory(data, item, std::move(dims)).on(device_);
  }

  std::byte* data;
  std::byte* seen;

 private:
  const int device_;
  std::vector<std::byte> heap_;
  std::shared_ptr<Freezable> shared_;
  uint64_t at_ = 0;
};

// ---- The driver ----

TEST(Cuda, IsNotThere) {
  const auto found = Cuda::load("/nowhere/libcuda.so.1");
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("there is no CUDA driver: /nowhere/libcuda.so.1"), std::string::npos);
  const auto strange = Cuda::load("libm.so.6");
  ASSERT_FALSE(strange);
  EXPECT_NE(strange.error().message.find("it has no cu"), std::string::npos) << strange.error().message;
}

TEST(Cuda, KnowsOnWhichDeviceAnAddressIs) {
  const Bytes here(100, 1);
  const Cuda* const cuda = Cuda::find();
  EXPECT_EQ(cuda->device_of(here.data).value(), 1);
  EXPECT_EQ(cuda->device_of(here.data + 99).value(), 1);
  int host = 0;
  EXPECT_EQ(cuda->device_of(&host).error().message, "cuPointerGetAttribute: invalid argument (1)");
}

TEST(Cuda, CopiesAreThereWhenTheyReturn) {
  for (const int to : {Memory::kHost, 0, 1}) {
    for (const int from : {Memory::kHost, 0, 1}) {
      if (to == Memory::kHost && from == Memory::kHost) continue;
      constexpr uint64_t kItems = 70'000;
      const Bytes source(8 * kItems, from), target(8 * kItems, to);
      put(source.seen, pattern(8 * kItems, 1));
      const Cuda* const cuda = Cuda::find();
      ASSERT_TRUE(cuda->copy(target.memory(8 * kItems), 0, source.memory(8 * kItems), 0, 8 * kItems));
      EXPECT_TRUE(same({source.seen, 8 * kItems}, {target.seen, 8 * kItems}));
      // The items of a few columns, from the third byte on.
      const Memory columns = source.memory_as(4, {{2, 8}, {500, 64}}), flat = target.memory(4000);
      ASSERT_TRUE(cuda->copy(flat, 0, columns, 3, 3997));
      std::vector<std::byte> wanted(3997), back(8 * kItems);
      ASSERT_TRUE(source.seen_as(4, {{2, 8}, {500, 64}}).gather(3, 3997, wanted.data()));
      EXPECT_TRUE(same(wanted, {target.seen, wanted.size()}));
      ASSERT_TRUE(cuda->copy(target.memory_as(2, {{4000, 6}}), 10, source.memory(8000), 20, 7000));
      ASSERT_TRUE(target.seen_as(2, {{4000, 6}}).gather(10, 7000, back.data()));
      EXPECT_TRUE(std::equal(source.seen + 20, source.seen + 7020, back.begin()));
    }
  }
}

TEST(Cuda, MemoryThatIsGoneIsAnError) {
  Bytes gone(100, 0);
  const Memory memory = gone.memory(100);
  gone.free();
  std::vector<std::byte> here(100);
  EXPECT_FALSE(memory.gather(0, 100, here.data()));
  EXPECT_FALSE(memory.scatter(0, 100, here.data()));
  EXPECT_EQ(gather_checked(memory, 0, 100, here.data()), CopyOutcome::kFault);
  EXPECT_EQ(Cuda::find()->device_of(memory.data()).error().code, ErrorCode::kUnavailable);
}

TEST(Cuda, AChildOfForkDoesNotCallIt) {
  const Bytes here(100, 0);
  const pid_t child = fork();
  if (child == 0) {
    note_forked_child();
    std::string why_not;
    std::byte into[100];
    const bool refused = Cuda::find(&why_not) == nullptr && why_not.find("child of fork()") != std::string::npos;
    _exit(refused && !here.memory(100).gather(0, 100, into) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- Two Bulks ----

enum class Way { kLocal, kShm, kCma, kCudaIpc, kLink, kStream, kPlainStream, kUcx };

struct Case {
  Way way;
  bool owner_on_device, user_on_device;
};

Paths paths_of(Way way) { return {way < Way::kLink, way < Way::kLink, way < Way::kLink}; }

struct Side : BulkSide {
  explicit Side(Way way)
      : BulkSide(paths_of(way), way > Way::kLink ? std::optional<std::string>("127.0.0.1") : std::nullopt,
                 way == Way::kUcx) {
    if (way > Way::kLink) bulk->streams()->use(way == Way::kStream, 1);
  }
};

class Pair {
 public:
  explicit Pair(Way way) : owner(way), other(way), is_local_(way == Way::kLocal) {
    owner.link_to(other);
  }
  ~Pair() {
    owner.end();
    other.end();
  }
  Side& user() { return is_local_ ? owner : other; }
  BulkOutcome run(Kind kind, const BufferHandle& at, const Memory& local = {}, int64_t deadline_ns = kNoDeadline,
                  std::shared_ptr<const void> keeper = nullptr) {
    std::latch done(1);
    BulkOutcome outcome;
    user().bulk->submit({{kind, at, local, std::move(keeper), 1, 0}}, deadline_ns, [&](std::vector<BulkOutcome> all) {
      outcome = std::move(all[0]);
      done.count_down();
    });
    done.wait();
    return outcome;
  }
  std::pair<Path, std::string> explain(const BufferHandle& at) {
    std::latch done(1);
    std::pair<Path, std::string> told;
    user().bulk->explain(at, kNoDeadline, [&](Path path, const std::string& why) {
      told = {path, why};
      done.count_down();
    });
    done.wait();
    return told;
  }
  BufferHandle add(const Memory& memory) { return owner.bulk->add(memory, true, nullptr).value(); }

  Side owner, other;

 private:
  const bool is_local_;
};

class BulkOnDevices : public ::testing::TestWithParam<Case> {
 protected:
  BulkOnDevices() : pair(GetParam().way) {}
  void SetUp() override {
    std::byte byte{};
    const Memory mine(&byte, 1);
    if (GetParam().way == Way::kCma && copy_from_process(getpid(), mine, 0, mine, 0, 1) == CopyOutcome::kDenied) {
      GTEST_SKIP() << "not run: the kernel does not copy between processes here";
    }
    if (GetParam().way == Way::kUcx && !UcxEnd::make()) GTEST_SKIP() << "not run: " << UcxEnd::make().error().message;
  }
  // Of the owner.
  std::unique_ptr<Bytes> make(uint64_t size) const {
    if (GetParam().way == Way::kShm) return std::make_unique<Bytes>(Freezable::make(size).value());
    return std::make_unique<Bytes>(size, GetParam().owner_on_device ? 0 : Memory::kHost);
  }
  // Of who reads and writes: on the second device.
  Bytes make_here(uint64_t size) const { return Bytes(size, GetParam().user_on_device ? 1 : Memory::kHost); }

  Pair pair;
};

std::string name_of(const ::testing::TestParamInfo<Case>& param) {
  const char* const names[] = {"Local", "Shm", "Cma", "CudaIpc", "Link", "Stream", "PlainStream", "Ucx"};
  const auto place = [](bool on_device) { return on_device ? "Device" : "Host"; };
  return std::string(names[static_cast<int>(param.param.way)]) + place(param.param.owner_on_device) + "To" +
         place(param.param.user_on_device);
}

INSTANTIATE_TEST_SUITE_P(
    By, BulkOnDevices,
    ::testing::Values(Case{Way::kLocal, true, false}, Case{Way::kLocal, false, true}, Case{Way::kLocal, true, true},
                      Case{Way::kShm, false, true}, Case{Way::kCma, false, true}, Case{Way::kCudaIpc, true, false},
                      Case{Way::kCudaIpc, true, true},
                      Case{Way::kLink, true, false}, Case{Way::kLink, false, true}, Case{Way::kLink, true, true},
                      Case{Way::kStream, true, false}, Case{Way::kStream, false, true}, Case{Way::kStream, true, true},
                      Case{Way::kPlainStream, true, false}, Case{Way::kPlainStream, false, true},
                      Case{Way::kUcx, true, false}, Case{Way::kUcx, false, true}),
    name_of);

TEST_P(BulkOnDevices, IsTheWayThatIsMeant) {
  const auto data = make(100'000);
  const auto [path, why] = pair.explain(pair.add(data->memory(100'000)));
  const Path paths[] = {Path::kLocal, Path::kShm,    Path::kCma,    Path::kCudaIpc,
                        Path::kLink,  Path::kStream, Path::kStream, Path::kUcx};
  EXPECT_EQ(path, paths[static_cast<int>(GetParam().way)]) << why;
}

TEST_P(BulkOnDevices, AllSizesAndOffsetsAreReadAndWritten) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{64}, uint64_t{4097}, uint64_t{70'001}, (uint64_t{1} << 20) + 3,
                              short_form() ? uint64_t{2} << 20 : uint64_t{20} << 20}) {
    constexpr uint64_t kBefore = 5, kAfter = 9, kMore = kBefore + kAfter;
    const auto data = make(size + kMore);
    put(data->seen, pattern(size + kMore, 1));
    BufferHandle part = pair.add(data->memory(size + kMore));
    part.offset = kBefore, part.size = size;
    const Bytes here = make_here(size + 1);
    here.seen[size] = std::byte{255};
    ASSERT_EQ(pair.run(Kind::kRead, part, here.memory(size)).code, Code::kDone) << size;
    ASSERT_TRUE(same({here.seen, size}, pattern(size, 1, kBefore))) << size;
    EXPECT_EQ(here.seen[size], std::byte{255});
    put(here.seen, pattern(size, 2));
    ASSERT_EQ(pair.run(Kind::kWrite, part, here.memory(size)).code, Code::kDone) << size;
    ASSERT_TRUE(same({data->seen + kBefore, size}, pattern(size, 2))) << size;
    EXPECT_EQ(data->seen[kBefore - 1], pattern_at(kBefore - 1, 1));
    EXPECT_EQ(data->seen[kBefore + size], pattern_at(kBefore + size, 1));
    EXPECT_EQ(pair.run(Kind::kDrop, part).code, Code::kDone);
  }
  if (GetParam().way > Way::kLink) {
    EXPECT_GT(pair.other.bulk->streams()->done(), 0u);
  }
}

TEST_P(BulkOnDevices, StridesOnEitherSide) {
  constexpr uint64_t kRows = 150, kColumns = 100, kSize = kRows * kColumns * 4;
  const std::vector<Memory::Dim> turned{{kColumns, 4}, {kRows, kColumns * 4}}, apart{{kSize / 4, 8}};
  const auto data = make(kSize);
  const Bytes here = make_here(kSize), wide = make_here(2 * kSize);
  put(data->seen, pattern(kSize, 3));
  const BufferHandle columns = pair.add(data->memory_as(4, turned)), flat = pair.add(data->memory(kSize));
  std::vector<std::byte> wanted(kSize), found(kSize);
  ASSERT_TRUE(data->seen_as(4, turned).gather(0, kSize, wanted.data()));
  ASSERT_EQ(pair.run(Kind::kRead, columns, here.memory(kSize)).code, Code::kDone);
  EXPECT_TRUE(same(wanted, {here.seen, wanted.size()}));
  ASSERT_EQ(pair.run(Kind::kRead, columns, wide.memory_as(4, apart)).code, Code::kDone);
  ASSERT_TRUE(wide.seen_as(4, apart).gather(0, kSize, found.data()));
  EXPECT_TRUE(same(found, wanted));
  ASSERT_EQ(pair.run(Kind::kWrite, flat, wide.memory_as(4, apart)).code, Code::kDone);
  EXPECT_TRUE(same(wanted, {data->seen, wanted.size()}));
  ASSERT_EQ(pair.run(Kind::kWrite, columns, wide.memory_as(4, apart)).code, Code::kDone);
  ASSERT_TRUE(data->seen_as(4, turned).gather(0, kSize, found.data()));
  EXPECT_TRUE(same(found, wanted));
}

TEST_P(BulkOnDevices, BlocksOfAnArray) {
  constexpr uint64_t kRows = 300, kColumns = 2000, kSize = kRows * kColumns;
  const auto data = make(kSize);
  put(data->seen, pattern(kSize, 5));
  BufferHandle block = pair.add(data->memory(kSize));
  block.offset = 3 * kColumns + 7;
  block.run = 1500, block.dims = {{200, kColumns}}, block.size = 1500 * 200;
  const Bytes here = make_here(block.size);
  ASSERT_EQ(pair.run(Kind::kRead, block, here.memory(block.size)).code, Code::kDone);
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(same({here.seen + i * 1500, 1500}, pattern(1500, 5, block.offset + i * kColumns))) << i;
  }
  std::vector<std::byte> wanted(data->seen, data->seen + kSize);
  for (uint64_t i = 0; i < block.size; ++i) here.seen[i] ^= std::byte{0x80};
  ASSERT_EQ(pair.run(Kind::kWrite, block, here.memory(block.size)).code, Code::kDone);
  ASSERT_TRUE(Memory(wanted.data() + block.offset, 1500, {{200, kColumns}}).scatter(0, block.size, here.seen));
  EXPECT_TRUE(same(wanted, {data->seen, wanted.size()})) << "nothing else was written";
  const BufferHandle strided = pair.add(data->memory_as(1, {{kColumns, 1}, {kRows, kColumns}}));
  BufferHandle bad = strided;
  bad.run = 10, bad.dims = {{2, 100}}, bad.size = 20;
  EXPECT_EQ(pair.run(Kind::kRead, bad, here.memory(20)).refusal, Refusal::kStrides);
}

TEST_P(BulkOnDevices, AHandleThatIsNoGoodIsRefused) {
  const auto data = make(300'000);
  const Bytes here = make_here(300'000);
  const BufferHandle handle = pair.add(data->memory(300'000));
  const Memory local = here.memory(300'000);
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    BufferHandle bad = handle;
    bad.key.high ^= 4;
    EXPECT_EQ(pair.run(kind, bad, local).refusal, Refusal::kForged);
    bad = handle;
    bad.offset = 1;
    EXPECT_EQ(pair.run(kind, bad, local).refusal, Refusal::kBeyond);
  }
  EXPECT_EQ(pair.run(Kind::kRead, handle, local).code, Code::kDone);
  EXPECT_EQ(pair.run(Kind::kWrite, *pair.owner.bulk->read_only(handle), local).refusal, Refusal::kReadOnly);
  EXPECT_EQ(pair.run(Kind::kDrop, handle).code, Code::kDone);
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    EXPECT_EQ(pair.run(kind, handle, local).refusal, Refusal::kDropped);
  }
}

TEST_P(BulkOnDevices, NoAtomicOperations) {
  if (!GetParam().owner_on_device) return;
  const auto data = make(64);
  BufferHandle word = pair.add(data->memory(64));
  word.size = 8;
  for (const Kind kind : {Kind::kFetchAdd, Kind::kCompareSwap}) {
    const BulkOutcome outcome = pair.run(kind, word);
    EXPECT_EQ(outcome.code, Code::kShortage);
    EXPECT_EQ(outcome.text, "atomic operations are for memory of the host, and this is on a CUDA device");
  }
}

// Whatever is read without an error was there before the drop.
TEST_P(BulkOnDevices, DroppedWhileItIsRead) {
  constexpr uint64_t kSize = 600'000;
  const auto data = make(kSize);
  const Bytes here = make_here(kSize);
  for (int round = 0; round < rounds(30, 5); ++round) {
    const auto write = [&](std::byte value) {
      const std::vector<std::byte> bytes(kSize, value);
      ASSERT_EQ(scatter_checked(data->memory(kSize), 0, kSize, bytes.data()), CopyOutcome::kDone);
    };
    write(std::byte{1});
    const BufferHandle handle = pair.add(data->memory(kSize));
    std::atomic<bool> dropped{false};
    std::jthread reader([&] {
      for (;;) {
        const bool is_last = dropped;
        const BulkOutcome outcome = pair.run(Kind::kRead, handle, here.memory(kSize));
        if (outcome.code != Code::kDone) {
          EXPECT_EQ(outcome.refusal, Refusal::kDropped);
          return;
        }
        EXPECT_FALSE(is_last);
        ASSERT_TRUE(std::all_of(here.seen, here.seen + kSize, [](std::byte each) { return each == std::byte{1}; }));
      }
    });
    std::latch gone(1);
    pair.owner.bulk->submit({{Kind::kDrop, handle, {}, nullptr, 0, 0}}, kNoDeadline, [&](auto) { gone.count_down(); });
    gone.wait();
    dropped = true;
    write(std::byte{2});
  }
}

TEST_P(BulkOnDevices, AnOwnerThatIsGone) {
  if (GetParam().way == Way::kLocal) return;
  const auto data = make(300'000);
  const Bytes here = make_here(300'000);
  const BufferHandle handle = pair.add(data->memory(300'000));
  // A connection that there is already knows nothing of it.
  if (GetParam().way <= Way::kLink) {
    ASSERT_EQ(pair.run(Kind::kRead, handle, here.memory(300'000)).code, Code::kDone);
  }
  pair.other.node.node_down(pair.owner.node.id(), std::make_shared<const Failure>(Failure::Kind::kExited, "it was time"));
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    const BulkOutcome outcome = pair.run(kind, handle, here.memory(300'000));
    EXPECT_EQ(outcome.code, Code::kFailed);
    ASSERT_TRUE(outcome.failure);
    EXPECT_EQ(outcome.failure->kind, Failure::Kind::kExited);
  }
}

TEST_P(BulkOnDevices, MemoryThatIsGoneIsAnError) {
  if (GetParam().way > Way::kLink) return;  // by the link, in the end
  if (GetParam().owner_on_device && GetParam().way != Way::kCudaIpc) {  // what has been opened stays
    const auto data = make(300'000);
    const Bytes here = make_here(300'000);
    const BufferHandle handle = pair.add(data->memory(300'000));
    data->free();
    EXPECT_EQ(pair.run(Kind::kRead, handle, here.memory(300'000)).code, Code::kFault);
    EXPECT_EQ(pair.run(Kind::kWrite, handle, here.memory(300'000)).code, Code::kFault);
  }
  if (GetParam().user_on_device) {
    const auto data = make(300'000);
    Bytes here = make_here(300'000);
    const BufferHandle handle = pair.add(data->memory(300'000));
    const Memory local = here.memory(300'000);
    ASSERT_EQ(pair.run(Kind::kRead, handle, local).code, Code::kDone);  // what is opened is not opened there
    here.free();
    EXPECT_EQ(pair.run(Kind::kRead, handle, local).code, Code::kFault);
    EXPECT_EQ(pair.run(Kind::kWrite, handle, local).code, Code::kFault);
    BufferHandle few = handle;
    few.size = 100;
    EXPECT_EQ(pair.run(Kind::kRead, few, local).code, Code::kFault);
  }
}

TEST_P(BulkOnDevices, WhatKeepsMemoryIsDroppedWithTheLastUse) {
  const auto data = make(300'000);
  const Bytes here = make_here(300'000);
  const auto keeper = std::make_shared<int>(1), of_target = std::make_shared<int>(2);
  const BufferHandle handle = pair.owner.bulk->add(data->memory(300'000), true, keeper).value();
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    pair.run(kind, handle, here.memory(300'000), kNoDeadline, of_target);
    EXPECT_TRUE(drive_until(*pair.user().home.driver, [&] { return of_target.use_count() == 1; }));
  }
  pair.run(Kind::kDrop, handle);
  EXPECT_TRUE(drive_until(*pair.user().home.driver, [&] { return keeper.use_count() == 1; }));
}

// ---- Between processes ----

TEST(BulkCudaIpc, AnAllocationIsOpenedOnceAndClosedWhenItIsIdle) {
  Pair pair(Way::kCudaIpc);
  const Bytes data(1 << 20, 0);
  put(data.seen, pattern(1 << 20, 4));
  const int opens = FakeCuda::get().opens(), closes = FakeCuda::get().closes();
  std::vector<std::byte> here(1000);
  for (uint64_t at = 0; at < 100'000; at += 10'000) {  // as an allocator cuts its blocks
    const BufferHandle handle = pair.add(Memory(data.data + at, 1000).on(0));
    ASSERT_EQ(pair.run(Kind::kRead, handle, Memory(here.data(), 1000)).code, Code::kDone);
    EXPECT_TRUE(same(here, {data.seen + at, here.size()}));
    EXPECT_TRUE(pair.user().bulk->try_now({Kind::kRead, handle, Memory(here.data(), 1000), nullptr, 0, 0}, kNoDeadline));
  }
  EXPECT_EQ(FakeCuda::get().opens(), opens + 1);
  EXPECT_TRUE(drive_until(*pair.user().home.driver, [&] { return FakeCuda::get().closes() == closes + 1; }));
  const BufferHandle again = pair.add(data.memory(1000));
  ASSERT_EQ(pair.run(Kind::kRead, again, Memory(here.data(), 1000)).code, Code::kDone);
  EXPECT_EQ(FakeCuda::get().opens(), opens + 2);
}

TEST(BulkCudaIpc, ManyAllocations) {
  Pair pair(Way::kCudaIpc);
  std::vector<std::unique_ptr<Bytes>> all;
  std::vector<BufferHandle> handles;
  const int opens = FakeCuda::get().opens(), closes = FakeCuda::get().closes();
  for (int i = 0; i < 40; ++i) {
    all.push_back(std::make_unique<Bytes>(1000, i % 2));
    std::fill(all.back()->seen, all.back()->seen + 1000, static_cast<std::byte>(i));
    handles.push_back(pair.add(all.back()->memory(1000)));
  }
  std::vector<std::byte> here(1000);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < handles.size(); ++i) {
      ASSERT_EQ(pair.run(Kind::kRead, handles[i], Memory(here.data(), 1000)).code, Code::kDone);
      EXPECT_EQ(here[999], static_cast<std::byte>(i));
    }
  }
  EXPECT_LE(FakeCuda::get().opens() - opens - (FakeCuda::get().closes() - closes), 32) << "bounded";
}

TEST(BulkCudaIpc, WhatCannotBeSharedGoesByTheLink) {
  Pair pair(Way::kCudaIpc);
  const Bytes data(300'000, 0, /*shareable=*/false);
  put(data.seen, pattern(300'000, 6));
  const BufferHandle handle = pair.add(data.memory(300'000));
  std::vector<std::byte> here(300'000);
  ASSERT_EQ(pair.run(Kind::kRead, handle, Memory(here.data(), here.size())).code, Code::kDone);
  EXPECT_TRUE(same(here, {data.seen, here.size()}));
  EXPECT_EQ(pair.explain(handle), std::pair(Path::kLink, std::string("shm and cma: it is memory of a device; cuda-ipc: "
                                                                     "cuIpcGetMemHandle: invalid argument (1): so it is "
                                                                     "with PyTorch's expandable segments")));
  const Bytes pieces(1000, 0);
  const BufferHandle strided = pair.add(pieces.memory_as(1, {{500, 2}}));
  EXPECT_EQ(pair.explain(strided), std::pair(Path::kLink, std::string("shm and cma: it is memory of a device; cuda-ipc: "
                                                                      "its bytes do not lie one behind the other")));
}

TEST(BulkCudaIpc, APlaceIsTakenAgain) {
  Pair pair(Way::kCudaIpc);
  std::vector<std::byte> here(1000);
  for (int round = 0; round < 5; ++round) {  // the same place in the table, another allocation or the host's
    const Bytes data(1000, round == 3 ? -1 : round % 2);
    std::fill(data.seen, data.seen + 1000, static_cast<std::byte>(round));
    const BufferHandle handle = pair.add(data.memory(1000));
    ASSERT_EQ(pair.run(Kind::kRead, handle, Memory(here.data(), 1000)).code, Code::kDone);
    EXPECT_EQ(here[0], static_cast<std::byte>(round));
    EXPECT_EQ(pair.run(Kind::kDrop, handle).code, Code::kDone);
    EXPECT_EQ(pair.run(Kind::kRead, handle, Memory(here.data(), 1000)).refusal, Refusal::kDropped);
  }
}

}  // namespace
}  // namespace monarch::testing
