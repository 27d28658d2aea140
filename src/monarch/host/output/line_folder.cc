#include "monarch/host/output/line_folder.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace monarch {

namespace {

constexpr size_t kComparedBytesMax = 1024;

// The largest edit distance that is still less than 0.15 of `length`.
size_t distance_limit(size_t length) { return length == 0 ? 0 : (15 * length - 1) / 100; }

std::array<uint16_t, 32> letters_of(std::string_view line) {
  std::array<uint16_t, 32> letters{};
  for (unsigned char c : line.substr(0, kComparedBytesMax)) ++letters[c % 32];
  return letters;
}

// One edit moves one letter: it changes this sum by two at most.
bool letters_allow(const std::array<uint16_t, 32>& a, const std::array<uint16_t, 32>& b, size_t limit) {
  size_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<size_t>(std::abs(int{a[i]} - int{b[i]}));
  return sum <= 2 * limit;
}

// Whether the edit distance is at most `limit`: the usual table, of which only the diagonal band can matter.
bool within_distance(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return false;
  const size_t far = limit + 1;
  std::vector<size_t> row(a.size() + 1);
  for (size_t i = 0; i <= a.size(); ++i) row[i] = std::min(i, far);
  for (size_t j = 1; j <= b.size(); ++j) {
    const size_t from = j > limit ? j - limit : 1;
    const size_t to = std::min(a.size(), j + limit);
    size_t diagonal = row[from - 1];
    row[from - 1] = from == 1 ? std::min(j, far) : far;
    size_t least = row[from - 1];
    for (size_t i = from; i <= to; ++i) {
      const size_t above = i == j + limit ? far : row[i];  // the band ended before it in the last row
      const size_t best = std::min({diagonal + (a[i - 1] != b[j - 1]), row[i - 1] + 1, above + 1, far});
      diagonal = row[i];
      row[i] = best;
      least = std::min(least, best);
    }
    if (least > limit) return false;
  }
  return row[a.size()] <= limit;
}

}  // namespace

bool similar_lines(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const size_t longer = std::max(a.size(), b.size());
  return longer <= kComparedBytesMax && within_distance(a, b, distance_limit(longer));
}

std::string ranks_text(const std::vector<bool>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size(); ++first) {
    if (!ranks[first]) continue;
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1]) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last != first) text += '-' + std::to_string(last);
    first = last;
  }
  return text;
}

LineFolder::Group* LineFolder::find(std::string_view line, const std::array<uint16_t, 32>& letters) {
  if (line.size() > kComparedBytesMax) return nullptr;
  const size_t oldest = groups_.size() > kComparedMax ? groups_.size() - kComparedMax : 0;
  for (size_t index = groups_.size(); index-- > oldest;) {
    Group& group = groups_[index];
    if (group.text.size() > kComparedBytesMax) continue;
    const size_t limit = distance_limit(std::max(line.size(), group.text.size()));
    if (letters_allow(letters, group.letters, limit) && within_distance(line, group.text, limit)) return &group;
  }
  return nullptr;
}

void LineFolder::add(int64_t rank, std::string_view line) {
  std::string key(line);
  auto known = exact_.find(key);
  if (known == exact_.end()) {
    const auto letters = letters_of(line);
    const Group* similar = find(line, letters);
    const size_t index = similar == nullptr ? groups_.size() : static_cast<size_t>(similar - groups_.data());
    if (similar == nullptr) {
      groups_.push_back({key, 0, {}, letters});
    }
    bytes_ += key.size() + sizeof(Group);
    known = exact_.emplace(std::move(key), index).first;
  }
  Group& group = groups_[known->second];
  ++group.count;
  if (rank < 0) return;
  const auto place = static_cast<size_t>(rank);
  if (group.ranks.size() <= place) group.ranks.resize(place + 1);
  group.ranks[place] = true;
}

std::vector<LineFolder::Group> LineFolder::take() {
  exact_.clear();
  bytes_ = 0;
  return std::exchange(groups_, {});
}

}  // namespace monarch
