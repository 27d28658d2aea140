#include "monarch/net/freezable.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "monarch/base/system.h"
#include "monarch/net/message.h"

namespace monarch {
namespace {

constexpr uint64_t kSize = 256 * 1024 + 8;

std::shared_ptr<Freezable> made(uint64_t size = kSize) { return Freezable::make(size).value(); }
ByteSpan all_of(const Freezable& memory) { return {memory.data(), memory.size()}; }

TEST(Freezable, IsFoundByItsAddressesWhileItIsUsed) {
  auto memory = made();
  std::byte* const data = memory->data();
  EXPECT_EQ(memory->size(), kSize);
  EXPECT_EQ(Freezable::find({data + 8, kSize - 8}), memory);
  EXPECT_EQ(Freezable::find({data + 8, kSize - 7}), nullptr);
  EXPECT_EQ(Freezable::find({data - 1, 2}), nullptr);
  EXPECT_EQ(Freezable::find({data, UINT64_MAX}), nullptr);
  EXPECT_EQ(Freezable::find_frozen(all_of(*memory)), nullptr);
  ASSERT_TRUE(memory->freeze().ok());
  EXPECT_TRUE(memory->freeze().ok());
  EXPECT_EQ(Freezable::find_frozen(all_of(*memory)), memory);
  memory.reset();
  EXPECT_EQ(Freezable::find_frozen({data, 1}), nullptr);
}

TEST(Freezable, NobodyCanWriteToItOrShrinkItOnceItIsFrozen) {
  auto memory = made();
  memory->data()[7] = std::byte{7};
  ASSERT_TRUE(memory->freeze().ok());
  EXPECT_NE(ftruncate(memory->fd(), 0), 0);
  EXPECT_LT(pwrite(memory->fd(), "x", 1, 0), 0);
  EXPECT_EQ(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0), MAP_FAILED);
  const pid_t child = fork();
  if (child == 0) {
    memory->data()[7] = std::byte{8};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_NE(status, 0) << "SIGSEGV, of which a sanitizer makes an exit status";
  EXPECT_EQ(memory->data()[7], std::byte{7});
}

TEST(Freezable, AWriteToAPrivateMapIsSeenThereOnly) {
  auto memory = made();
  memory->data()[kSize - 1] = std::byte{7};
  ASSERT_TRUE(memory->freeze().ok());
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  auto one = memory->map_privately(0, kSize), other = memory->map_privately(page, kSize - page);
  ASSERT_TRUE(one.ok() && other.ok());
  auto* const bytes = static_cast<std::byte*>(one->get());
  auto* const end = static_cast<std::byte*>(other->get()) + kSize - page - 1;
  EXPECT_EQ(*end, std::byte{7});
  bytes[kSize - 1] = std::byte{8};
  EXPECT_EQ(memory->data()[kSize - 1], std::byte{7});
  EXPECT_EQ(*end, std::byte{7});
  EXPECT_EQ(Freezable::find({bytes, kSize}), nullptr) << "what is sent of it is a copy";
  memory.reset();
  EXPECT_EQ(bytes[kSize - 1], std::byte{8});
  EXPECT_EQ(*end, std::byte{7});
}

TEST(Freezable, WhatComesBackIsWhatIsHere) {
  auto memory = made();
  ASSERT_TRUE(memory->freeze().ok());
  auto back = Freezable::adopt(sys::duplicate(memory->fd()));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE((*back)->made_here());
  EXPECT_EQ(Freezable::use(*back), memory);
}

TEST(Freezable, APeersMemoryMustBeSealedAndOfSomeSizeAndNotOurOwnThatIsOpen) {
  const auto refused = [](UniqueFd fd) {
    auto adopted = Freezable::adopt(std::move(fd));
    return !adopted && adopted.error().code == ErrorCode::kMalformed;
  };
  EXPECT_TRUE(refused(UniqueFd()));
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_TRUE(refused(std::move(unsealed)));
  UniqueFd nothing(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(nothing.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(refused(std::move(nothing)));
  UniqueFd pipe[2];
  ASSERT_TRUE(sys::make_pipe(pipe));
  EXPECT_TRUE(refused(std::move(pipe[0])));
  auto open = made();
  EXPECT_TRUE(refused(sys::duplicate(open->fd())));
}

class Told final : public FrozenLender {
 public:
  void frozen_ended(uint64_t id) override { ids.push_back(id); }
  std::vector<uint64_t> ids;
};

TEST(Freezable, ItsLendersAreToldOfTheEndOfEachUse) {
  auto told = std::make_shared<Told>(), gone = std::make_shared<Told>();
  auto memory = made();
  ASSERT_TRUE(memory->freeze().ok());
  auto map = Freezable::adopt(sys::duplicate(memory->fd())).value();  // a link keeps it
  const uint64_t id = memory->id();
  memory->tell(told);
  memory->tell(gone);
  gone.reset();
  memory.reset();
  EXPECT_EQ(told->ids, std::vector<uint64_t>{id});
  EXPECT_NE(Freezable::use(map)->id(), id);
}

TEST(Freezable, AForkedChildWritesToItsOwnWhatIsNotFrozen) {
  auto open = made(), frozen = made();
  open->data()[0] = frozen->data()[0] = std::byte{1};
  ASSERT_TRUE(frozen->freeze().ok());
  const pid_t child = fork();
  if (child == 0) {
    open->data()[0] = std::byte{2};
    const bool is_right = open->data()[0] == std::byte{2} && frozen->data()[0] == std::byte{1} && !open->freeze().ok() &&
                          Freezable::find(all_of(*open)) == nullptr && Freezable::find(all_of(*frozen)) == frozen;
    _exit(is_right ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(open->data()[0], std::byte{1});
}

TEST(Freezable, AShortageOfAnythingLeavesNothing) {
  for (uint64_t nth = 1;; ++nth) {
    sys::fail_nth(nth);
    auto tried = Freezable::make(kSize);
    const bool failed = sys::calls_seen() >= nth;
    sys::fail_nth(0);
    if (!failed) break;
    ASSERT_FALSE(tried.ok());
    EXPECT_EQ(tried.error().code, ErrorCode::kUnavailable);
  }
}

TEST(Message, WithinAProcessWhatIsFrozenIsNotCopied) {
  auto memory = made();
  ASSERT_TRUE(memory->freeze().ok());
  const ByteSpan parts[] = {all_of(*memory).subspan(100, 1000)};
  auto message = Message::copy_of(Outgoing{FrameHeader{}, {}, parts}, 0);
  EXPECT_EQ(message->parts[0].data, memory->data() + 100);
  std::byte* const data = memory->data();
  memory.reset();
  EXPECT_NE(Freezable::find_frozen({data, 1}), nullptr);
}

}  // namespace
}  // namespace monarch
