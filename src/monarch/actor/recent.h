// A table that remembers the last so many entries: what is known of the dead, of whom there are ever more. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

namespace monarch {

template <typename Key, typename Value>
class Recent {
 public:
  explicit Recent(size_t kept) : kept_(kept) {}

  const Value* find(const Key& key) const {
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  bool contains(const Key& key) const { return values_.contains(key); }
  size_t size() const { return values_.size(); }

  // A key that is there keeps its place among the others and takes the new value. Returns the key that is forgotten for it.
  std::optional<Key> put(const Key& key, Value value) {
    if (!values_.insert_or_assign(key, std::move(value)).second) return std::nullopt;
    order_.push_back(key);
    if (order_.size() <= kept_) return std::nullopt;
    const Key oldest = order_.front();
    order_.pop_front();
    values_.erase(oldest);
    return oldest;
  }
  // Takes as long as there are entries.
  void erase(const Key& key) {
    if (values_.erase(key) != 0) std::erase(order_, key);
  }

 private:
  const size_t kept_;
  std::unordered_map<Key, Value> values_;
  std::deque<Key> order_;  // oldest first
};

}  // namespace monarch
