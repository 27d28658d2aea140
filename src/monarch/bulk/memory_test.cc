#include "monarch/bulk/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace monarch {
namespace {

std::vector<std::byte> counted(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

using Dims = std::vector<Memory::Dim>;

// The bytes by the definition: index by index.
std::vector<std::byte> by_index(const std::byte* data, uint64_t item, const Dims& dims, size_t dim = 0) {
  std::vector<std::byte> bytes;
  if (dim == dims.size()) return {data, data + item};
  for (uint64_t i = 0; i < dims[dim].count; ++i) {
    const auto inner = by_index(data + static_cast<int64_t>(i) * dims[dim].stride, item, dims, dim + 1);
    bytes.insert(bytes.end(), inner.begin(), inner.end());
  }
  return bytes;
}

TEST(Memory, AnyShapeAndStridesInTheOrderOfItems) {
  const std::vector<std::byte> all = counted(4096);
  struct Case {
    int64_t first;
    uint64_t item;
    std::vector<Memory::Dim> dims;
    bool contiguous;
  };
  const Case cases[] = {
      {0, 4, {{8, 32}, {8, 4}}, true},
      {0, 4, {{8, 4}, {8, 32}}, false},
      {64, 4, {{8, 32}, {4, 4}}, false},
      {252, 4, {{64, -4}}, false},
      {0, 8, {}, true},
      {0, 2, {{3, 100}, {1, 7}, {5, 6}}, false},
      {0, 1, {{3, 0}, {4, 1}}, false},
      {0, 4, {{2, 512}, {4, 128}, {32, 4}}, true},
      {1000, 4, {{5, -100}, {3, 8}}, false},
  };
  for (const Case& each : cases) {
    auto* data = const_cast<std::byte*>(all.data()) + each.first;
    const Memory memory(data, each.item, each.dims);
    const auto expected = by_index(data, each.item, each.dims);
    EXPECT_EQ(memory.is_contiguous(), each.contiguous);
    ASSERT_EQ(memory.size(), expected.size());
    for (uint64_t offset = 0; offset <= expected.size(); offset += 7) {
      for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{13}, expected.size() - offset}) {
        if (length > expected.size() - offset) continue;
        std::vector<std::byte> got(length);
        ASSERT_TRUE(memory.gather(offset, length, got.data()));
        EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset)));
      }
    }
  }
}

TEST(Memory, WhatIsScatteredIsGathered) {
  std::vector<std::byte> there(4096);
  const Memory memory(there.data() + 100, 2, {{7, 200}, {5, 6}});
  const auto bytes = counted(memory.size());
  ASSERT_TRUE(memory.scatter(0, 9, bytes.data()));
  ASSERT_TRUE(memory.scatter(9, memory.size() - 9, bytes.data() + 9));
  std::vector<std::byte> got(memory.size());
  ASSERT_TRUE(memory.gather(0, memory.size(), got.data()));
  EXPECT_EQ(got, bytes);
}

TEST(Memory, IsCopiedBetweenAnyStrides) {
  constexpr uint64_t kItems = 60;
  std::vector<std::byte> there(8192);
  for (const uint64_t item : {1, 2, 3, 4, 8, 12, 16, 32}) {
    const auto step = static_cast<int64_t>(item);
    const Dims shapes[] = {{{kItems, step}},
                           {{kItems, 2 * step}},
                           {{6, 10 * step}, {10, step}},
                           {{10, step}, {6, 10 * step}},
                           {{5, 24 * step}, {2, step}, {6, 3 * step}},
                           {{kItems, -step}}};
    const std::vector<std::byte> all = counted(8192);
    for (const Dims& out : shapes) {
      for (const Dims& in : shapes) {
        auto* const from = const_cast<std::byte*>(all.data()) + 4096;
        const Memory source(from, item, out), target(there.data() + 4096, item, in);
        const auto wanted = by_index(from, item, out);
        for (const uint64_t at : {uint64_t{0}, item, item + 1}) {
          std::ranges::fill(there, std::byte{255});
          ASSERT_TRUE(copy_memory(target, 0, source, at, wanted.size() - at));
          const auto got = by_index(there.data() + 4096, item, in);
          EXPECT_TRUE(std::equal(wanted.begin() + static_cast<std::ptrdiff_t>(at), wanted.end(), got.begin()));
          EXPECT_EQ(static_cast<uint64_t>(std::ranges::count(there, std::byte{255})), there.size() - wanted.size() + at);
        }
      }
    }
  }
}

TEST(Memory, OfNothingThereIsNothing) {
  const Memory memory(nullptr, 4, {{3, 4}, {0, 12}});
  EXPECT_EQ(memory.size(), 0u);
  EXPECT_TRUE(memory.is_contiguous());
}

TEST(Memory, KnowsWhetherItOverlaps) {
  std::byte data[64];
  EXPECT_FALSE(Memory(data, 64).overlaps());
  EXPECT_FALSE(Memory(data, 4, {{4, 4}, {4, 16}}).overlaps());
  EXPECT_FALSE(Memory(data + 60, 4, {{16, -4}}).overlaps());
  EXPECT_TRUE(Memory(data, 4, {{4, 0}, {4, 4}}).overlaps());
  EXPECT_TRUE(Memory(data, 4, {{4, 4}, {4, 4}}).overlaps());
  EXPECT_TRUE(Memory(data, 4, {{4, 2}}).overlaps());
}

TEST(Memory, ASpanHasAllOfItsBytes) {
  std::byte data[100];
  const Memory turned(data + 90, 2, {{3, 4}, {5, -20}});
  const Memory::Span all = turned.span(0, turned.size()), part = turned.span(11, 3);
  EXPECT_EQ(all.begin, data + 10);
  EXPECT_EQ(all.end, data + 100);
  EXPECT_EQ(part.begin, data + 74) << "of the seventh item";
  EXPECT_EQ(part.end, data + 96) << "of the sixth";
}

}  // namespace
}  // namespace monarch
