// What a gateway has given to whoever has passed the cast on to it (docs/design/046), and not to the caller: it keeps the
// answers of its own host until the caller has said which it has, since all that it has given may be lost with any host
// above. Belongs to Reductions, and has its lock.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "monarch/actor/answers.h"
#include "monarch/base/ids.h"
#include "monarch/wire/replies.h"

namespace monarch {

class KeptAnswers {
 public:
  // What is beyond these has to go to its caller at once.
  static constexpr size_t kCallsMax = 8192;
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20, kCallBytesMax = uint64_t{256} << 10;
  static constexpr uint64_t kAnswerCost = 256;  // beside its bytes
  // A caller names each call that it waits for more often than that. Of one that has not been named it waits no more, or
  // is stopped.
  static constexpr int64_t kUnnamedNs = 30'000'000'000;
  // What was given up so short a while ago may be on its way to its caller, who misses it: it is held for 100 ms perhaps.
  static constexpr int64_t kOnItsWayNs = 250'000'000;
  // So many of the last that were kept go to their callers with the news of a death; others have most probably come.
  static constexpr uint64_t kLastFew = 8;

  using Key = std::pair<NodeId, uint64_t>;  // caller, token
  struct Kept {
    NodeId parent = 0;  // whom they were given to
    std::vector<OwedAnswer> owed;
    uint64_t bytes = 0;
    int64_t since_ns = 0;
    uint64_t number = 0;  // of all that have been kept
  };
  using Taken = std::vector<std::pair<Key, Kept>>;

  // False: there is no room for it. May throw std::bad_alloc. Either way it is as it was.
  bool add(const Key& key, NodeId parent, const std::vector<OwedAnswer>& owed, int64_t now_ns);
  void forget(const Key& key);
  // Those that are to go to their callers, and are kept no longer: which that misses (what it has is forgotten), which were
  // given to that gateway, the last few with an answer of that process, what has not been named for too long.
  Taken take_missing(NodeId caller, const std::vector<SeenCall>& seen, int64_t now_ns);
  Taken take_given_to(NodeId gateway);
  Taken take_last_of(NodeId process);
  Taken take_unnamed(int64_t now_ns);
  void forget_caller(NodeId caller);
  void clear();

  size_t size() const { return kept_.size(); }
  bool empty() const { return kept_.empty(); }
  // When the oldest will have been unnamed for too long; not empty().
  int64_t unnamed_ns() const { return kept_.at(by_age_.begin()->second).since_ns + kUnnamedNs; }

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
