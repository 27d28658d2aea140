// What the codec adds to a call: the arguments of the two usual shapes, there and back.
#include <benchmark/benchmark.h>

#include "monarch/wire/value_codec.h"

namespace monarch {
namespace {

// As the Python binding does it: walking, with no C++ types.
void two_ints_untyped(benchmark::State& state) {
  ValueWriter writer;
  for (auto _ : state) {
    writer.clear();
    writer.begin_tuple(2);
    writer.integer(1);
    writer.integer(2);
    benchmark::ClobberMemory();
    ValueReader reader(writer.written());
    uint32_t count = 0;
    int64_t a = 0, b = 0;
    bool good = reader.begin_tuple(count) && reader.integer(a) && reader.integer(b);
    if (good) reader.end();
    benchmark::DoNotOptimize(a + b + good);
  }
}
BENCHMARK(two_ints_untyped);

void two_ints_typed(benchmark::State& state) {
  ValueWriter writer;
  for (auto _ : state) {
    writer.clear();
    encode(writer, std::tuple<int, int>(1, 2));
    benchmark::ClobberMemory();
    auto back = decode<std::tuple<int, int>>(writer.written());
    benchmark::DoNotOptimize(back);
  }
}
BENCHMARK(two_ints_typed);

void mixed_untyped(benchmark::State& state) {
  const std::vector<std::byte> block(64, std::byte{7});
  ValueWriter writer;
  for (auto _ : state) {
    writer.clear();
    writer.begin_tuple(3);
    writer.str("add");
    writer.number(3.5);
    writer.bytes(block);
    benchmark::ClobberMemory();
    ValueReader reader(writer.written());
    uint32_t count = 0;
    std::string_view name;
    double number = 0;
    std::span<const std::byte> raw;
    bool good = reader.begin_tuple(count) && reader.str(name) && reader.number(number) && reader.bytes(raw);
    if (good) reader.end();
    benchmark::DoNotOptimize(name.size() + raw.size() + good);
    benchmark::DoNotOptimize(number);
  }
}
BENCHMARK(mixed_untyped);

void mixed_typed(benchmark::State& state) {  // one allocation: the vector that owns the 64 bytes
  const std::vector<std::byte> block(64, std::byte{7});
  ValueWriter writer;
  for (auto _ : state) {
    writer.clear();
    encode(writer, std::tuple<std::string_view, double, std::span<const std::byte>>("add", 3.5, block));
    benchmark::ClobberMemory();
    auto back = decode<std::tuple<std::string, double, std::vector<std::byte>>>(writer.written());
    benchmark::DoNotOptimize(back);
  }
}
BENCHMARK(mixed_typed);

}  // namespace
}  // namespace monarch
