#include "monarch/net/shm/page_runs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace monarch {
namespace {

// Against a model: a map of what is lent.
TEST(PageRuns, LendsNoPageTwiceAndMergesWhatComesBack) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr uint32_t kPages = 10'000;
    PageRuns runs = std::move(*PageRuns::make(kPages));
    std::map<uint32_t, uint32_t> lent;
    for (int i = 0; i < 3000; ++i) {
      const bool take = lent.empty() || random() % 5 < 3;
      if (take) {
        const uint32_t pages = 1 + random() % (random() % 4 == 0 ? 1500 : 20);
        const uint32_t first = runs.take(pages);
        if (first == PageRuns::kNone) continue;
        ASSERT_LE(first + pages, kPages);
        const auto after = lent.lower_bound(first);
        ASSERT_TRUE(after == lent.end() || first + pages <= after->first);
        ASSERT_TRUE(after == lent.begin() || std::prev(after)->first + std::prev(after)->second <= first);
        lent.emplace(first, pages);
        ASSERT_EQ(runs.holders(first), 1u);
      } else {
        auto at = std::next(lent.begin(), static_cast<int64_t>(random() % lent.size()));
        ASSERT_EQ(runs.lent_at(at->first), at->second);
        runs.give_back(at->first);
        ASSERT_EQ(runs.lent_at(at->first), 0u);
        lent.erase(at);
      }
      // Free runs and lent ones are all there is, and no two free ones touch.
      if (i % 100 != 0) continue;
      std::map<uint32_t, uint32_t> all = lent;
      runs.visit_free(1, [&](uint32_t first, uint32_t pages) {
        EXPECT_TRUE(all.emplace(first, pages).second);
        EXPECT_TRUE(first + pages == kPages || lent.contains(first + pages));
        return false;
      });
      uint32_t next = 0;
      for (const auto& [first, pages] : all) {
        ASSERT_EQ(first, next);
        next = first + pages;
      }
      ASSERT_EQ(next, kPages);
    }
    for (const auto& [first, pages] : lent) runs.give_back(first);
    EXPECT_EQ(runs.take(kPages), 0u);
  }
}

TEST(PageRuns, TakesExactPagesOutOfAFreeRun) {
  PageRuns runs = std::move(*PageRuns::make(100));
  runs.take_at(0, 40, 20);
  EXPECT_EQ(runs.lent_at(40), 20u);
  EXPECT_EQ(runs.take(41), PageRuns::kNone);
  EXPECT_NE(runs.take(40), PageRuns::kNone);
  EXPECT_NE(runs.take(40), PageRuns::kNone);
  EXPECT_EQ(runs.take(1), PageRuns::kNone);
  EXPECT_EQ(runs.lent_at(41), 0u);
  EXPECT_EQ(runs.lent_at(1000), 0u);
}

TEST(PageRuns, AreFewBytesForMuchAddressSpace) {
  PageRuns runs = std::move(*PageRuns::make(1u << 31));
  const uint32_t first = runs.take(1u << 30);
  ASSERT_NE(first, PageRuns::kNone);
  runs.give_back(first);
  EXPECT_EQ(runs.take(1u << 31), 0u);
}

}  // namespace
}  // namespace monarch
