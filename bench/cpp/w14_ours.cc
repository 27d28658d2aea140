// W14, our rows: C++ actors. Ping-pong of two actors in one process, flood from one to another, and a synchronous call
// to an actor in another process. Answers are checked. One JSON line for each row: {"row", "unit", "samples"}.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/monarch.h"

namespace {

constexpr int kSamples = 7;
constexpr int64_t kRounds = 500'000;
constexpr int64_t kFlood = 2'000'000;
constexpr int64_t kCalls = 50'000;

struct Player : monarch::Actor {
  void meet(monarch::ActorMesh<Player> peer) { peer_ = peer; }

  // Sends the ball back until `left` is used up.
  void ball(int64_t left) {
    ++hits_;
    if (left > 0) peer_.broadcast<&Player::ball>(left - 1);
    if (left <= 1) done_ = true;
  }
  int64_t hits() {
    done_ = false;
    return std::exchange(hits_, 0);
  }
  bool done() { return done_; }

  monarch::ActorMesh<Player> peer_;
  int64_t hits_ = 0;
  bool done_ = false;
};
MONARCH_ACTOR(Player, meet, ball, hits, done)

struct Sink : monarch::Actor {
  void take(int64_t value) {
    ++count;
    sum += value;
  }
  std::pair<int64_t, int64_t> totals() { return {std::exchange(count, 0), std::exchange(sum, 0)}; }
  int64_t add(int64_t by) { return sum += by; }
  int64_t count = 0, sum = 0;
};
MONARCH_ACTOR(Sink, take, totals, add)

struct Source : monarch::Actor {
  void flood(monarch::ActorMesh<Sink> sink, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sink.broadcast<&Sink::take>(i);
  }
};
MONARCH_ACTOR(Source, flood)

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "w14: wrong answer: %s\n", what);
  std::exit(1);
}

// `run` returns how many of `unit` were done.
void row(const std::string& name, const char* unit, bool per_second, const std::function<int64_t()>& run) {
  std::printf("{\"row\":\"%s\",\"unit\":\"%s\",\"samples\":[", name.c_str(), unit);
  run();
  for (int i = 0; i < kSamples; ++i) {
    const int64_t start_ns = monarch::monotonic_ns();
    const int64_t count = run();
    const double elapsed_ns = static_cast<double>(monarch::monotonic_ns() - start_ns);
    const double value = per_second ? static_cast<double>(count) * 1e9 / elapsed_ns
                                    : elapsed_ns / static_cast<double>(count) / 1e3;
    std::printf(per_second ? "%s%.0f" : "%s%.4f", i ? "," : "", value);
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

void in_process(int argc, char** argv, uint32_t threads) {
  monarch::Runtime runtime(argc, argv, {.actor_threads = threads});
  const std::string suffix = threads == 1 ? " 1 thread" : " " + std::to_string(threads) + " threads";
  auto proc = runtime.this_proc();
  auto a = proc.spawn<Player>("a");
  auto b = proc.spawn<Player>("b");
  a.call_one<&Player::meet>(b).get();
  b.call_one<&Player::meet>(a).get();
  row("W14 pingpong" + suffix, "msg/s", true, [&] {
    a.broadcast<&Player::ball>(2 * kRounds);
    while (!a.call_one<&Player::done>().get() || !b.call_one<&Player::done>().get()) {
    }
    const int64_t hits = a.call_one<&Player::hits>().get() + b.call_one<&Player::hits>().get();
    require(hits == 2 * kRounds + 1, "pingpong");
    return hits;
  });
  auto sink = proc.spawn<Sink>("sink");
  auto source = proc.spawn<Source>("source");
  row("W14 flood 1:1" + suffix, "msg/s", true, [&] {
    source.call_one<&Source::flood>(sink, kFlood).get();
    const auto [count, sum] = sink.call_one<&Sink::totals>().get();
    require(count == kFlood && sum == kFlood * (kFlood - 1) / 2, "flood");
    return count;
  });
  row("W14 call from main" + suffix, "us", false, [&] {
    for (int64_t i = 0; i < kCalls; ++i) require(sink.call_one<&Sink::add>(1).get() == i + 1, "call");
    sink.call_one<&Sink::totals>().get();
    return kCalls;
  });
}

}  // namespace

int main(int argc, char** argv) {
  {
    monarch::Runtime runtime(argc, argv);
    auto sink = runtime.this_host().spawn_procs({}).spawn<Sink>("sink");
    sink.call_one<&Sink::add>(0).get();
    row("W14 call to another process", "us", false, [&] {
      for (int64_t i = 0; i < kCalls; ++i) require(sink.call_one<&Sink::add>(1).get() == i + 1, "call");
      sink.call_one<&Sink::totals>().get();
      return kCalls;
    });
  }
  in_process(argc, argv, 1);
  in_process(argc, argv, 2);
}
