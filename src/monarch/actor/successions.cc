#include "monarch/actor/successions.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "monarch/wire/value_codec.h"

namespace monarch {

namespace {
// As it travels: ((process, successor), ...), ((first, count, epoch), ...), and the records of the deaths.
using Wire = std::tuple<std::vector<std::pair<uint64_t, uint64_t>>, std::vector<std::tuple<uint64_t, uint64_t, uint32_t>>,
                        std::vector<std::vector<std::byte>>>;
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
  return notice;
}

Successions::Notice Successions::apply(const Notice& notice) {
  Notice news;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < notice.processes.size(); ++i) {
    const auto [node, next] = notice.processes[i];
    const NodeId last = latest_locked(next);
    // Not in a circle, whatever somebody says: who follows it would never come to an end.
    if (last == node || !next_.try_emplace(node, next).second) continue;
    for (auto& [earlier, now] : latest_) {
      if (now == node) now = last;
    }
    latest_[node] = last;
    news.processes.push_back(notice.processes[i]);
    if (!notice.why.empty()) news.why.push_back(notice.why[i]);
  }
  for (const Epoch& mesh : notice.meshes) {
    Epoch& known = epochs_[mesh.first + (mesh.count - 1)];
    if (mesh.epoch <= known.epoch) continue;
    known = mesh;
    news.meshes.push_back(mesh);
  }
  if (!news.empty()) any_.store(true, std::memory_order_relaxed);
  return news;
}

NodeId Successions::latest_locked(NodeId node) const {
  const auto found = latest_.find(node);
  return found == latest_.end() ? node : found->second;
}

NodeId Successions::latest(NodeId node) const {
  if (!any()) return node;
  std::lock_guard lock(mutex_);
  return latest_locked(node);
}

uint32_t Successions::count_of(NodeId node) const {
  uint32_t count = 0;
  std::lock_guard lock(mutex_);
  for (auto found = next_.find(node); found != next_.end(); found = next_.find(found->second)) ++count;
  return count;
}

std::shared_ptr<const Members> Successions::latest(const Members& members) const {
  std::shared_ptr<Members> now;
  if (!any()) return now;
  std::lock_guard lock(mutex_);
  for (size_t rank = 0; rank < members.ids.size(); ++rank) {
    const auto found = latest_.find(members.ids[rank].node);
    if (found == latest_.end()) continue;
    if (!now) now = std::make_shared<Members>(members);
    now->ids[rank].node = found->second;
  }
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
  notice.processes.assign(next_.begin(), next_.end());
  for (const auto& [last, mesh] : epochs_) notice.meshes.push_back(mesh);
  return notice;
}

}  // namespace monarch
