#include "monarch/wire/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "monarch/wire/frame.h"
#include "monarch/wire/value_codec.h"

namespace monarch {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
const double kNan = std::numeric_limits<double>::quiet_NaN();

// Answers, and what they are combined to.
struct Answers {
  template <typename T>
  Answers& add(const T& answer) {
    ValueWriter writer;
    encode(writer, answer);
    bodies.emplace_back(writer.written().begin(), writer.written().end());
    parts.emplace_back();
    flags.push_back(0);
    return *this;
  }
  template <typename T>
  Answers& add_array(const std::string& dtype, std::vector<T> elements) {
    ValueWriter writer;
    writer.begin_tuple(2);
    writer.begin_tuple(1);
    writer.begin_tuple(3);
    writer.integer(0);
    writer.str(dtype);
    writer.begin_tuple(1);
    writer.integer(static_cast<int64_t>(elements.size()));
    writer.begin_tuple(1);
    writer.none();
    bodies.emplace_back(writer.written().begin(), writer.written().end());
    auto kept = std::make_shared<std::vector<T>>(std::move(elements));
    parts.push_back({Part{reinterpret_cast<std::byte*>(kept->data()), kept->size() * sizeof(T), kept}});
    flags.push_back(kFlagArrays);
    return *this;
  }
  ReduceInput input(uint32_t rank) const { return {rank, flags[rank], bodies[rank], parts[rank]}; }

  // On hosts of so many ranks each.
  bool reduce(Reducer reducer, uint32_t per_host = 1000) {
    const auto size = static_cast<uint32_t>(bodies.size());
    std::optional<Reduction> all;
    for (uint32_t begin = 0; begin < size; begin += per_host) {
      Reduction host(reducer);
      for (uint32_t rank = begin; rank < std::min(size, begin + per_host); ++rank) {
        if (!host.add(input(rank))) return problem = host.problem().text("m.loss"), false;
      }
      if (!all) {
        all.emplace(std::move(host));
      } else if (!all->merge(host)) {
        return problem = all->problem().text("m.loss"), false;
      }
    }
    value = {};
    if (all->write(value)) return true;
    return problem = all->problem().text("m.loss"), false;
  }
  template <typename T>
  T result() const {
    auto decoded = decode<T>(value.body);
    EXPECT_TRUE(decoded.ok());
    return decoded.ok() ? *decoded : T();
  }
  template <typename T>
  std::vector<T> elements() const {
    EXPECT_EQ(value.flags, kFlagArrays);
    std::vector<T> found(value.parts.at(0).size / sizeof(T));
    std::memcpy(found.data(), value.parts[0].data, value.parts[0].size);
    return found;
  }
  template <typename T>
  T of(Reducer reducer) {
    EXPECT_TRUE(reduce(reducer)) << problem;
    return result<T>();
  }
  std::string refused(Reducer reducer) { return reduce(reducer) ? "" : problem; }

  std::vector<std::vector<std::byte>> bodies;
  std::vector<std::vector<Part>> parts;
  std::vector<uint32_t> flags;
  ReducedValue value;
  std::string problem;
};

template <typename... T>
Answers of(const T&... values) {
  Answers answers;
  (answers.add(values), ...);
  return answers;
}

TEST(Reduce, CombinesNumbersAsPythonDoes) {
  EXPECT_EQ(of(1, 2, 3000).of<int64_t>(Reducer::kSum), 3003);
  EXPECT_EQ(of(true, true, false).of<int64_t>(Reducer::kSum), 2);
  EXPECT_EQ(of(true).of<int64_t>(Reducer::kSum), 1);
  EXPECT_EQ(of(1, 0.5, true).of<double>(Reducer::kSum), 2.5);
  EXPECT_EQ(of(3, -1, 2).of<int64_t>(Reducer::kMin), -1);
  EXPECT_EQ(of(3, 7.5, 2).of<double>(Reducer::kMax), 7.5);
  EXPECT_EQ(of(true, false).of<bool>(Reducer::kMin), false);
  EXPECT_EQ(of(1, 1.0).of<int64_t>(Reducer::kMax), 1) << "of equals the int";
  EXPECT_EQ(of(1.0, true, 1).of<int64_t>(Reducer::kMin), 1);
  EXPECT_EQ(of(true, 1.0).of<double>(Reducer::kMin), 1.0);
  EXPECT_EQ(of(kMost, static_cast<double>(kMost)).of<double>(Reducer::kMax), static_cast<double>(kMost))
      << "compared exactly: the float is 2 ** 63";
}

TEST(Reduce, ANanIsTheLeastAndTheGreatestWhereverItStands) {
  for (const Reducer reducer : {Reducer::kMin, Reducer::kMax, Reducer::kSum}) {
    EXPECT_TRUE(std::isnan(of(kNan, 1.0, 2).of<double>(reducer)));
    EXPECT_TRUE(std::isnan(of(2, 1.0, kNan).of<double>(reducer)));
  }
}

TEST(Reduce, AnIntThatDoesNotFitIsAnErrorAndOnTheWayNone) {
  EXPECT_EQ(of(kMost, kMost, -kMost).of<int64_t>(Reducer::kSum), kMost);
  EXPECT_EQ(of(kMost, 1).refused(Reducer::kSum), "reduce='sum' of ints does not fit in 64 bits (m.loss)");
  EXPECT_EQ(of(-kMost, -1).of<int64_t>(Reducer::kSum), std::numeric_limits<int64_t>::min());
}

TEST(Reduce, CombinesContainersElementByElement) {
  using Pair = std::tuple<int64_t, std::vector<double>>;
  EXPECT_EQ(of(Pair{1, {0.5, 1.0}}, Pair{2, {1.5, 2.0}}).of<Pair>(Reducer::kSum), (Pair{3, {2.0, 3.0}}));
  using Dict = std::map<std::string, int64_t>;
  EXPECT_EQ(of(Dict{{"a", 1}, {"b", 5}}, Dict{{"a", 2}, {"b", 3}}).of<Dict>(Reducer::kMax), (Dict{{"a", 2}, {"b", 5}}));
}

TEST(Reduce, FindsTheKeysOfADictInAnyOrder) {
  const auto dict = [](std::string_view first, int64_t one, std::string_view second, int64_t other) {
    ValueWriter writer;
    writer.begin_dict(2);
    writer.str(first);
    writer.integer(one);
    writer.str(second);
    writer.integer(other);
    return std::vector<std::byte>(writer.written().begin(), writer.written().end());
  };
  Answers answers;
  answers.bodies = {dict("a", 1, "b", 10), dict("b", 20, "a", 2)};
  answers.parts.resize(2);
  answers.flags.resize(2);
  EXPECT_EQ((answers.of<std::map<std::string, int64_t>>(Reducer::kSum)),
            (std::map<std::string, int64_t>{{"a", 3}, {"b", 30}}));
  answers.bodies[1] = dict("b", 20, "c", 2);
  EXPECT_EQ(answers.refused(Reducer::kSum),
            "reduce='sum' takes values of one shape: rank 0 of m.loss returned a dict of 2, and rank 1 returned one that "
            "differs from it");
}

TEST(Reduce, SaysWhoseAnswerIsNoNumberAndWhatItIs) {
  const std::string takes = "takes numbers, and rank ";
  EXPECT_EQ(of(1, 2, std::string("x")).refused(Reducer::kSum), "reduce='sum' " + takes + "2 of m.loss returned a str");
  EXPECT_EQ(of(std::vector<std::string>{"x"}).refused(Reducer::kMin),
            "reduce='min' " + takes + "0 of m.loss returned a str, in a list");
  EXPECT_EQ(of(1, std::vector<int64_t>{1}).refused(Reducer::kSum),
            "reduce='sum' takes values of one shape: rank 0 of m.loss returned a number, and rank 1 returned a list of 1");
  Answers pickled = of(1, 2);
  pickled.flags[1] = kFlagPickle;
  EXPECT_EQ(pickled.refused(Reducer::kMax), "reduce='max' " + takes + "1 of m.loss returned another object of Python");
  Answers broken = of(1, 2);
  broken.bodies[1].pop_back();
  EXPECT_EQ(broken.refused(Reducer::kMax), "reduce='max' " + takes + "1 of m.loss returned a malformed value");
}

TEST(Reduce, GivesTheValueThatAllHaveOrTwoRanksThatDiffer) {
  EXPECT_EQ(of(std::string("v2"), std::string("v2")).of<std::string>(Reducer::kAllEqual), "v2");
  const std::string takes = "reduce='all_equal' takes equal values: rank 0 of m.loss returned ";
  EXPECT_EQ(of(3, 3, 4).refused(Reducer::kAllEqual), takes + "3, and rank 2 returned 4");
  EXPECT_EQ(of(1, 1.0).refused(Reducer::kAllEqual), takes + "1, and rank 1 returned 1.0");
  using Pair = std::tuple<std::string, std::vector<bool>>;
  EXPECT_EQ(of(Pair{"a", {true}}, Pair{"b", {}}).refused(Reducer::kAllEqual),
            takes + "('a', [True]), and rank 1 returned ('b', [])");
  EXPECT_EQ(of(std::string(5000, 'a') + "b", std::string(5000, 'a')).refused(Reducer::kAllEqual).size() < 1000, true);
  Answers arrays;
  arrays.add_array<float>("<f4", {1, 2}).add_array<float>("<f4", {1, 2});
  ASSERT_TRUE(arrays.reduce(Reducer::kAllEqual));
  EXPECT_EQ(arrays.elements<float>(), (std::vector<float>{1, 2}));
  arrays.add_array<float>("<f4", {1, 3});
  EXPECT_EQ(arrays.refused(Reducer::kAllEqual), takes + "an array, and rank 2 returned one that differs from it");
}

TEST(Reduce, CombinesArraysAndLeavesWhatItIsGiven) {
  Answers answers;
  answers.add_array<float>("<f4", {1, 2}).add_array<float>("<f4", {10, 20}).add_array<float>("<f4", {100, -200});
  ASSERT_TRUE(answers.reduce(Reducer::kSum));
  EXPECT_EQ(answers.elements<float>(), (std::vector<float>{111, -178}));
  ASSERT_TRUE(answers.reduce(Reducer::kMin, 2));
  EXPECT_EQ(answers.elements<float>(), (std::vector<float>{1, -200}));
  std::vector<int32_t> many(1000);
  std::iota(many.begin(), many.end(), -500);
  Answers long_ones;
  long_ones.add_array("<i4", many).add_array("<i4", many);
  ASSERT_TRUE(long_ones.reduce(Reducer::kSum));
  for (int32_t& each : many) each *= 2;
  EXPECT_EQ(long_ones.elements<int32_t>(), many);
  Answers bytes;
  bytes.add_array<uint8_t>("|u1", {200}).add_array<uint8_t>("|u1", {56});
  EXPECT_EQ(bytes.refused(Reducer::kSum), "reduce='sum' does not fit in dtype '|u1' (m.loss)");
  EXPECT_TRUE(bytes.reduce(Reducer::kMax));
}

TEST(Reduce, RefusesArraysThatDifferAndDtypesThatItDoesNotKnow) {
  const auto refused = [](auto second) {
    Answers answers;
    answers.add_array<float>("<f4", {1, 2});
    second(answers);
    return answers.refused(Reducer::kSum);
  };
  const std::string differs = "reduce='sum' takes values of one dtype and shape: rank 0 of m.loss returned an array, and ";
  EXPECT_EQ(refused([](Answers& to) { to.add_array<float>("<f4", {1}); }),
            differs + "rank 1 returned one that differs from it");
  EXPECT_EQ(refused([](Answers& to) { to.add_array<double>("<f8", {1, 2}); }),
            differs + "rank 1 returned one that differs from it");
  EXPECT_NE(refused([](Answers& to) { to.add(1); }).find("takes values of one shape"), std::string::npos);
  Answers complex;
  complex.add_array<double>("<c16", {1, 2});
  EXPECT_NE(complex.refused(Reducer::kSum).find("returned an array of dtype '<c16'"), std::string::npos);
  Answers lies;  // about the size of its elements
  lies.add_array<uint8_t>("<f4", {1, 2, 3}).add_array<uint8_t>("<f4", {1, 2, 3});
  EXPECT_NE(lies.refused(Reducer::kSum), "");
  Answers nothing;
  nothing.add_array<float>("<f4", {1, 2}).add_array<float>("<f4", {1, 2});
  nothing.parts[1].clear();
  EXPECT_NE(nothing.refused(Reducer::kSum).find("a malformed array"), std::string::npos);
}

// What a host on the way may merge, and leave the rest to the caller.
TEST(Reduce, KnowsWhatDoesNotDependOnTheOrder) {
  const auto is_free = [](Reducer reducer, Answers answers) {
    Reduction one(reducer), other(reducer);
    EXPECT_TRUE(one.add(answers.input(0)));
    EXPECT_TRUE(other.add(answers.input(1)));
    return one.is_free_of_order(other);
  };
  EXPECT_TRUE(is_free(Reducer::kSum, of(1, kMost)));
  EXPECT_TRUE(is_free(Reducer::kSum, of(true, 2)));
  EXPECT_FALSE(is_free(Reducer::kSum, of(1.0, 2.0))) << "it is rounded";
  EXPECT_FALSE(is_free(Reducer::kSum, of(1, 2.0)));
  EXPECT_TRUE(is_free(Reducer::kMax, of(1.5, 2.0)));
  EXPECT_FALSE(is_free(Reducer::kMax, of(1, 1.0))) << "the first of equals";
  EXPECT_FALSE(is_free(Reducer::kMin, of(true, 1)));
  EXPECT_FALSE(is_free(Reducer::kMin, of(0.0, -0.0)));
  EXPECT_FALSE(is_free(Reducer::kMax, of(kNan, 1.0)));
  using Pair = std::tuple<int64_t, std::vector<double>>;
  EXPECT_TRUE(is_free(Reducer::kMin, of(Pair{1, {0.5}}, Pair{2, {1.5}})));
  EXPECT_FALSE(is_free(Reducer::kSum, of(Pair{1, {0.5}}, Pair{2, {1.5}})));
  EXPECT_FALSE(is_free(Reducer::kMin, of(Pair{1, {0.5}}, Pair{2, {1.5, 2.5}})));
  using Dict = std::map<std::string, int64_t>;
  EXPECT_TRUE(is_free(Reducer::kSum, of(Dict{{"a", 1}, {"b", 5}}, Dict{{"a", 2}, {"b", 3}})));
  EXPECT_FALSE(is_free(Reducer::kSum, of(Dict{{"a", 1}}, Dict{{"b", 2}})));
  EXPECT_TRUE(is_free(Reducer::kAllEqual, of(1.5, 1.5)));
  const auto arrays = [](const std::string& dtype) {
    Answers two;
    two.add_array<int32_t>(dtype, {1, 2}).add_array<int32_t>(dtype, {3, 4});
    return two;
  };
  EXPECT_TRUE(is_free(Reducer::kMax, arrays("<i4")));
  EXPECT_FALSE(is_free(Reducer::kSum, arrays("<i4"))) << "what fits at the end may not on the way";
  EXPECT_FALSE(is_free(Reducer::kMax, arrays("<f4")));
  Answers mixed = of(1);
  mixed.add_array<int32_t>("<i4", {1});
  EXPECT_FALSE(is_free(Reducer::kMax, mixed));
}

// Ints are added exactly, so that those which a host has merged do not change how floats are rounded.
TEST(Reduce, IntsAmongFloatsAreAddedExactlyWhereverTheyStand) {
  const double big = 9007199254740992.0;  // 2 ** 53
  EXPECT_EQ(of(1, big, 1).of<double>(Reducer::kSum), big + 2);
  EXPECT_EQ(of(2, big).of<double>(Reducer::kSum), big + 2);
  EXPECT_EQ(of(big, 1, 1).of<double>(Reducer::kSum), big + 2);
  EXPECT_TRUE(std::signbit(of(-0.0).of<double>(Reducer::kSum)));
  EXPECT_FALSE(std::signbit(of(0, -0.0).of<double>(Reducer::kSum)));
}

// A host that combines its own rounds what it writes, and so does who groups them as it would.
TEST(Reduce, IsRoundedAtTheEndOfEachHost) {
  const Answers answers = of(int64_t{1} << 53, 1.0, 1.0);  // the first two of one host
  const auto sum = [&](bool is_combined) {
    Reduction host(Reducer::kSum), other(Reducer::kSum);
    EXPECT_TRUE(host.add(answers.input(0)) && host.add(answers.input(1)) && other.add(answers.input(2)));
    ReducedValue value;
    if (is_combined) {
      EXPECT_TRUE(host.write(value));
      Reduction again(Reducer::kSum);
      EXPECT_TRUE(again.add({0, value.flags, value.body, value.parts}));
      EXPECT_TRUE(again.merge(other) && again.write(value));
    } else {
      host.end_host();
      EXPECT_TRUE(host.merge(other) && host.write(value));
    }
    return *decode<double>(value.body);
  };
  EXPECT_EQ(sum(true), sum(false));
}

// ---- Against a reference, over seeds ----

TEST(ReduceSeeds, AgreesWithLoopsAndNotOnHowTheRanksAreSpread) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    const size_t ranks = 1 + below(40), width = below(4);
    std::vector<std::vector<int64_t>> wholes(ranks);
    std::vector<std::vector<double>> reals(ranks);
    using Both = std::tuple<std::vector<int64_t>, std::vector<double>>;
    Answers answers;
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < width; ++i) {
        wholes[rank].push_back(static_cast<int64_t>(random()) >> below(63));
        reals[rank].push_back(static_cast<double>(static_cast<int64_t>(below(1 << 20)) - (1 << 19)));  // sums are exact
      }
      answers.add(Both{wholes[rank], reals[rank]});
    }
    const auto reference = [&](Reducer reducer, const auto& of, auto zero) {
      auto result = std::vector<decltype(zero)>(width, zero);
      for (size_t i = 0; i < width; ++i) {
        result[i] = static_cast<decltype(zero)>(of[0][i]);
        for (size_t rank = 1; rank < ranks; ++rank) {
          const auto next = static_cast<decltype(zero)>(of[rank][i]);
          result[i] = reducer == Reducer::kSum   ? result[i] + next
                      : reducer == Reducer::kMin ? std::min(result[i], next)
                                                 : std::max(result[i], next);
        }
      }
      return result;
    };
    for (const Reducer reducer : {Reducer::kSum, Reducer::kMin, Reducer::kMax}) {
      __extension__ using Wide = __int128;
      const auto whole = reference(reducer, wholes, Wide{0});
      const bool fits = std::ranges::all_of(whole, [](Wide each) { return each == static_cast<int64_t>(each); });
      for (const uint32_t per_host : {1000u, 1u, 7u}) {
        ASSERT_EQ(answers.reduce(reducer, per_host), fits) << "seed " << seed << ": " << answers.problem;
        if (!fits) continue;
        const auto [got_wholes, got_reals] = answers.result<Both>();
        EXPECT_TRUE(std::ranges::equal(got_wholes, whole)) << "seed " << seed;
        EXPECT_EQ(got_reals, reference(reducer, reals, 0.0)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace monarch
