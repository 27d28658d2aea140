#include "monarch/host/membership/reception.h"

#include <errno.h>

#include <cstring>
#include <system_error>

#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/wire/value.h"

namespace monarch {

Outgoing Reception::request(Method method, const std::vector<NodeId>& nodes) {
  Outgoing request{FrameHeader{}, as_byte_span(nodes.data(), nodes.size() * sizeof(NodeId)), {}};
  request.header.kind = FrameKind::kRequest;
  request.header.method = method;
  return request;
}

std::vector<std::pair<NodeId, Failure>> Reception::read_down(const Message& reply, const std::vector<NodeId>& nodes) {
  std::vector<std::pair<NodeId, Failure>> down;
  ValueReader reader(reply.body);
  uint32_t count;
  if (!reader.begin_tuple(count)) return down;
  for (uint32_t i = 0; i < count && i < nodes.size(); ++i) {
    ByteSpan why;
    if (!reader.bytes(why)) break;
    if (why.empty()) continue;
    if (auto failure = Failure::decode(why)) down.emplace_back(nodes[i], std::move(*failure));
  }
  return down;
}

void Reception::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node_.refuse(*message, "the job's reception takes requests");
  // shared: a posted task must be copyable
  reactor_.post([this, request = std::shared_ptr<Message>(std::move(message))] { handle(request); });
}

void Reception::handle(const std::shared_ptr<Message>& request) {
  switch (request->header.method) {
    case kPublish:
      return publish(request);
    case kHowAre:
      return answer_how_are(*request);
    default:
      return node_.refuse(*request, "the job's reception has no such method");
  }
}

void Reception::publish(const std::shared_ptr<Message>& request) {
  askers_.push_back(request);
  if (closed_) return on_written(Ok{});  // whoever uses such a handle is told that the job has ended
  if (askers_.size() > 1) return;        // it is being written
  before_publish_();                     // first: whenever the file is there, so is somebody who takes it away
  published_ = true;
  const auto write = [this] {
    const Status done = write_token_file(path_, token_);
    reactor_.post([this, done] {
      if (!closed_) writer_.join();  // else remove_token() does
      on_written(done);
    });
  };
  try {
    if (sys::must_fail(EAGAIN)) throw std::system_error(EAGAIN, std::generic_category());
    writer_ = std::thread(write);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    on_written(sys::shortage_error("start a thread that writes the job's token"));
  }
}

void Reception::on_written(const Status& done) {
  for (const auto& request : std::exchange(askers_, {})) {
    if (!done) {
      node_.refuse(*request, done.error().message);
      continue;
    }
    Outgoing answer{FrameHeader{}, {}, {}};
    node_.reply(request->header, request->from, FrameKind::kReply, answer);
  }
}

void Reception::answer_how_are(const Message& request) {
  const size_t count = request.body.size() / sizeof(NodeId);
  ValueWriter writer;
  writer.begin_tuple(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    NodeId node;
    std::memcpy(&node, request.body.data() + i * sizeof node, sizeof node);
    const FailurePtr failure = why_down_(node);
    const std::string why = failure ? failure->encoded() : "";
    writer.bytes(as_byte_span(why.data(), why.size()));
  }
  Outgoing answer{FrameHeader{}, writer.written(), {}};
  node_.reply(request.header, request.from, FrameKind::kReply, answer);
}

void Reception::close() { closed_ = true; }

void Reception::remove_token() {
  if (writer_.joinable()) writer_.join();
  if (published_) remove_token_file(path_);
}

}  // namespace monarch
