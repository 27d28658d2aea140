#include "monarch/host/reception.h"

#include <cstring>

#include "monarch/host/host.h"
#include "monarch/host/token_file.h"
#include "monarch/wire/value.h"

namespace monarch {

Outgoing Reception::request(Method method, const std::vector<NodeId>& nodes) {
  Outgoing request{FrameHeader{}, as_byte_span(nodes.data(), nodes.size() * sizeof(NodeId)), {}};
  request.header.kind = FrameKind::kRequest;
  request.header.method = method;
  return request;
}

std::vector<std::pair<NodeId, std::string>> Reception::read_down(const Message& reply,
                                                                 const std::vector<NodeId>& nodes) {
  std::vector<std::pair<NodeId, std::string>> down;
  ValueReader reader(reply.body);
  uint32_t count;
  if (!reader.begin_tuple(count)) return down;
  for (uint32_t i = 0; i < count && i < nodes.size(); ++i) {
    std::string_view why;
    if (!reader.str_unchecked(why)) break;
    if (!why.empty()) down.emplace_back(nodes[i], why);
  }
  return down;
}

void Reception::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node_.refuse(*message, "the job's reception takes requests");
  // shared: a posted task must be copyable
  reactor_.post([this, request = std::shared_ptr<Message>(std::move(message))] { handle(*request); });
}

void Reception::handle(const Message& request) {
  switch (request.header.method) {
    case kPublish: {
      const Status done = publish();
      if (!done) return node_.refuse(request, done.error().message);
      Outgoing answer{FrameHeader{}, {}, {}};
      return node_.reply(request.header, request.from, FrameKind::kReply, answer);
    }
    case kHowAre:
      return answer_how_are(request);
    default:
      return node_.refuse(request, "the job's reception has no such method");
  }
}

Status Reception::publish() {
  if (closed_) return Ok{};  // whoever uses such a handle is told that the job has ended
  host_.start_guard();  // first: whenever the file is there, so is somebody who takes it away
  published_ = true;
  return write_token_file(path_, token_);
}

void Reception::answer_how_are(const Message& request) {
  const size_t count = request.body.size() / sizeof(NodeId);
  ValueWriter writer;
  writer.begin_tuple(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    NodeId node;
    std::memcpy(&node, request.body.data() + i * sizeof node, sizeof node);
    std::string why;
    node_.is_down(node, &why);
    writer.str(why);
  }
  Outgoing answer{FrameHeader{}, writer.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, answer);
}

void Reception::close() {
  closed_ = true;
  if (published_) remove_token_file(path_);
}

}  // namespace monarch
