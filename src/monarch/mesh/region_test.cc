#include "monarch/mesh/region.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

namespace monarch {
namespace {

using Ranks = std::vector<int64_t>;

Region two_by_four() { return Region::row_major(Extent::create({"a", "b"}, {2, 4}).value()); }

TEST(Region, AtDropsADimensionAndKeepsBaseRanks) {
  auto row = two_by_four().at("a", 1).value();
  EXPECT_EQ(row.labels(), (std::vector<std::string>{"b"}));
  EXPECT_EQ(row.ranks(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(row.at("b", 2)->ranks(), (Ranks{6}));
  EXPECT_EQ(two_by_four().at("a", 2).error().message, "out of range 2:3:1 for dimension a of size 2");
  EXPECT_EQ(two_by_four().at("zz", 0).error().message, "invalid labels `[\"zz\"]`");
}

TEST(Region, SelectFollowsPythonSlices) {
  auto region = two_by_four();
  EXPECT_EQ(region.select("b", {1, 3})->ranks(), (Ranks{1, 2, 5, 6}));
  EXPECT_EQ(region.select("b", {-2, {}})->ranks(), (Ranks{2, 3, 6, 7}));
  EXPECT_EQ(region.select("b", {{}, {}, 2})->ranks(), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(region.select("b", {{}, -1})->ranks(), (Ranks{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(region.select("b", {-99, 99})->ranks(), region.ranks());
  EXPECT_EQ(region.select("b", {1, {}, INT64_MAX})->ranks(), (Ranks{1, 5}));
}

TEST(Region, SelectRefusesNothingAndBackwards) {
  auto region = two_by_four();
  EXPECT_EQ(region.select("a", {2, 2}).error().message, "out of range 2:2:1 for dimension a of size 2");
  EXPECT_EQ(region.select("b", {3, 1}).error().message, "empty range 3:1:1");
  EXPECT_EQ(region.select("b", {{}, {}, 0}).error().message, "slice step cannot be zero");
  EXPECT_EQ(region.select("b", {{}, {}, -1}).error().message, "slice step must be positive, got -1");
}

TEST(Region, EverySecondOfAnOddDimensionIsStillARegion) {
  auto region = Region::row_major(Extent::create({"a", "b"}, {2, 3}).value());
  EXPECT_EQ(region.select("b", {{}, {}, 2})->ranks(), (Ranks{0, 2, 3, 5}));
}

TEST(Region, FlattensOnlyWhatHasNoGaps) {
  EXPECT_EQ(two_by_four().at("a", 1)->flatten("x")->ranks(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(Region().flatten("x")->extent().to_string(), "{x: 1}");
  EXPECT_EQ(two_by_four().at("b", 1)->flatten("x").error().message,
            "cannot flatten sparse mesh: ndslice.strides=[4] != dense_strides=[1]");
}

TEST(Region, SplitsRowMajorAndInfersOneSize) {
  auto split = two_by_four().split({{"b", {"c", "d"}}}, {{"d", 2}}).value();
  EXPECT_EQ(split.extent().to_string(), "{a: 2, c: 2, d: 2}");
  EXPECT_EQ(split.slice().strides(), (Ranks{4, 2, 1}));
  EXPECT_EQ(split.ranks(), two_by_four().ranks());
}

TEST(Region, SplitSaysWhatDoesNotFit) {
  auto error = [](std::vector<DimSplit> splits, std::vector<SizeConstraint> sizes) {
    return two_by_four().split(splits, sizes).error().message;
  };
  EXPECT_EQ(error({{"b", {"c", "d"}}}, {}),
            "Cannot infer size of ('c', 'd') because both d and c have unknown size. Specify at least one as "
            "argument, "
            "e.g. d=4");
  EXPECT_EQ(error({{"b", {"c", "d"}}}, {{"d", 3}}),
            "Dimension 'b' of size 4 is not evenly divided by ('c', 'd') with sizes ('?', 3)");
  EXPECT_EQ(error({{"b", {}}}, {}), "Dimension 'b' of size 4 is not evenly divided by () with sizes ()");
  EXPECT_EQ(error({{"b", {"c", "d"}}}, {{"c", INT64_MAX}, {"d", 3}}),
            "Dimension 'b' of size 4 is not evenly divided by ('c', 'd') with sizes (9223372036854775807, 3)");
  EXPECT_EQ(error({{"b", {"a", "d"}}}, {{"d", 2}}), "Duplicate dimension name 'a'");
  EXPECT_EQ(error({{"b", {"c", "d"}}}, {{"d", 2}, {"q", 4}}), "unused size constraints: ('q',)");
  EXPECT_EQ(error({{"zz", {"c", "d"}}}, {}),
            "'zz' is not an existing dim. Expected an integer size constraint on a new dim.");
  EXPECT_EQ(error({{"b", {"c", "d"}}}, {{"d", 0}}), "the size of new dimension 'd' must be at least 1, got 0");
}

TEST(Region, RenamesAndSwapsNames) {
  EXPECT_EQ(two_by_four().rename("a", "x")->extent().to_string(), "{x: 2, b: 4}");
  EXPECT_EQ(two_by_four().rename("a", "b").error().message, "Duplicate dimension name 'b'");
  EXPECT_EQ(two_by_four().split({{"a", {"b"}}, {"b", {"a"}}}, {})->extent().to_string(), "{b: 2, a: 4}");
}

TEST(Region, FindsThePlaceOfABaseRank) {
  auto row = two_by_four().at("a", 1).value();
  EXPECT_EQ(row.point_of_base_rank(5)->to_string(), "{'b': 1/4}");
  EXPECT_EQ(row.point_of_base_rank(1).error().message,
            "out of range base rank: this base rank 1 does not belong to this region: 1");
}

TEST(Region, RefusesLabelsThatDoNotFitTheSlice) {
  EXPECT_EQ(Region::create({"a"}, Slice::row_major({2, 4}).value()).error().message,
            "label slice dimension mismatch: 1 != 2");
}

// The model: an array that spells out, for every tuple of coordinates, the base rank that lives there.
struct Model {
  std::vector<int64_t> sizes;
  std::map<Ranks, int64_t> cells;  // sorted by coordinates: row-major order

  static Model row_major(const Ranks& sizes) {
    Model model{sizes, {}};
    Ranks at(sizes.size(), 0);
    for (int64_t rank = 0;; ++rank) {
      model.cells[at] = rank;
      size_t dim = sizes.size();
      while (dim > 0 && ++at[dim - 1] == sizes[dim - 1]) at[--dim] = 0;
      if (dim == 0) return model;
    }
  }
  // Keeps cells whose coordinate is start, start + step, ...; drops the dimension if asked.
  Model select(size_t dim, int64_t start, int64_t stop, int64_t step, bool drop) const {
    Model out{sizes, {}};
    for (const auto& [place, rank] : cells) {
      Ranks at = place;
      if (at[dim] < start || at[dim] >= stop || (at[dim] - start) % step != 0) continue;
      at[dim] = (at[dim] - start) / step;
      if (drop) at.erase(at.begin() + dim);
      out.cells[at] = rank;
    }
    out.sizes[dim] = (stop - start + step - 1) / step;
    if (drop) out.sizes.erase(out.sizes.begin() + dim);
    return out;
  }
  Model split(size_t dim, int64_t outer, int64_t inner) const {
    Model out{sizes, {}};
    for (const auto& [place, rank] : cells) {
      Ranks at = place;
      at.insert(at.begin() + dim, at[dim] / inner);
      at[dim + 1] %= inner;
      out.cells[at] = rank;
    }
    out.sizes[dim] = inner;
    out.sizes.insert(out.sizes.begin() + dim, outer);
    return out;
  }
  Ranks ranks() const {
    Ranks out;
    for (const auto& [at, rank] : cells) out.push_back(rank);
    return out;
  }
  bool dense() const {
    auto all = ranks();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != all[0] + static_cast<int64_t>(i)) return false;
    }
    return true;
  }
};

void expect_same(const Region& region, const Model& model, int64_t base_size) {
  ASSERT_EQ(region.extent().sizes(), model.sizes);
  ASSERT_EQ(region.ranks(), model.ranks());
  std::map<int64_t, int64_t> index_of;
  int64_t index = 0;
  for (const auto& [at, rank] : model.cells) {
    ASSERT_EQ(region.slice().coordinates(rank).value(), at);
    ASSERT_EQ(region.slice().rank_of(at).value(), rank);
    index_of[rank] = index++;
  }
  for (int64_t rank = 0; rank < base_size; ++rank) {
    auto found = region.slice().index_of(rank);
    ASSERT_EQ(found.ok(), index_of.count(rank) == 1) << "rank " << rank;
    if (found) {
      ASSERT_EQ(*found, index_of[rank]);
    }
  }
  ASSERT_EQ(region.flatten("flat").ok(), model.dense()) << region.to_string();
}

TEST(Region, ComposedSlicingEqualsIndexArithmeticOnAnArray) {
  const char* given = std::getenv("MONARCH_TEST_SEED");
  uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("seed %llu (repeat with MONARCH_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };

  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    std::vector<std::string> labels;
    Ranks sizes;
    int next_label = 0;
    for (int64_t dims = pick(0, 4); dims > 0; --dims) {
      labels.push_back("d" + std::to_string(next_label++));
      sizes.push_back(pick(1, 6));
    }
    auto region = Region::row_major(Extent::create(labels, sizes).value());
    auto model = Model::row_major(sizes);
    int64_t base_size = region.size();
    for (int step = 0; step < 5 && !region.labels().empty(); ++step) {
      size_t dim = static_cast<size_t>(pick(0, static_cast<int64_t>(region.labels().size()) - 1));
      auto label = region.labels()[dim];
      int64_t size = region.extent().sizes()[dim];
      int64_t start = pick(0, size - 1);
      switch (pick(0, 3)) {
        case 0:
          region = region.at(label, start).value();
          model = model.select(dim, start, start + 1, 1, true);
          break;
        case 1: {
          int64_t stop = pick(start + 1, size), by = pick(1, 4);
          bool from_the_end = pick(0, 1) == 1 && stop < size;  // the same bounds, counted from the end
          region =
              region.select(label, {from_the_end ? start - size : start, from_the_end ? stop - size : stop, by})
                  .value();
          model = model.select(dim, start, stop, by, false);
          break;
        }
        case 2: {
          int64_t inner = pick(1, size);
          if (size % inner != 0) break;
          auto outer_label = "d" + std::to_string(next_label++),
               inner_label = "d" + std::to_string(next_label++);
          region = region.split({{label, {outer_label, inner_label}}}, {{inner_label, inner}}).value();
          model = model.split(dim, size / inner, inner);
          break;
        }
        default:
          region = region.rename(label, "d" + std::to_string(next_label++)).value();
      }
      expect_same(region, model, base_size);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace monarch
