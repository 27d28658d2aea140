// Folds the lines that many ranks print within a window of time: equal and nearly equal ones become one, which keeps
// who said it. Pure: time is the caller's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace monarch {

// Whether two lines differ in less than 0.15 of the longer one's characters (edit distance, in bytes). What is equal is
// similar; of lines above 1 KiB nothing else is.
bool similar_lines(std::string_view a, std::string_view b);

// "3", "0-31", "0-3,7": a set of ranks, for people.
std::string ranks_text(const std::vector<bool>& ranks);

// Belongs to one thread.
class LineFolder {
 public:
  // `rank`: -1 for a process without one.
  void add(int64_t rank, std::string_view line);
  bool empty() const { return groups_.empty(); }
  // It holds as much as it should: write() is due now.
  bool full() const { return groups_.size() >= kGroupsMax || bytes_ >= kBytesMax; }

  struct Group {
    std::string text;        // the first line
    uint64_t count = 0;      // lines
    std::vector<bool> ranks;  // by rank; empty: a process without one
    std::array<uint16_t, 32> letters{};  // how often which, modulo 32: what differs much in them is not similar
  };
  // Hands over the groups, in the order of their first lines, and is empty.
  std::vector<Group> take();

 private:
  Group* find(std::string_view line, const std::array<uint16_t, 32>& letters);

  static constexpr size_t kGroupsMax = 1024;
  static constexpr size_t kBytesMax = 1 << 20;
  static constexpr size_t kComparedMax = 64;  // groups, the latest, that a new line is compared with

  std::vector<Group> groups_;
  std::unordered_map<std::string, size_t> exact_;  // lines that were seen -> their group
  size_t bytes_ = 0;
};

}  // namespace monarch
