#include <cstdlib>
#include <memory>

#include "monarch/wire/frame.h"
#include "monarch/wire/reduce.h"

// Three answers, two of them alike, as three ranks may have sent them: reducer, whether they are arrays, where they end.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monarch;
  if (size < 3) return 0;
  constexpr Reducer kReducers[] = {Reducer::kSum, Reducer::kMin, Reducer::kMax, Reducer::kAllEqual};
  const size_t middle = 3 + data[2] % (size - 2);
  const auto first = as_byte_span(data + 3, middle - 3), second = as_byte_span(data + middle, size - middle);
  alignas(8) std::byte elements[24] = {};
  const Part part{elements, sizeof elements, nullptr};
  const bool is_array = data[1] % 2 == 1;
  const auto input = [&](uint32_t rank, ByteSpan body) {
    return ReduceInput{rank, is_array ? kFlagArrays : 0u, body, {&part, is_array ? 1u : 0u}};
  };
  Reduction reduction(kReducers[data[0] % 4]);
  ReducedValue value;
  const bool done = reduction.add(input(0, first)) && reduction.add(input(1, first)) && reduction.add(input(2, second)) &&
                    reduction.write(value);
  if (!done && reduction.problem().text("m.loss").empty()) std::abort();
  if (done && !is_array && !validate(value.body) && kReducers[data[0] % 4] != Reducer::kAllEqual) std::abort();
  return 0;
}
