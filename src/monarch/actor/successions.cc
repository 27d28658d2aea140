#include "monarch/actor/successions.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "monarch/wire/value_codec.h"

namespace monarch {

namespace {
// As it travels: ((process, successor), ...), ((first, count, epoch), ...), the records of the deaths, and the steps.
using Wire = std::tuple<std::vector<std::pair<uint64_t, uint64_t>>, std::vector<std::tuple<uint64_t, uint64_t, uint32_t>>,
                        std::vector<std::vector<std::byte>>, std::vector<uint32_t>>;
}  // namespace

std::string Successions::Notice::encoded() const {
  Wire wire;
  std::get<0>(wire) = processes;
  for (const Epoch& mesh : meshes) std::get<1>(wire).emplace_back(mesh.first, mesh.count, mesh.epoch);
  for (const Failure& failure : why) {
    const std::string record = failure.encoded();
    const ByteSpan bytes = as_byte_span(record.data(), record.size());
    std::get<2>(wire).emplace_back(bytes.begin(), bytes.end());
  }
  std::get<3>(wire) = steps;
  ValueWriter writer;
  encode(writer, wire);
  const ByteSpan bytes = writer.written();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<Successions::Notice> Successions::Notice::decode(ByteSpan bytes) {
  auto wire = monarch::decode<Wire>(bytes);
  if (!wire) return wire.error();
  Notice notice;
  for (const auto& [node, next] : std::get<0>(*wire)) {
    if (node == 0 || next == 0 || node == next) return Error{ErrorCode::kMalformed, "a process that succeeds nobody"};
    notice.processes.emplace_back(node, next);
  }
  for (const auto& [first, count, epoch] : std::get<1>(*wire)) {
    if (first > kIdMask || count == 0 || count > kIdMask || epoch > kEpochMax) {
      return Error{ErrorCode::kMalformed, "no epoch of a mesh"};
    }
    notice.meshes.push_back({first, count, epoch});
  }
  const auto& records = std::get<2>(*wire);
  if (!records.empty() && records.size() != notice.processes.size()) {
    return Error{ErrorCode::kMalformed, "deaths of other processes"};
  }
  for (const auto& record : records) {
    auto failure = Failure::decode(record);
    if (!failure) return failure.error();
    notice.why.push_back(std::move(*failure));
  }
  notice.steps = std::move(std::get<3>(*wire));
  if (!notice.steps.empty() && notice.steps.size() != notice.processes.size()) {
    return Error{ErrorCode::kMalformed, "steps of other processes"};
  }
  for (const uint32_t count : notice.steps) {
    if (count == 0 || count > kStepsMax) return Error{ErrorCode::kMalformed, "a process that succeeds nobody"};
  }
  return notice;
}

void Successions::Notice::add_process(const Notice& of, size_t index) {
  processes.push_back(of.processes[index]);
  if (!of.why.empty()) why.push_back(of.why[index]);
  if (!of.steps.empty()) steps.push_back(of.steps[index]);
}

Successions::Notice Successions::apply(const Notice& notice) {
  Notice news;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < notice.processes.size(); ++i) {
    const auto [node, next] = notice.processes[i];
    if (succeed(node, next, notice.steps_of(i))) news.add_process(notice, i);
  }
  for (const Epoch& mesh : notice.meshes) {
    Epoch& known = epochs_[mesh.first + (mesh.count - 1)];
    if (mesh.epoch <= known.epoch) continue;
    known = mesh;
    news.meshes.push_back(mesh);
  }
  if (!news.empty()) any_.store(true, std::memory_order_relaxed);
  changes_.store(next_change());
  return news;
}

// ---- Lineages; mutex_ held ----

Successions::LineagePtr Successions::lineage_of(NodeId node) const {
  const auto found = lineages_.find(node);
  return found == lineages_.end() ? nullptr : found->second;
}

// False: that is known, or cannot be.
bool Successions::succeed(NodeId node, NodeId next, uint32_t steps) {
  LineagePtr earlier = lineage_of(node), later = lineage_of(next);
  const auto member = [](const LineagePtr& lineage, NodeId wanted) -> Member& {
    return *std::find_if(lineage->members.begin(), lineage->members.end(),
                         [wanted](const Member& each) { return each.node == wanted; });
  };
  if (earlier && earlier == later) {  // or they would follow each other in a circle
    member(earlier, node).named = ++earlier->changes;
    return false;
  }
  if (!earlier && !later) {
    earlier = std::make_shared<Lineage>();
    insert(earlier, node, 0);
  }
  if (!later) return insert(earlier, next, member(earlier, node).generation + steps);
  if (!earlier) return insert(later, node, member(later, next).generation - steps);
  if (earlier->members.back().node != node) return false;  // it has another successor
  return join(earlier, later, member(later, next).generation - steps - earlier->members.back().generation);
}

// A place of a lineage is taken by who was there first.
bool Successions::insert(const LineagePtr& lineage, NodeId node, int64_t generation) {
  auto& members = lineage->members;
  const auto place = std::lower_bound(members.begin(), members.end(), generation, [](const Member& each, int64_t wanted) {
    return each.generation < wanted;
  });
  if (place != members.end() && place->generation == generation) return false;
  if (!members.empty() && std::max(members.back().generation, generation) -
                                  std::min(members.front().generation, generation) > kStepsMax) {
    return false;
  }
  if (place == members.end()) revive(*lineage);
  members.insert(place, {node, generation, ++lineage->changes});
  lineages_.emplace(node, lineage);
  shrink(*lineage);
  return true;
}

bool Successions::join(const LineagePtr& earlier, const LineagePtr& later, int64_t shift) {
  revive(*earlier);
  const std::vector<Member> members = std::move(earlier->members);
  bool all = true;
  for (const Member& each : members) {
    lineages_.erase(each.node);
    all = insert(later, each.node, each.generation + shift) && all;
  }
  return all;
}

void Successions::shrink(Lineage& lineage) {
  auto& members = lineage.members;
  if (members.size() <= kBetweenMax + 2) return;
  const auto oldest = std::min_element(members.begin() + 1, members.end() - 1,
                                       [](const Member& a, const Member& b) { return a.named < b.named; });
  lineages_.erase(oldest->node);
  members.erase(oldest);
}

void Successions::revive(Lineage& lineage) {
  if (const uint64_t number = std::exchange(lineage.ended, 0); dead_.erase(number) == 0) stopped_.erase(number);
}

void Successions::forget_first(std::map<uint64_t, LineagePtr>& ended, size_t max) {
  if (ended.size() <= max) return;
  for (const Member& each : ended.begin()->second->members) lineages_.erase(each.node);
  ended.erase(ended.begin());
}

// ---- What is asked ----

void Successions::ended(NodeId node, bool asked) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  const LineagePtr lineage = lineage_of(node);
  if (!lineage || lineage->members.back().node != node || lineage->ended != 0) return;
  lineage->ended = ++last_ended_;
  (asked ? stopped_ : dead_).emplace(lineage->ended, lineage);
  forget_first(stopped_, kStoppedMax);
  forget_first(dead_, kDeadMax);
  changes_.store(next_change());
}

NodeId Successions::latest(NodeId node) const {
  if (!any()) return node;
  std::lock_guard lock(mutex_);
  const LineagePtr lineage = lineage_of(node);
  return lineage ? lineage->members.back().node : node;
}

uint32_t Successions::count_of(NodeId node) const {
  std::lock_guard lock(mutex_);
  const LineagePtr lineage = lineage_of(node);
  if (!lineage) return 0;
  for (const Member& each : lineage->members) {
    if (each.node == node) return static_cast<uint32_t>(lineage->members.back().generation - each.generation);
  }
  return 0;
}

std::shared_ptr<const Members> Successions::latest(const Members& members) const {
  std::shared_ptr<Members> now;
  if (!any()) return now;
  if (const auto known = members.latest.get(changes_.load())) return *known;
  std::unique_lock lock(mutex_);
  const uint64_t changes = changes_.load();
  for (size_t rank = 0; rank < members.ids.size(); ++rank) {
    const auto found = lineages_.find(members.ids[rank].node);
    if (found == lineages_.end()) continue;
    const NodeId latest = found->second->members.back().node;
    if (latest == members.ids[rank].node) continue;
    if (!now) now = std::make_shared<Members>(members);
    now->ids[rank].node = latest;
  }
  lock.unlock();
  members.latest.set(changes, now);
  return now;
}

uint32_t Successions::epoch_of(ActorIndex index) const {
  if (!any()) return 0;
  std::lock_guard lock(mutex_);
  const auto found = epochs_.lower_bound(index);
  return found != epochs_.end() && found->second.first <= index ? found->second.epoch : 0;
}

Successions::Notice Successions::all() const {
  Notice notice;
  std::lock_guard lock(mutex_);
  for (const auto& [node, lineage] : lineages_) {
    const Member& last = lineage->members.back();
    if (lineage->members.front().node != node) continue;
    for (const Member& each : lineage->members) {
      if (each.node == last.node) continue;
      notice.processes.emplace_back(each.node, last.node);
      notice.steps.push_back(static_cast<uint32_t>(last.generation - each.generation));
    }
  }
  for (const auto& [last, mesh] : epochs_) notice.meshes.push_back(mesh);
  return notice;
}

Successions::Notice Successions::named(const std::vector<NodeId>& nodes) const {
  Notice notice;
  std::lock_guard lock(mutex_);
  for (const NodeId node : nodes) {
    const LineagePtr lineage = lineage_of(node);
    if (!lineage) continue;
    const auto& members = lineage->members;
    for (size_t i = 1; i + 1 < members.size(); ++i) {
      if (members[i].node != node) continue;
      notice.processes.emplace_back(node, members.back().node);
      notice.steps.push_back(static_cast<uint32_t>(members.back().generation - members[i].generation));
    }
  }
  return notice;
}

std::vector<ActorIndex> Successions::meshes() const {
  std::vector<ActorIndex> found;
  std::lock_guard lock(mutex_);
  for (const auto& [last, mesh] : epochs_) found.push_back(mesh.first);
  return found;
}

void Successions::forget_meshes(const std::unordered_set<ActorIndex>& first) {
  std::lock_guard lock(mutex_);
  std::erase_if(epochs_, [&](const auto& each) { return first.contains(each.second.first); });
}

}  // namespace monarch
