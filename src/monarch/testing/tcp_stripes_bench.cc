// A large part from one process to another where the network gives each connection only so much: by one, and several.
#include <benchmark/benchmark.h>

#include "monarch/testing/tcp_session.h"

namespace monarch::testing {
namespace {

void BM_LargePartOverLimitedConnections(benchmark::State& state) {
  Identity job;
  fill_random(job.job.data(), job.job.size());
  fill_random(job.token.data(), job.token.size());
  TcpTransport::Options options = options_with(60 * kSecond);
  options.stripes = static_cast<int>(state.range(0));
  TcpProcess a(job, options), b(job, options);
  TcpProxy proxy(b.tcp->place()->dial.port);
  MONARCH_CHECK(a.tcp->set_place(b.node, at_port(proxy.port())).ok());
  a.link = a.connector->dial(b.node);
  proxy.limit_each(static_cast<uint64_t>(state.range(1)) << 20);
  const std::vector<std::byte> bytes(size_t{64} << 20, std::byte{1});
  const ByteSpan parts[] = {bytes};
  const auto send = [&] {
    MONARCH_CHECK(a.link->send(Outgoing{FrameHeader{}, {}, parts}));
    MONARCH_CHECK(drive_until(*b.home.driver, [&] { return b.sink.frames() == 1; }));
    b.sink.take();
  };
  send();  // it has its connections then
  for (auto _ : state) send();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes.size()));
  a.link->close();
}
BENCHMARK(BM_LargePartOverLimitedConnections)
    ->ArgNames({"stripes", "MiB_s_each"})
    ->ArgsProduct({{0, 1, 2, 4, 8}, {25, 100}})
    ->UseRealTime()
    ->Iterations(3)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace monarch::testing
