// W14, our side: C++ actors inside one process. Ping-pong (ns per round trip) and one-way flood (messages/s).
//
//   w14_ours ROUNDS     prints rows W14p and W14f of system `ours`
//
// The other side of the comparison is bench/peers/caf_w14.cc, which prints the same rows as system `caf`.
#include "../limits/limit.h"
#include "monarch/monarch.h"

namespace {

constexpr int64_t kRoundTrips = 500'000;
constexpr int64_t kFloodMessages = 1'000'000;

struct Ponger : monarch::Actor {
  int64_t next(int64_t x) { return x + 1; }
};
MONARCH_ACTOR(Ponger, next)

struct Pinger : monarch::Actor {
  // Sends 0, 1, 2 ... one at a time; whether all answers were right.
  monarch::Task<bool> play(monarch::ActorMesh<Ponger> peer) {
    for (int64_t turn = 0; turn < kRoundTrips; ++turn) {
      if (co_await peer.call_one<&Ponger::next>(turn) != turn + 1) co_return false;
    }
    co_return true;
  }
};
MONARCH_ACTOR(Pinger, play)

struct Sink : monarch::Actor {
  void take(int64_t value) { ordered = ordered && value == count++; }
  bool all_came() { return ordered && count == kFloodMessages; }
  int64_t count = 0;
  bool ordered = true;
};
MONARCH_ACTOR(Sink, take, all_came)

void must(bool right) {
  if (!right) std::fprintf(stderr, "wrong answer\n"), std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  monarch::Runtime runtime(argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  auto proc = runtime.this_proc();
  std::vector<double> round_trips_ns, floods;
  for (int round = 0; round < rounds; ++round) {
    uint64_t start = now_ns();
    auto ponger = proc.spawn<Ponger>("ponger");
    must(proc.spawn<Pinger>("pinger").call_one<&Pinger::play>(ponger).get());
    round_trips_ns.push_back(static_cast<double>(now_ns() - start) / kRoundTrips);

    start = now_ns();
    auto sink = proc.spawn<Sink>("sink");
    for (int64_t i = 0; i < kFloodMessages; ++i) sink.broadcast<&Sink::take>(i);
    must(sink.call_one<&Sink::all_came>().get());
    floods.push_back(kFloodMessages * 1e9 / static_cast<double>(now_ns() - start));
  }
  print_row("W14p", "ours", "ns", round_trips_ns);
  print_row("W14f", "ours", "/s", floods);
}
