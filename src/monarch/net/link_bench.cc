// The shared-memory link between two processes by itself: round trip, rate, bandwidth. Pin with
// MONARCH_BENCH_CORES=0,1.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "monarch/net/shm/shm_link.h"

namespace monarch {
namespace {

void pin_to(int which) {
  const char* cores = std::getenv("MONARCH_BENCH_CORES");
  int core[2] = {0, 1};
  if (cores != nullptr && std::sscanf(cores, "%d,%d", &core[0], &core[1]) != 2) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core[which], &set);
  sched_setaffinity(0, sizeof set, &set);
}

struct Bell {
  UniqueFd page_fd = make_shared_memory("bench-bell", 4096).value();
  UniqueFd event_fd{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Mapping map() const { return map_shared_memory(page_fd.get(), sizeof(BellPage)).value(); }
};

struct CountingSink : LinkSink {
  void on_frame(Link& link, MessagePtr message) override {
    ++count;
    if (message->header.kind != FrameKind::kRequest) return;
    for (const Part& part : message->parts) {  // a receiver that looks at what came, page by page
      for (size_t i = 0; i < part.size; i += 4096) benchmark::DoNotOptimize(part.data[i]);
    }
    Outgoing answer{FrameHeader{}, {}, {}};
    answer.header.kind = FrameKind::kReply;
    link.send(answer);
  }
  void on_control(Link&, MessagePtr) override {}
  void on_closed(Link&, const Error&) override { closed = true; }
  std::atomic<uint64_t> count{0};
  std::atomic<bool> closed{false};
};

struct Side {
  Side(int side, const Bell& own, const Bell& other, int rings_fd, int socket)
      : page(own.map()), driver(reactor, *static_cast<BellPage*>(page.get()), own.event_fd.get()) {
    reactor.start();
    link = std::make_shared<ShmLink>(ShmContext{reactor, driver, arena, std::make_shared<Received>(reactor)}, sink, 1);
    PeerBell bell{other.map(), UniqueFd(dup(other.event_fd.get()))};
    link->start({1, side, map_shared_memory(rings_fd, sizeof(RingPair)).value(), std::move(bell), UniqueFd(socket)});
  }
  ~Side() {
    link->close();
    reactor.stop();
  }
  void wait_for(uint64_t count) {
    struct Wanted {
      CountingSink* sink;
      uint64_t count;
    } wanted{&sink, count};
    auto ready = [](const void* context) {
      const auto* w = static_cast<const Wanted*>(context);
      return w->sink->count.load(std::memory_order_relaxed) >= w->count || w->sink->closed;
    };
    driver.wait(waiter, ready, &wanted, kNoDeadline);
  }
  Reactor reactor;
  Mapping page;
  Driver driver;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>(uint64_t{1} << 30);  // shared: as ShmContext has it
  CountingSink sink;
  Waiter waiter;
  std::shared_ptr<ShmLink> link;
};

// The parent's side; the child answers requests until the link ends.
struct Peers {
  Peers() {
    Bell mine, theirs;
    UniqueFd rings = make_shared_memory("bench-ring", sizeof(RingPair)).value();
    int pair[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    child = fork();
    if (child == 0) {
      ::close(pair[0]);
      pin_to(1);
      Side side(1, theirs, mine, rings.get(), pair[1]);
      side.wait_for(UINT64_MAX);
      _exit(0);
    }
    ::close(pair[1]);
    sched_getaffinity(0, sizeof before, &before);
    pin_to(0);
    here = std::make_unique<Side>(0, mine, theirs, rings.get(), pair[0]);
    keep = std::make_pair(std::move(mine), std::move(theirs));
  }
  ~Peers() {
    here.reset();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    sched_setaffinity(0, sizeof before, &before);
  }
  pid_t child;
  cpu_set_t before;
  std::pair<Bell, Bell> keep;
  std::unique_ptr<Side> here;
};

void RoundTrip(benchmark::State& state) {
  Peers peers;
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)));
  Outgoing request{FrameHeader{}, bytes, {}};
  request.header.kind = FrameKind::kRequest;
  uint64_t count = 0;
  for (auto _ : state) {
    peers.here->link->send(request);
    peers.here->wait_for(++count);
  }
}
BENCHMARK(RoundTrip)->Arg(0)->Arg(64)->Arg(4096)->UseRealTime();

// One way, in batches of 1,000 that the last one's answer ends.
void OneWay(benchmark::State& state) {
  Peers peers;
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)));
  Outgoing oneway{FrameHeader{}, bytes, {}};
  Outgoing request = oneway;
  request.header.kind = FrameKind::kRequest;
  uint64_t count = 0;
  for (auto _ : state) {
    for (int i = 0; i < 999; ++i) peers.here->link->send(oneway);
    peers.here->link->send(request);
    peers.here->wait_for(++count);
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(OneWay)->Arg(64)->UseRealTime();

// A part to a peer that reads one byte of each page and answers.
void Part(benchmark::State& state) {
  Peers peers;
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)), std::byte{1});
  const ByteSpan part(bytes);
  Outgoing request{FrameHeader{}, {}, {&part, 1}};
  request.header.kind = FrameKind::kRequest;
  uint64_t count = 0;
  for (auto _ : state) {
    peers.here->link->send(request);
    peers.here->wait_for(++count);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Part)->Arg(16 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();

}  // namespace
}  // namespace monarch
