#include "monarch/mesh/slice.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

using Ranks = std::vector<int64_t>;

Slice make(int64_t offset, Ranks sizes, Ranks strides) {
  return Slice::create(offset, std::move(sizes), std::move(strides)).value();
}
Ranks ranks_of(const Slice& slice) { return {slice.begin(), slice.end()}; }

TEST(Slice, RowMajorVariesTheLastDimensionFastest) {
  auto slice = Slice::row_major({2, 3}).value();
  EXPECT_EQ(slice.strides(), (Ranks{3, 1}));
  EXPECT_EQ(ranks_of(slice), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(slice.to_string(), "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }");
}

TEST(Slice, WithoutDimensionsIsOneRank) {
  EXPECT_EQ(ranks_of(Slice()), (Ranks{0}));
  EXPECT_EQ(ranks_of(make(3, {}, {})), (Ranks{3}));
  EXPECT_EQ(make(3, {}, {}).index_of(3).value(), 0);
  EXPECT_FALSE(make(3, {}, {}).contains(4));
}

TEST(Slice, GoesBetweenIndexRankAndCoordinates) {
  auto slice = make(1, {2, 2}, {4, 2});
  EXPECT_EQ(ranks_of(slice), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(slice.get(2).value(), 5);
  EXPECT_EQ(slice.index_of(7).value(), 3);
  EXPECT_EQ(slice.coordinates(5).value(), (Ranks{1, 0}));
  EXPECT_EQ(slice.rank_of({1, 1}).value(), 7);
}

TEST(Slice, SaysWhatIsNotInIt) {
  auto slice = make(1, {2, 2}, {4, 2});
  EXPECT_EQ(slice.get(99).error().message, "index 99 out of range 4");
  EXPECT_EQ(slice.get(-1).error().message, "index -1 out of range 4");
  for (int64_t absent : {-1, 0, 2, 4, 9, 100}) {
    EXPECT_EQ(slice.index_of(absent).error().message, "value " + std::to_string(absent) + " not in slice");
  }
  EXPECT_EQ(slice.rank_of({1}).error().message, "invalid dims: expected 2, got 1");
  EXPECT_EQ(slice.rank_of({1, 2}).error().message, "index 2 out of range for dimension 1 of size 2");
}

TEST(Slice, AcceptsEveryOrderOfStrides) {
  auto slice = make(0, {2, 3}, {1, 2});
  EXPECT_EQ(ranks_of(slice), (Ranks{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(slice.index_of(3).value(), 4);
}

TEST(Slice, IgnoresTheStrideOfADimensionOfOne) {
  EXPECT_EQ(ranks_of(make(0, {1, 4}, {1, 1})), (Ranks{0, 1, 2, 3}));
  EXPECT_TRUE(make(0, {1, 4}, {9, 1}).is_dense());
  EXPECT_EQ(make(0, {1, 4}, {2, 1}).index_of(3).value(), 3);
}

TEST(Slice, RefusesWhatIsNoSlice) {
  EXPECT_EQ(Slice::create(0, {2}, {1, 2}).error().message, "invalid dims: expected 1, got 2");
  EXPECT_EQ(Slice::create(-1, {2}, {1}).error().message, "the offset must not be negative, got -1");
  EXPECT_EQ(Slice::create(0, {2}, {0}).error().message,
            "invalid strides [0]: every stride must be at least 1, got 0");
  EXPECT_EQ(Slice::create(0, {3, 2}, {2, 3}).error().message,
            "nonrectangular shape: with sizes [3, 2] and strides [2, 3] the dimensions overlap");
  EXPECT_EQ(Slice::row_major({0}).error().message,
            "invalid sizes [0]: every dimension must have at least one element, got 0");
  EXPECT_EQ(Slice::create(INT64_MAX, {2}, {1}).error().message,
            "the largest rank of offset 9223372036854775807, sizes [2], strides [1] does not fit 63 bits");
}

TEST(Slice, EqualOnesHashEqual) {
  EXPECT_EQ(make(1, {2, 2}, {4, 2}), make(1, {2, 2}, {4, 2}));
  EXPECT_EQ(make(1, {2, 2}, {4, 2}).hash(), make(1, {2, 2}, {4, 2}).hash());
  EXPECT_NE(make(1, {2, 2}, {4, 2}), make(0, {2, 2}, {4, 2}));
}

TEST(Slice, CoversAListOfRanksByRuns) {
  auto cover = [](Ranks ranks) { return Slice::from_list(std::move(ranks)).value(); };
  EXPECT_TRUE(cover({}).empty());
  EXPECT_EQ(cover({3, 2, 1}), (std::vector<Slice>{make(1, {3}, {1})}));
  EXPECT_EQ(cover({0, 2, 4, 7, 8, 9}), (std::vector<Slice>{make(0, {3}, {2}), make(7, {3}, {1})}));
  EXPECT_EQ(cover({1, 1}), (std::vector<Slice>{make(1, {1}, {1}), make(1, {1}, {1})}));
  EXPECT_FALSE(Slice::from_list({-1, 3}).ok());
}

TEST(SliceDeathTest, AnIndexOutsideAborts) { EXPECT_DEATH((void)Slice().rank_at(1), "CHECK failed"); }

}  // namespace
}  // namespace monarch
