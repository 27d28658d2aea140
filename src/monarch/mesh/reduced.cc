#include "monarch/mesh/reduced.h"

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

namespace {

MessagePtr as_answer(const ReducedValue& value) {
  std::vector<ByteSpan> parts;
  for (const Part& part : value.parts) parts.emplace_back(part.data, part.size);
  Outgoing answer{FrameHeader{}, value.body, parts};
  answer.header.kind = FrameKind::kReply;
  answer.header.flags = value.flags;
  return Message::copy_of(answer, 0, std::make_shared<std::vector<Part>>(value.parts));
}

MessagePtr count_of(const PendingCall& call) {
  ValueWriter writer;
  writer.integer(call.size());
  return as_answer({0, {writer.written().begin(), writer.written().end()}, {}});
}

}  // namespace

Reduced reduce(const PendingCall& call) {
  if (call.reducer() == Reducer::kCount) return {count_of(call), {}};
  // A host's own are combined first, as its gateway may have done.
  std::vector<Reduction> hosts;
  std::unordered_map<HostNumber, size_t> places;  // in `hosts`
  const auto& ids = call.owing().ids;
  HostNumber last_host = 0;
  size_t last = 0;  // the place of that; most meshes have the ranks of a host side by side
  Reduced problem;
  call.visit_values([&](uint32_t rank, const Message& answer) {
    if ((answer.header.flags & kFlagReduce) != 0) return true;  // in that of a lower rank
    const HostNumber host = host_number(ids[rank].node);
    if (hosts.empty() || host != last_host) {
      last_host = host;
      last = places.try_emplace(host, hosts.size()).first->second;
      if (last == hosts.size()) hosts.emplace_back(call.reducer());
    }
    if (hosts[last].add({rank, answer.header.flags, answer.body, answer.parts})) return true;
    problem.problem = hosts[last].problem();
    return false;
  });
  if (problem.problem.reducer != Reducer::kNone) return problem;
  if (hosts.empty()) {  // who has combined them has left nothing
    return {nullptr, {ReduceProblem::Kind::kType, call.reducer(), false, "takes values", 0, "nothing", -1, {}}};
  }
  for (Reduction& host : hosts) host.end_host();
  Reduction& all = hosts.front();
  for (size_t i = 1; i < hosts.size(); ++i) {
    if (!all.merge(hosts[i])) return {nullptr, all.problem()};
  }
  ReducedValue value;
  if (!all.write(value)) return {nullptr, all.problem()};
  return {as_answer(value), {}};
}

}  // namespace monarch
