// The C++ API in one program, which docs/reference/cpp.md explains piece by piece.
//
//   build/release/examples/tour                                                          on this machine
//   build/release/examples/tour --hosts tcp://10.0.0.7:4444 tcp://10.0.0.8:4444           where these monarch-hostds run
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/monarch.h"

struct Shard : monarch::Actor {
  explicit Shard(std::vector<double> weights) : weights_(std::move(weights)) {}

  void scale(double by) {
    if (by == 0) throw std::invalid_argument("nothing would be left");
    for (double& weight : weights_) weight *= by;
  }
  double sum() const {
    double sum = 0;
    for (double weight : weights_) sum += weight;
    return sum;
  }
  void die() { std::_Exit(7); }

 private:
  std::vector<double> weights_;
};
MONARCH_ACTOR(Shard, scale, sum, die)

struct Reducer : monarch::Actor {
  // Asks actors of other processes, on whatever host, and gives its thread to others meanwhile.
  monarch::Task<double> total(monarch::ActorMesh<Shard> shards) {
    double total = 0;
    for (double part : co_await shards.call<&Shard::sum>()) total += part;
    co_return total;
  }
};
MONARCH_ACTOR(Reducer, total)

int main(int argc, char** argv) try {
  monarch::Runtime runtime(argc, argv);
  const bool over_hosts = argc > 2 && argv[1] == std::string_view("--hosts");
  auto hosts = over_hosts ? runtime.attach_to_workers({argv + 2, argv + argc}) : runtime.this_host();
  hosts.initialized().get();

  auto procs = hosts.spawn_procs({{"gpus", 2}}, "shards");
  auto shards = procs.spawn<Shard>("shards", std::vector<double>{1, 2, 3});

  shards.call<&Shard::scale>(2).get();                                   // all of them; waits for all
  shards.slice({{"gpus", 0}}).broadcast<&Shard::scale>(10);              // some of them; waits for nobody
  auto sums = shards.call<&Shard::sum>().get(std::chrono::seconds(30));  // ValueMesh<double>
  for (int64_t rank = 0; rank < sums.size(); ++rank) {
    std::printf("%s %g\n", sums.point(rank).to_string().c_str(), sums[rank]);
  }

  auto reducer = runtime.this_host().spawn_procs({}).spawn<Reducer>("reducer");
  std::printf("total %g\n", reducer.call_one<&Reducer::total>(shards).get());

  try {
    shards.call<&Shard::scale>(0).get();
  } catch (const monarch::ActorError& error) {  // the actors live on
    std::printf("%s: %s\n", error.type().c_str(), error.error().message.c_str());
  }

  std::vector<monarch::DimSelection> last = {{"gpus", 1}};
  if (over_hosts) last.emplace_back("hosts", hosts.size() - 1);
  try {
    shards.slice(last).call_one<&Shard::die>().get();
  } catch (const monarch::SupervisionError& error) {  // its process has ended, and it is said of what
    const std::string why = error.what();
    std::printf("... %s ...\n", why.substr(why.find("exited"), std::strlen("exited with non-zero code 7")).c_str());
  }
  procs.respawn({static_cast<uint32_t>(procs.size() - 1)});  // another process, with a Shard as it was at first
  std::printf("total %g\n", reducer.call_one<&Reducer::total>(shards).get());

  procs.stop();
} catch (const std::exception& error) {
  std::fprintf(stderr, "tour: %s\n", error.what());
  return 1;
}
