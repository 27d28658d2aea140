// C++ actors in a shared library, for programs in Python (docs/concepts/cpp-actors.md) and for the tests.
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "monarch/monarch.h"

struct Counter : monarch::Actor {
  explicit Counter(int64_t start) : value_(start) {
    if (start < 0) throw std::invalid_argument("a counter starts at 0 or more");
  }

  int64_t add(int64_t by) { return value_ += by; }
  double mean(std::vector<double> numbers) {
    if (numbers.empty()) throw std::invalid_argument("the mean of nothing");
    double sum = 0;
    for (double number : numbers) sum += number;
    return sum / static_cast<double>(numbers.size());
  }
  std::tuple<int64_t, std::string> who() { return {rank(), name()}; }
  std::map<std::string, int64_t> count_words(std::vector<std::string> words) {
    std::map<std::string, int64_t> counts;
    for (const std::string& word : words) ++counts[word];
    return counts;
  }

 private:
  int64_t value_;
};
MONARCH_ACTOR(Counter, add, mean, who, count_words)
