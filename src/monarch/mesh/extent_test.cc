#include "monarch/mesh/extent.h"

#include <gtest/gtest.h>

#include "monarch/mesh/point.h"

namespace monarch {
namespace {

Extent two_by_four() { return Extent::create({"hosts", "gpus"}, {2, 4}).value(); }

std::string error_of(std::vector<std::string> labels, std::vector<int64_t> sizes) {
  return Extent::create(std::move(labels), std::move(sizes)).error().message;
}

TEST(Extent, KnowsItsSizesByLabel) {
  auto extent = two_by_four();
  EXPECT_EQ(extent.element_count(), 8);
  EXPECT_EQ(extent.size("gpus").value(), 4);
  EXPECT_EQ(extent.size("x").error().message, "Dimension 'x' not found");
}

TEST(Extent, WithoutDimensionsHasOneElement) {
  EXPECT_EQ(Extent().element_count(), 1);
  EXPECT_EQ(Extent(), Extent::create({}, {}).value());
  EXPECT_EQ(Extent().to_string(), "{}");
}

TEST(Extent, PrintsLabelsAndQuotesOddOnes) {
  EXPECT_EQ(two_by_four().to_string(), "{hosts: 2, gpus: 4}");
  EXPECT_EQ(Extent::create({"a b", "q\"r"}, {1, 2}).value().to_string(), "{\"a b\": 1, \"q\\\"r\": 2}");
}

TEST(Extent, RefusesWhatIsNoMesh) {
  EXPECT_EQ(error_of({"a"}, {1, 2}), "label/sizes dimension mismatch: 1 != 2");
  EXPECT_EQ(error_of({"a", "a"}, {1, 2}), "Duplicate dimension name 'a'");
  EXPECT_EQ(error_of({"a", "b"}, {2, 0}),
            "invalid sizes [2, 0]: every dimension must have at least one element, got 0");
  EXPECT_EQ(error_of({"a"}, {-1}),
            "invalid sizes [-1]: every dimension must have at least one element, got -1");
  EXPECT_EQ(error_of({"a", "b"}, {int64_t{1} << 32, int64_t{1} << 31}),
            "invalid sizes [4294967296, 2147483648]: the number of elements does not fit 63 bits");
}

TEST(Extent, RefusesASeventeenthDimension) {
  std::vector<std::string> labels;
  for (int i = 0; i < 17; ++i) labels.push_back("d" + std::to_string(i));
  EXPECT_EQ(error_of(labels, std::vector<int64_t>(17, 1)),
            "a mesh can have at most 16 dimensions, got 17: flatten some of them");
}

TEST(Extent, EqualOnesHashEqual) {
  EXPECT_EQ(two_by_four(), two_by_four());
  EXPECT_EQ(two_by_four().hash(), two_by_four().hash());
  EXPECT_NE(two_by_four(), Extent::create({"hosts", "x"}, {2, 4}).value());
  EXPECT_NE(two_by_four(), Extent::create({"hosts", "gpus"}, {4, 2}).value());
}

TEST(Point, TakesItsRankApart) {
  Point point(6, two_by_four());
  EXPECT_EQ(point.coordinate("hosts").value(), 1);
  EXPECT_EQ(point.coordinate("gpus").value(), 2);
  EXPECT_EQ(point.coordinate("zz").error().message, "Dimension 'zz' not found");
  EXPECT_EQ(point.to_string(), "{'hosts': 1/2, 'gpus': 2/4}");
}

TEST(Point, MustLieInItsExtent) {
  EXPECT_TRUE(Point::create(7, two_by_four()).ok());
  EXPECT_EQ(Point::create(8, two_by_four()).error().message,
            "out of range: total ranks 8; does not contain rank 8");
  EXPECT_EQ(Point::create(-1, two_by_four()).error().message,
            "out of range: total ranks 8; does not contain rank -1");
}

TEST(Point, EqualOnesHashEqual) {
  EXPECT_EQ(Point(3, two_by_four()), Point(3, two_by_four()));
  EXPECT_EQ(Point(3, two_by_four()).hash(), Point(3, two_by_four()).hash());
  EXPECT_FALSE(Point(3, two_by_four()) == Point(4, two_by_four()));
}

TEST(PointDeathTest, AnUncheckedOneOutsideAborts) { EXPECT_DEATH(Point(8, two_by_four()), "CHECK failed"); }

}  // namespace
}  // namespace monarch
