#include "monarch/host/remote/output_inlet.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "monarch/base/system.h"

namespace monarch {

namespace {
constexpr int64_t kRetryNs = 10'000'000;
constexpr int kOptionTries = 10;
}  // namespace

void OutputInlet::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest) return node_.refuse(*message, "what shows output takes requests");
  // shared: a posted task must be copyable
  reactor_.post([this, request = Request(std::move(message))] { handle(request); });
}

void OutputInlet::handle(const Request& request) {
  std::lock_guard lock(mutex_);
  switch (request->header.method) {
    case kOpen:
      return open(request);
    case kBytes:
    case kEnded:
      return take_piece(request);
    case kOptions:
      return set_options(request, kOptionTries);
    default:
      return node_.refuse(*request, "what shows output has no such method");
  }
}

void OutputInlet::open(const Request& request) {
  auto opens = decode_output_request(request->body, OutputRequest::kFdsMax);
  if (!opens || opens->kind != OutputRequest::kOpen ||
      host_number(opens->nodes.front()) != host_number(request->from) || processes_.contains(opens->nodes.front())) {
    return node_.refuse(*request, "not a request about the output of a new process there");
  }
  const NodeId node = opens->nodes.front();
  processes_.emplace(node, std::make_unique<Process>());
  try_open(node, *opens, request);
}

// What it prints waits meanwhile.
void OutputInlet::try_open(NodeId node, const OutputRequest& request, const Request& message) {
  const auto found = processes_.find(node);
  if (found == processes_.end()) return;
  auto ends = route_.open(node, request.parent, request.mesh, request.name);
  if (!ends) {
    reactor_.after(kRetryNs, [this, node, request, message] {
      std::lock_guard lock(mutex_);
      try_open(node, request, message);
    });
    return;
  }
  Process& process = *found->second;
  process.opened = true;
  UniqueFd* pipes[] = {&ends->out, &ends->err};
  for (size_t i = 0; i < kStreams; ++i) {
    fcntl(pipes[i]->get(), F_SETFL, O_NONBLOCK);
    process.streams[i].pipe = std::move(*pipes[i]);
  }
  answer(*message);
  for (Stream& stream : process.streams) flush(node, process, stream);
  check_ended(node);
}

void OutputInlet::take_piece(const Request& request) {
  Piece piece;
  const bool whole = request->body.size() >= sizeof piece;
  if (whole) std::memcpy(&piece, request->body.data(), sizeof piece);
  const auto found = processes_.find(piece.node);
  if (!whole || piece.stream >= kStreams || found == processes_.end() ||
      host_number(piece.node) != host_number(request->from)) {
    return node_.refuse(*request, "output of a process that has not been announced");
  }
  Stream& stream = found->second->streams[piece.stream];
  if (request->header.method == kEnded) {
    stream.ended = true;
    answer(*request);
  } else {
    if (stream.waiting.empty()) stream.written = sizeof piece;
    stream.waiting.push_back(request);
    ++waiting_;
  }
  flush(piece.node, *found->second, stream);
  check_ended(piece.node);
}

// As much as the pump's pipe takes.
void OutputInlet::flush(NodeId node, Process& process, Stream& stream) {
  if (!process.opened) return;
  while (!stream.waiting.empty()) {
    const Message& first = *stream.waiting.front();
    while (stream.written < first.body.size()) {
      const ssize_t count =
          ::write(stream.pipe.get(), first.body.data() + stream.written, first.body.size() - stream.written);
      if (count >= 0) {
        stream.written += static_cast<size_t>(count);
      } else if (errno == EAGAIN) {
        if (std::exchange(stream.watched, true)) return;
        reactor_.add(stream.pipe.get(), EPOLLOUT, [this, node, which = &stream - process.streams](uint32_t) {
          std::lock_guard lock(mutex_);
          const auto found = processes_.find(node);
          if (found == processes_.end()) return;
          flush(node, *found->second, found->second->streams[which]);
          check_ended(node);
        });
        return;
      } else if (errno != EINTR) {
        stream.written = first.body.size();  // the pump has ended: nobody reads it any more
      }
    }
    answer(first);
    stream.waiting.pop_front();
    stream.written = sizeof(Piece);
    --waiting_;
  }
  if (std::exchange(stream.watched, false)) reactor_.remove(stream.pipe.get());
  if (stream.ended) stream.pipe.reset();
  if (waiting_ == 0) progress_.notify_all();
}

void OutputInlet::check_ended(NodeId node) {
  const auto found = processes_.find(node);
  if (found == processes_.end() || !found->second->opened) return;
  for (const Stream& stream : found->second->streams) {
    if (!stream.ended || !stream.waiting.empty()) return;
  }
  processes_.erase(found);
}

void OutputInlet::set_options(const Request& request, int tries) {
  auto options = decode_output_request(request->body, 1);
  auto done = std::make_shared<UniqueFd>(sys::make_eventfd());  // shared: std::function is copyable
  if (!options || options->kind != OutputRequest::kOptions || !*done) {
    return node_.refuse(*request, options ? sys::shortage_error("change how output is shown").message
                                          : options.error().message);
  }
  if (!send_output_request(pump_.get(), *options, {done->get()})) {
    if (tries <= 1) return node_.refuse(*request, std::string("cannot reach what shows output: ") + std::strerror(errno));
    reactor_.after(kRetryNs, [this, request, tries] {
      std::lock_guard lock(mutex_);
      set_options(request, tries - 1);
    });
    return;
  }
  reactor_.add(done->get(), EPOLLIN, [this, done, request](uint32_t) {
    reactor_.remove(done->get());
    answer(*request);
  });
}

void OutputInlet::gone(NodeId gateway) {
  std::lock_guard lock(mutex_);
  std::vector<NodeId> nodes;
  for (const auto& [node, process] : processes_) {
    if (host_number(node) == host_number(gateway)) nodes.push_back(node);
  }
  for (const NodeId node : nodes) {
    Process& process = *processes_.at(node);
    for (Stream& stream : process.streams) {
      stream.ended = true;
      flush(node, process, stream);
    }
    check_ended(node);
  }
}

void OutputInlet::finish() {
  reactor_.post_and_wait([] {});  // what has been delivered is handled
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return waiting_ == 0; });
}

void OutputInlet::after_fork_in_child() {
  for (auto& [node, process] : processes_) {
    for (Stream& stream : process->streams) stream.pipe.reset();
  }
  pump_.reset();
  route_.after_fork_in_child();
  mutex_.unlock();
}

void OutputInlet::answer(const Message& request) {
  Outgoing nothing{FrameHeader{}, {}, {}};
  node_.reply(request.header, request.from, FrameKind::kReply, nothing);
}

}  // namespace monarch
