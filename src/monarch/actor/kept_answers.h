// What a gateway has given to whoever has passed the cast on to it (docs/design/046), and not to the caller: it keeps the
// answers of its own host until the caller has said which it has, since all that it has given may be lost with any host
// above. Belongs to Reductions, and has its lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "monarch/actor/answers.h"
#include "monarch/base/ids.h"
#include "monarch/wire/replies.h"

namespace monarch {

class KeptAnswers {
 public:
  // Beyond these the oldest go to their caller, who may have them twice.
  static constexpr size_t kCallsMax = 8192;
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20;

  using Key = std::pair<NodeId, uint64_t>;  // caller, token
  struct Kept {
    NodeId parent = 0;  // whom they were given to
    std::vector<OwedAnswer> owed;
    uint64_t bytes = 0;
    uint64_t number = 0;  // of all that have been kept
  };
  using Taken = std::vector<std::pair<Key, Kept>>;

  // May throw std::bad_alloc: it is as it was.
  void add(const Key& key, NodeId parent, const std::vector<OwedAnswer>& owed);
  void forget(const Key& key);
  // Those that are to go to their caller: beyond the bounds, or which that misses, or was given to this gateway, or of an
  // actor of this node. They are kept no longer.
  Taken take_excess();
  Taken take_missing(NodeId caller, const std::vector<SeenCall>& seen);  // what that has seen is forgotten
  Taken take_with(NodeId gateway_or_node);
  void forget_caller(NodeId caller);
  void clear();

  size_t size() const { return kept_.size(); }
  bool empty() const { return kept_.empty(); }

 private:
  using Table = std::map<Key, Kept>;
  Table::iterator erase(Table::iterator of);
  Table::iterator move_out(Table::iterator of, Taken& taken);

  Table kept_;
  std::map<uint64_t, Key> by_age_;
  uint64_t numbered_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace monarch
