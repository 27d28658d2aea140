// W14, CAF's side: actors inside one process. Ping-pong (ns per round trip) and one-way flood (messages/s).
//
//   caf_w14 ROUNDS      prints rows W14p and W14f of system `caf`
//
// The other side of the comparison is build/release/bench/w14_ours, which prints the same rows as system `ours`.
#include <caf/all.hpp>
#include <future>
#include <memory>

#include "../limits/limit.h"

namespace {

constexpr int kRoundTrips = 500'000;
constexpr int kFloodMessages = 1'000'000;

caf::behavior ponger(caf::event_based_actor*) {
  return {[](int x) { return x + 1; }};
}

/// Sends 0, 1, 2 ... one at a time, checks each answer, and gives the outcome to `done`.
caf::behavior pinger(caf::event_based_actor* self, caf::actor peer, std::shared_ptr<std::promise<bool>> done) {
  auto turn = std::make_shared<int>(0);
  self->send(peer, 0);
  return {[=](int answer) {
    const bool right = answer == *turn + 1;
    if (!right || ++*turn == kRoundTrips) {
      done->set_value(right);
      self->send_exit(peer, caf::exit_reason::user_shutdown);
      self->quit();
      return;
    }
    self->send(peer, *turn);
  }};
}

/// Receives 0, 1, 2 ... and tells `done` whether all came in order.
caf::behavior counter(caf::event_based_actor* self, std::shared_ptr<std::promise<bool>> done) {
  auto seen = std::make_shared<int>(0);
  auto ordered = std::make_shared<bool>(true);
  return {[=](int x) {
    *ordered = *ordered && x == *seen;
    if (++*seen == kFloodMessages) {
      done->set_value(*ordered);
      self->quit();
    }
  }};
}

void must(bool right) {
  if (!right) std::fprintf(stderr, "wrong answer\n"), std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::vector<double> round_trips_ns, floods;
  for (int round = 0; round < rounds; ++round) {
    auto done = std::make_shared<std::promise<bool>>();
    std::uint64_t start = now_ns();
    system.spawn(pinger, system.spawn(ponger), done);
    must(done->get_future().get());
    round_trips_ns.push_back(static_cast<double>(now_ns() - start) / kRoundTrips);
    system.await_all_actors_done();

    done = std::make_shared<std::promise<bool>>();
    start = now_ns();
    const caf::actor sink = system.spawn(counter, done);
    for (int i = 0; i < kFloodMessages; ++i) caf::anon_send(sink, i);
    must(done->get_future().get());
    floods.push_back(kFloodMessages * 1e9 / static_cast<double>(now_ns() - start));
    system.await_all_actors_done();
  }
  print_row("W14p", "caf", "ns", round_trips_ns);
  print_row("W14f", "caf", "/s", floods);
}
