#include "monarch/host/agent.h"

#include <utility>

#include "monarch/host/runtime.h"
#include "monarch/host/stacks/process_stacks.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

std::string Agent::encode(const StopOrder& order) {
  ValueWriter writer;
  monarch::encode(writer, std::tie(order.nodes, order.reason, order.grace_ns));
  return std::string(reinterpret_cast<const char*>(writer.data()), writer.size());
}

Result<Agent::StopOrder> Agent::decode_stop_order(ByteSpan bytes) {
  StopOrder order;
  ValueReader reader(bytes);
  if (!decode_into(reader, std::tie(order.nodes, order.reason, order.grace_ns)) ||
      !(reader.done() || reader.trailing())) {
    return reader.error();
  }
  if (order.grace_ns < 0) return Error{ErrorCode::kBug, "a time limit below zero"};
  return order;
}

std::string Agent::encode(NodeId node, const LaunchNews& news) {
  ValueWriter writer;
  const ExitStatus& status = news.status;
  monarch::encode(writer, std::tie(node, news.kind, status.known, status.code, status.signal, news.core_dumped, news.text,
                                   news.tail));
  return std::string(reinterpret_cast<const char*>(writer.data()), writer.size());
}

std::shared_ptr<PendingCall> Agent::ask(Node& node, const std::vector<NodeId>& hosts, Method method, ByteSpan body,
                                        const std::string& what, int64_t deadline_ns) {
  auto members = std::make_shared<Members>();
  for (const NodeId host : hosts) members->ids.push_back(id_of(host));
  auto call = std::make_shared<PendingCall>(members);
  call->set_label(std::make_shared<const std::string>(what));
  Outgoing request{FrameHeader{}, body, {}};
  request.header.kind = FrameKind::kRequest;
  request.header.method = method;
  request.deadline_ns = deadline_ns;
  node.cast(*members, request, call);
  return call;
}

void Agent::offer(LaunchDefaults defaults, std::function<void()> on_end) {
  // shared: a posted task must be copyable
  process_.timers().post(
      [this, offered = std::make_shared<LaunchDefaults>(std::move(defaults)), on_end = std::move(on_end)] {
        defaults_ = std::move(*offered);
        on_end_ = on_end;
        for (const auto& request : std::exchange(early_, {})) handle(request);
      });
}

void Agent::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node().refuse(*message, "the agent of a host takes requests");
  process_.timers().post([this, request = std::shared_ptr<Message>(std::move(message))] { handle(request); });
}

void Agent::handle(const std::shared_ptr<Message>& request) {
  const uint32_t method = request->header.method;
  if (!defaults_ && method != kStop && method != kLook) {
    early_.push_back(request);
    return;
  }
  switch (method) {
    case kIsThere:
      return answer(*request, {});
    case kStart:
      return start(*request);
    case kStop:
      return stop(request);
    case kNews:
      return news(*request);
    case kLook:
      return look(*request);
    case kEnd:
      on_end_();
      return answer(*request, {});
    default:
      return node().refuse(*request, "the agent of a host has no such method");
  }
}

void Agent::start(const Message& request) {
  auto order = decode_launch_order(request.body);
  if (!order) return node().refuse(request, "not an order for processes: " + order.error().message);
  auto nodes = process_.spawn(*order, *defaults_, request.from);
  if (!nodes) return node().refuse(request, nodes.error().message);
  ValueWriter value;
  monarch::encode(value, *nodes);
  answer(request, value.written());
}

void Agent::stop(const std::shared_ptr<Message>& request) {
  auto order = decode_stop_order(request->body);
  if (!order) return node().refuse(*request, "not an order to stop processes: " + order.error().message);
  for (NodeId& each : order->nodes) each = node().successions().latest(each);
  process_.stop(order->nodes, order->reason, order->grace_ns, [this, request] { answer(*request, {}); });
}

void Agent::news(const Message& request) {
  NodeId subject = 0;
  LaunchNews news;
  ExitStatus& status = news.status;
  ValueReader reader(request.body);
  if (!decode_into(reader, std::tie(subject, news.kind, status.known, status.code, status.signal, news.core_dumped,
                                    news.text, news.tail)) ||
      !(reader.done() || reader.trailing())) {
    return node().refuse(request, "no news of a process: " + reader.error().message);
  }
  process_.hear_news(subject, std::move(news));
  answer(request, {});
}

// Of what is simulated, or not started here, nothing is known.
void Agent::look(const Message& request) {
  auto nodes = decode<std::vector<NodeId>>(request.body);
  if (!nodes) return node().refuse(request, "not a list of processes: " + nodes.error().message);
  ProcessRuntime* const here = process_.of_machine();
  std::vector<SilentProcess> seen;
  for (const NodeId each : *nodes) {
    const int64_t pid = here == nullptr ? -1 : here->pid_of_child(node().successions().latest(each));
    seen.push_back(pid > 0 ? look_at_silent_process(pid) : SilentProcess());
  }
  ValueWriter value;
  monarch::encode(value, seen);
  answer(request, value.written());
}

// Without a value: None.
void Agent::answer(const Message& request, ByteSpan value) {
  static constexpr std::byte kNone[] = {std::byte{static_cast<uint8_t>(ValueTag::kNone)}};
  Outgoing reply{FrameHeader{}, value.empty() ? ByteSpan(kNone) : value, {}};
  node().reply(request.header, request.from, FrameKind::kReply, reply);
}

}  // namespace monarch
