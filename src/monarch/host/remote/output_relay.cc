#include "monarch/host/remote/output_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "monarch/actor/pending_call.h"
#include "monarch/base/bytes.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/remote/output_inlet.h"

namespace monarch {

namespace {
constexpr int64_t kShortageRetryNs = 20'000'000;
constexpr size_t kTailBytesMax = 60 << 10;  // fits into the pipe that it is answered on
}  // namespace

Result<std::unique_ptr<OutputRelay>> OutputRelay::make(Reactor& reactor) {
  std::unique_ptr<OutputRelay> relay(new OutputRelay(reactor));
  if (!sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, relay->sockets_)) {
    return sys::shortage_error("show what workers print");
  }
  relay->scratch_.resize(sizeof(OutputInlet::Piece) + kChunkBytes);
  return relay;
}

UniqueFd OutputRelay::route_socket() const { return sys::duplicate(sockets_[1].get()); }

void OutputRelay::begin(Node& node, NodeId script) {
  node_ = &node;
  script_ = script;
  reactor_.add(sockets_[0].get(), EPOLLIN, [this](uint32_t) { take_requests(); });
}

void OutputRelay::finish(int64_t limit_ns) {
  reactor_.post_and_wait([this] {
    take_requests();
    std::vector<NodeId> nodes;
    for (const auto& [node, process] : processes_) nodes.push_back(node);
    for (const NodeId node : nodes) {
      for (const OutputStream which : {OutputStream::kStdout, OutputStream::kStderr}) drain(node, which);
    }
    note_progress();
  });
  std::unique_lock lock(mutex_);
  progress_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return idle_; });
}

// ---- Requests of this host's processes ----

// Each is looked at before it is taken: one whose descriptors find no room here stays where it is.
void OutputRelay::take_requests() {
  for (;;) {
    auto got = sys::receive_message(sockets_[0].get(), scratch_, MSG_PEEK | MSG_DONTWAIT);
    if (got.size <= 0) return;
    if (got.lost) {
      errno = EMFILE;
      log_line_limited("output of workers waits", sys::shortage_error("show yet what some workers print").message);
      reactor_.modify(sockets_[0].get(), 0);
      reactor_.after(kShortageRetryNs, [this] {
        reactor_.modify(sockets_[0].get(), EPOLLIN);
        take_requests();
      });
      return;
    }
    recv(sockets_[0].get(), nullptr, 0, MSG_DONTWAIT);
    auto request = decode_output_request(std::span(scratch_).first(static_cast<size_t>(got.size)), got.fds.size());
    if (!request) {
      log_line("output of a worker is lost: " + request.error().message);
      continue;
    }
    handle(std::move(*request), std::move(got.fds));
  }
}

void OutputRelay::handle(OutputRequest request, std::vector<UniqueFd> fds) {
  switch (request.kind) {
    case OutputRequest::kOpen:
      return open(request, std::move(fds));
    case OutputRequest::kTail:
      return send_tail(request, fds[0].get());
    case OutputRequest::kOptions:
      const std::string body = encode_output_request(request);
      auto done = std::make_shared<UniqueFd>(std::move(fds[0]));  // shared: std::function is copyable
      return ask(OutputInlet::kOptions, as_byte_span(body.data(), body.size()),
                 [done] { eventfd_write(done->get(), 1); });
  }
}

void OutputRelay::open(const OutputRequest& request, std::vector<UniqueFd> fds) {
  const NodeId node = request.nodes.front();
  auto [found, is_new] = processes_.try_emplace(node, std::make_unique<Process>());
  if (!is_new) return;
  const std::string body = encode_output_request(request);
  ask(OutputInlet::kOpen, as_byte_span(body.data(), body.size()), [] {});
  for (size_t i = 0; i < kStreams; ++i) {
    Stream& stream = found->second->streams[i];
    stream.node = node;
    stream.which = static_cast<OutputStream>(i);
    fcntl(fds[i].get(), F_SETFL, O_NONBLOCK);
    stream.pipe = std::move(fds[i]);
    watch(stream);
  }
}

void OutputRelay::send_tail(const OutputRequest& request, int fd) {
  const NodeId node = request.nodes.front();
  // The process has ended: what it has printed is in its pipe or was read.
  for (Stream* stream = find(node, request.stream); stream != nullptr; stream = find(node, request.stream)) {
    if (read_stream(*stream) < kChunkBytes) break;
  }
  std::string_view text;
  if (Stream* stream = find(node, request.stream)) text = stream->tail.last(request.lines);
  for (const Ended& each : ended_) {
    if (each.node == node) text = each.tails[static_cast<size_t>(request.stream)].last(request.lines);
  }
  if (text.size() > kTailBytesMax) text.remove_prefix(text.size() - kTailBytesMax);
  [[maybe_unused]] const ssize_t count = ::write(fd, text.data(), text.size());
}

// ---- From the pipes to the script ----

OutputRelay::Stream* OutputRelay::find(NodeId node, OutputStream which) {
  const auto found = processes_.find(node);
  if (found == processes_.end()) return nullptr;
  Stream& stream = found->second->streams[static_cast<size_t>(which)];
  return stream.pipe ? &stream : nullptr;
}

// Where the kernel can watch no more now, it is looked at again later.
void OutputRelay::watch(Stream& stream) {
  stream.watched = true;
  reactor_.add(stream.pipe.get(), EPOLLIN, [this, node = stream.node, which = stream.which](uint32_t) {
    if (Stream* found = find(node, which)) read_stream(*found);
  });
}

void OutputRelay::unwatch(Stream& stream) {
  if (std::exchange(stream.watched, false)) reactor_.remove(stream.pipe.get());
}

// -> bytes read; the stream may be gone afterwards.
size_t OutputRelay::read_stream(Stream& stream) {
  constexpr size_t kHead = sizeof(OutputInlet::Piece);
  ssize_t count;
  do {
    count = ::read(stream.pipe.get(), scratch_.data() + kHead, kChunkBytes);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && errno == EAGAIN) return 0;
  if (count <= 0) {
    end_stream(stream);
    return 0;
  }
  const auto size = static_cast<size_t>(count);
  stream.tail.add({reinterpret_cast<const char*>(scratch_.data()) + kHead, size});
  const OutputInlet::Piece piece{stream.node, static_cast<uint64_t>(stream.which)};
  std::memcpy(scratch_.data(), &piece, kHead);
  stream.under_way += size;
  if (stream.under_way >= kWindowBytes) unwatch(stream);
  ask(OutputInlet::kBytes, std::span(scratch_).first(kHead + size), [this, node = stream.node, which = stream.which, size] {
    Stream* found = find(node, which);
    if (found == nullptr) return;
    found->under_way -= size;
    if (!found->watched && found->under_way < kWindowBytes) watch(*found);
  });
  return size;
}

// What has been written by now, and no more: what a process has started may hold its pipe open for ever.
void OutputRelay::drain(NodeId node, OutputStream which) {
  size_t count = kChunkBytes;
  while (count != 0) {
    Stream* stream = find(node, which);
    if (stream == nullptr) return;
    count = read_stream(*stream);
  }
  if (Stream* stream = find(node, which)) end_stream(*stream);
}

void OutputRelay::end_stream(Stream& stream) {
  const NodeId node = stream.node;
  const OutputInlet::Piece piece{node, static_cast<uint64_t>(stream.which)};
  unwatch(stream);
  stream.pipe.reset();
  ask(OutputInlet::kEnded, as_byte_span(&piece, sizeof piece), [] {});
  const auto found = processes_.find(node);
  for (const Stream& each : found->second->streams) {
    if (each.pipe) return;
  }
  Ended& ended = ended_.emplace_back(Ended{node, {}});
  for (size_t i = 0; i < kStreams; ++i) ended.tails[i] = std::move(found->second->streams[i].tail);
  if (ended_.size() > kEndedMax) ended_.pop_front();
  processes_.erase(found);
  note_progress();
}

// `answered` runs on the reactor, also if it never will be answered.
void OutputRelay::ask(uint32_t method, ByteSpan body, std::function<void()> answered) {
  static const auto kLabel = std::make_shared<const std::string>("the output of workers");
  auto members = std::make_shared<Members>();
  members->ids = {OutputInlet::id_of(script_)};
  auto call = std::make_shared<PendingCall>(members);
  call->set_label(kLabel);
  Outgoing request{FrameHeader{}, body, {}};
  request.header.kind = FrameKind::kRequest;
  request.header.method = method;
  ++under_way_;
  node_->cast(*members, request, call);
  call->observe(1, [this, call, answered = std::move(answered)] {
    reactor_.post([this, answered] {
      --under_way_;
      answered();
      note_progress();
    });
  });
}

void OutputRelay::note_progress() {
  std::lock_guard lock(mutex_);
  idle_ = under_way_ == 0 && processes_.empty();
  if (idle_) progress_.notify_all();
}

}  // namespace monarch
