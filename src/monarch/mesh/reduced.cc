#include "monarch/mesh/reduced.h"

#include <algorithm>
#include <memory>
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
  std::vector<std::pair<HostNumber, Reduction>> hosts;
  for (uint32_t rank = 0; rank < call.size(); ++rank) {
    const Message& answer = *call.reply(rank);
    if ((answer.header.flags & kFlagReduce) != 0) continue;  // in that of a lower rank
    const HostNumber host = host_number(call.owing().ids[rank].node);
    auto of_host = std::ranges::find(hosts, host, &std::pair<HostNumber, Reduction>::first);
    const bool is_new = of_host == hosts.end();
    Reduction& reduction = is_new ? hosts.emplace_back(host, Reduction(call.reducer())).second : of_host->second;
    if (!reduction.add({rank, answer.header.flags, answer.body, answer.parts})) return {nullptr, reduction.problem()};
  }
  if (hosts.empty()) {  // who has combined them has left nothing
    return {nullptr, {ReduceProblem::Kind::kType, call.reducer(), false, "takes values", 0, "nothing", -1, {}}};
  }
  Reduction& all = hosts.front().second;
  for (size_t i = 1; i < hosts.size(); ++i) {
    if (!all.merge(hosts[i].second)) return {nullptr, all.problem()};
  }
  ReducedValue value;
  if (!all.write(value)) return {nullptr, all.problem()};
  return {as_answer(value), {}};
}

}  // namespace monarch
