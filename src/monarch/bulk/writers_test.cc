// Neighbours that write themselves: what their owner keeps for them, and what they leave alone.
#include "monarch/bulk/writers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/bulk/kernel_copy.h"
#include "monarch/net/freezable.h"

namespace monarch {
namespace {

constexpr NodeId kOwner = 77;
constexpr int kLimitMs = 20'000;

// As the other side is told what to do, and says that it has.
enum Command : char { kClaim = 'c', kLetGo = 'l', kLeaveFirstThread = 't' };
struct Order {
  Command command;
  BufferHandle handle() const {
    BufferHandle made;
    made.owner = kOwner;
    made.index = index, made.generation = generation;
    return made;
  }
  uint32_t index;
  uint64_t generation;
};

bool read_all(int fd, void* into, size_t size) {
  for (auto* at = static_cast<char*>(into); size > 0;) {
    pollfd ready{fd, POLLIN, 0};
    if (poll(&ready, 1, kLimitMs) != 1) return false;
    const ssize_t got = read(fd, at, size);
    if (got <= 0) return false;
    at += got, size -= static_cast<size_t>(got);
  }
  return true;
}

void serve(Buffers& buffers) {
  Buffers::WriteClaim* claim = nullptr;
  for (Order order; read_all(STDIN_FILENO, &order, sizeof order);) {
    if (order.command == kClaim) claim = new Buffers::WriteClaim(buffers.claim(order.handle()));
    if (order.command == kLetGo) delete std::exchange(claim, nullptr);
    if (order.command == kLeaveFirstThread) {
      std::thread([&buffers] { serve(buffers); }).detach();
    }
    if (write(STDOUT_FILENO, "k", 1) != 1) _exit(1);
    if (order.command == kLeaveFirstThread) syscall(SYS_exit, 0);  // of this thread; pthread_exit() unwinds through gtest
  }
  _exit(0);
}

// The other side: not a test.
TEST(WritersOtherSide, DISABLED_Serve) {
  auto* const buffers = Buffers::make().value().release();
  ValueWriter value;
  encode(value, Contact::of_here(buffers));
  const uint32_t size = static_cast<uint32_t>(value.written().size());
  if (write(STDOUT_FILENO, "contact:", 8) != 8 || write(STDOUT_FILENO, &size, sizeof size) != sizeof size) _exit(1);
  if (write(STDOUT_FILENO, value.written().data(), size) != size) _exit(1);
  serve(*buffers);
}

// A process that has been admitted.
class OtherSide {
 public:
  explicit OtherSide(Writers& writers) {
    int orders[2], answers[2];
    EXPECT_EQ(pipe2(orders, O_CLOEXEC) | pipe2(answers, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(orders[0], STDIN_FILENO);
      dup2(answers[1], STDOUT_FILENO);
      execl("/proc/self/exe", "test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            "--gtest_filter=WritersOtherSide.*", nullptr);
      _exit(127);
    }
    close(orders[0]), close(answers[1]);
    orders_ = UniqueFd(orders[1]), answers_ = UniqueFd(answers[0]);
    find(writers);
  }
  ~OtherSide() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void order(Command command, const BufferHandle& about = {}) {
    const Order order{command, about.index, about.generation};
    char answer = 0;
    ASSERT_EQ(write(orders_.get(), &order, sizeof order), static_cast<ssize_t>(sizeof order));
    ASSERT_TRUE(read_all(answers_.get(), &answer, 1));
  }
  void signal(int number) { kill(pid_, number); }
  // Nothing of it runs: it is stopped, or its first thread is at its end.
  char state() const {
    char line[512] = {};
    const std::string path = "/proc/" + std::to_string(pid_) + "/stat";
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (read(file.get(), line, sizeof line - 1) <= 0) return '?';
    return strrchr(line, ')')[2];
  }
  void wait_for_state(char wanted) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLimitMs);
    while (state() != wanted && std::chrono::steady_clock::now() < until) sched_yield();
    ASSERT_EQ(state(), wanted);
  }
  void wait_for_end() {
    const UniqueFd ended = sys::open_pidfd(pid_);
    pollfd ready{ended.get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, kLimitMs), 1);
  }

  std::shared_ptr<Neighbour> neighbour;

 private:
  void find(Writers& writers) {
    std::string text;
    uint32_t size = 0;
    for (char each; !text.ends_with("contact:"); text += each) {  // behind what gtest says when it begins
      ASSERT_TRUE(read_all(answers_.get(), &each, 1)) << text;
    }
    ASSERT_TRUE(read_all(answers_.get(), &size, sizeof size));
    std::vector<std::byte> value(size);
    ASSERT_TRUE(read_all(answers_.get(), value.data(), size));
    auto contact = decode<Contact>(value);
    ASSERT_TRUE(contact);
    neighbour = Neighbour::meet(*contact, {});
    ASSERT_TRUE(writers.admit(neighbour)) << neighbour->why_no_kernel() << neighbour->why_no_table();
  }

  pid_t pid_ = -1;
  UniqueFd orders_, answers_;
};

struct WritersTest : ::testing::Test {
  void SetUp() override {
    std::byte byte{};
    const Memory mine(&byte, 1);
    if (copy_from_process(getpid(), mine, 0, mine, 0, 1) == CopyOutcome::kDenied) {
      GTEST_SKIP() << "not run: the kernel does not copy between processes here";
    }
    other = std::make_unique<OtherSide>(writers);
  }
  BufferHandle add(bool writable = true) {
    return buffers->add(kOwner, Memory(bytes.data(), bytes.size()), writable, nullptr).value();
  }
  // As Bulk does.
  bool drop(const BufferHandle& handle) {
    std::shared_ptr<const Buffer> buffer;
    buffers->drop(handle, true, [this] { done = true; }, &buffer);
    return writers.keep({claim_of(handle), std::move(buffer)});
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  std::unique_ptr<Buffers> buffers = Buffers::make().value();
  Writers writers;
  std::unique_ptr<OtherSide> other;
  bool done = false;
};

TEST_F(WritersTest, ADropWaitsForWhoClaimsTheBuffer) {
  const BufferHandle handle = add(), another = buffers->add(kOwner, Memory(bytes.data(), 1), true, nullptr).value();
  other->order(kClaim, handle);
  EXPECT_FALSE(drop(another)) << "nobody claims that";
  EXPECT_TRUE(std::exchange(done, false));
  EXPECT_TRUE(drop(handle));
  EXPECT_TRUE(writers.look());
  EXPECT_FALSE(done);
  const BufferHandle next = add();
  EXPECT_EQ(next.index, handle.index);
  other->order(kLetGo);
  EXPECT_FALSE(writers.look());
  EXPECT_TRUE(done);
  done = false;
  EXPECT_FALSE(drop(next));
  EXPECT_TRUE(done);
}

TEST_F(WritersTest, ADropByAHandleThatReachesTooFarWaitsAsWell) {
  BufferHandle handle = add();
  other->order(kClaim, handle);
  handle.size *= 2;
  EXPECT_TRUE(drop(handle));
  EXPECT_FALSE(done);
  other->order(kLetGo);
  EXPECT_FALSE(writers.look());
  EXPECT_TRUE(done);
}

TEST_F(WritersTest, OfAWriterThatIsStoppedItWaitsAndNotOfOneThatHasBeenKilled) {
  const BufferHandle handle = add();
  other->order(kClaim, handle);
  other->signal(SIGSTOP);
  other->wait_for_state('T');
  EXPECT_TRUE(drop(handle));
  EXPECT_TRUE(writers.look());
  EXPECT_FALSE(done);
  other->signal(SIGKILL);
  other->wait_for_end();
  EXPECT_FALSE(writers.look());
  EXPECT_TRUE(done);
}

// As while a process is being killed: its number is a zombie's, its memory cannot be read, and a thread of it may write.
TEST_F(WritersTest, AWriterWhoseFirstThreadIsGoneHasNotEnded) {
  const BufferHandle handle = add();
  other->order(kLeaveFirstThread);
  other->wait_for_state('Z');
  other->order(kClaim, handle);
  EXPECT_TRUE(drop(handle));
  EXPECT_TRUE(writers.look());
  other->order(kLetGo);
  EXPECT_FALSE(writers.look());
  EXPECT_TRUE(done);
}

TEST_F(WritersTest, AtTheEndWhatIsClaimedIsNeverGivenBack) {
  const BufferHandle free = add();
  const auto keeper = std::make_shared<int>(1);
  const BufferHandle kept = buffers->add(kOwner, Memory(bytes.data(), 8), true, keeper).value();
  other->order(kClaim, kept);
  EXPECT_FALSE(drop(free));
  writers.end(buffers->close_to_writers());
  buffers.reset();
  EXPECT_EQ(keeper.use_count(), 2);
  EXPECT_EQ(writers.kept(), 0u);
  EXPECT_FALSE(writers.admit(other->neighbour));
}

// An owner, a writer, and nothing between them.
struct WritesTest : ::testing::Test {
  void SetUp() override {
    owner = Neighbour::meet(Contact::of_here(buffers.get()), {});
    if (!owner->may_be_written()) GTEST_SKIP() << "not run: " << owner->why_no_kernel() << owner->why_no_table();
    ASSERT_TRUE(owner->begin_asking());
    EXPECT_FALSE(owner->begin_asking());
    owner->note_admitted(Neighbour::Admitted::kYes);
  }
  BufferHandle add(Memory memory, bool writable = true) {
    return buffers->add(kOwner, std::move(memory), writable, nullptr).value();
  }
  Neighbour::Outcome write(const BufferHandle& handle) {
    return owner->write(handle, Memory(source.data(), source.size()), *own, *clock, kNoDeadline);
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(10'000), source = std::vector<std::byte>(5'000, std::byte{3});
  std::unique_ptr<Buffers> buffers = Buffers::make().value(), own = Buffers::make().value();
  std::unique_ptr<Clock> clock = std::make_unique<SystemClock>();
  std::shared_ptr<Neighbour> owner;
};

using Outcome = Neighbour::Outcome;

TEST_F(WritesTest, GoWhereTheHandleSays) {
  BufferHandle handle = add(Memory(bytes.data(), bytes.size()));
  handle.offset = 100, handle.size = 6'000;
  EXPECT_TRUE(owner->is_open_here(handle));
  ASSERT_EQ(write(handle), Outcome::kDone);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + 100, [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_TRUE(std::equal(source.begin(), source.end(), bytes.begin() + 100));
  EXPECT_TRUE(std::all_of(bytes.begin() + 5'100, bytes.end(), [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_EQ(owner->write(handle, Memory(source.data(), 1), *own, *clock, 0), Outcome::kDeadline);
}

TEST_F(WritesTest, AreMadeByNobodyElseThanTheOwnerWhereTheBufferIsNotOpen) {
  const BufferHandle handle = add(Memory(bytes.data(), bytes.size()));
  BufferHandle bad = handle;
  bad.key.low ^= 1;
  EXPECT_EQ(write(bad), Outcome::kRefused);
  bad = handle;
  bad.offset = 1;
  EXPECT_EQ(write(bad), Outcome::kRefused);
  bad = handle;
  bad.index = kBuffersMax;
  EXPECT_EQ(write(bad), Outcome::kRefused);
  EXPECT_EQ(write(*buffers->read_only(handle)), Outcome::kRefused);
  EXPECT_EQ(write(add(Memory(bytes.data(), bytes.size()), false)), Outcome::kRefused);
  EXPECT_EQ(write(add(Memory(bytes.data(), 1, {{5'000, 2}}))), Outcome::kRefused) << "strides";
  const auto freezable = Freezable::make(5'000).value();
  EXPECT_EQ(write(add(Memory(freezable->data(), 5'000))), Outcome::kRefused) << "may be frozen at any moment";

  owner->note_admitted(Neighbour::Admitted::kNo);
  EXPECT_EQ(write(handle), Outcome::kRefused) << "nobody would look for its claim";
  owner->note_admitted(Neighbour::Admitted::kYes);
  buffers->drop(handle, true, [] {});
  EXPECT_EQ(write(handle), Outcome::kRefused);
  const BufferHandle next = add(Memory(bytes.data(), bytes.size()));
  EXPECT_EQ(next.index, handle.index);
  EXPECT_EQ(write(handle), Outcome::kRefused) << "of the generation before";
  EXPECT_FALSE(owner->is_open_here(handle));
  buffers->close_to_writers();
  EXPECT_EQ(write(next), Outcome::kRefused);
  EXPECT_EQ(write(add(Memory(bytes.data(), bytes.size()))), Outcome::kRefused);
  EXPECT_EQ(bytes, std::vector<std::byte>(10'000)) << "nothing was written";
}

TEST_F(WritesTest, NoMoreThanThatManyAtATime) {
  const BufferHandle handle = add(Memory(bytes.data(), bytes.size()));
  std::vector<Buffers::WriteClaim> claims;
  for (size_t i = 0; i < WriteClaims::kMax; ++i) claims.push_back(own->claim(handle));
  EXPECT_TRUE(claims.back());
  EXPECT_FALSE(own->claim(handle));
  EXPECT_EQ(write(handle), Outcome::kGone) << "its owner is asked";
  claims.pop_back();
  EXPECT_EQ(write(handle), Outcome::kDone);
}

TEST_F(WritesTest, ToWhatTheOwnerHasUnmappedAreAnErrorAndKillNobody) {
  void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const BufferHandle handle = add(Memory(static_cast<std::byte*>(mapped), 8192));
  ASSERT_EQ(write(handle), Outcome::kDone);
  ASSERT_EQ(mprotect(mapped, 8192, PROT_READ), 0);
  EXPECT_EQ(write(handle), Outcome::kFault);
  munmap(mapped, 8192);
  EXPECT_EQ(write(handle), Outcome::kFault);
}

}  // namespace
}  // namespace monarch
