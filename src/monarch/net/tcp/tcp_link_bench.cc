// A part of so many bytes to another process over TCP on this machine, which looks at every page and answers: plain sockets
// and OpenSSL as limits (the receiver reads into the same memory again and again), then the link, then a session over it,
// each with and without TLS. And how long a control frame takes while data floods the same link, or another one.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "monarch/base/clock.h"
#include "monarch/net/message_blocks.h"
#include "monarch/net/sessions.h"
#include "monarch/net/tcp/tcp_link.h"
#include "monarch/net/tls/openssl.h"
#include "monarch/net/tls/tls_channel.h"
#include "monarch/testing/tcp_pair.h"

namespace monarch {
namespace {

void look_at(const std::byte* data, size_t size) {
  for (size_t i = 0; i < size; i += 4096) benchmark::DoNotOptimize(data[i]);
}

// ---- The limits ----

struct Stream {
  virtual ~Stream() = default;
  virtual void write(const void* data, size_t size) = 0;
  virtual bool read(void* data, size_t size) = 0;  // all of it
};

struct PlainStream final : Stream {
  explicit PlainStream(UniqueFd of) : socket(std::move(of)) {}
  void write(const void* data, size_t size) override {
    for (const char* at = static_cast<const char*>(data); size != 0;) {
      const ssize_t count = send(socket.get(), at, size, MSG_NOSIGNAL);
      if (count <= 0) return;
      at += count;
      size -= static_cast<size_t>(count);
    }
  }
  bool read(void* data, size_t size) override {
    for (char* at = static_cast<char*>(data); size != 0;) {
      const ssize_t count = recv(socket.get(), at, size, 0);
      if (count <= 0) return false;
      at += count;
      size -= static_cast<size_t>(count);
    }
    return true;
  }
  UniqueFd socket;
};

// As OpenSSL's own programs do it: a blocking socket, and nothing between.
struct TlsStream final : Stream {
  TlsStream(UniqueFd of, const Credentials& credentials, bool accepts) : socket(std::move(of)) {
    context.reset(SSL_CTX_new(TLS_method()));
    const auto bio = [](const std::string& text) {
      return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
    };
    const X509Ptr certificate(PEM_read_bio_X509(bio(credentials.certificate).get(), nullptr, nullptr, nullptr));
    const PkeyPtr key(PEM_read_bio_PrivateKey(bio(credentials.key).get(), nullptr, nullptr, nullptr));
    SSL_CTX_use_certificate(context.get(), certificate.get());
    SSL_CTX_use_PrivateKey(context.get(), key.get());
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_read_ahead(context.get(), 1);
    SSL_CTX_set_default_read_buffer_len(context.get(), 128 << 10);
    ssl.reset(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), socket.get());
    MONARCH_CHECK((accepts ? SSL_accept(ssl.get()) : SSL_connect(ssl.get())) == 1);
  }
  void write(const void* data, size_t size) override {
    size_t count = 0;
    for (const char* at = static_cast<const char*>(data); size != 0; at += count, size -= count) {
      if (SSL_write_ex(ssl.get(), at, size, &count) != 1) return;
    }
  }
  bool read(void* data, size_t size) override {
    size_t count = 0;
    for (char* at = static_cast<char*>(data); size != 0; at += count, size -= count) {
      if (SSL_read_ex(ssl.get(), at, size, &count) != 1) return false;
    }
    return true;
  }
  UniqueFd socket;
  SslContextPtr context;
  SslPtr ssl;
};

const Credentials& credentials() {
  static const Credentials made = Authority::make()->issue("bench").value();
  return made;
}

void Limit(benchmark::State& state, bool tls) {
  const auto size = static_cast<size_t>(state.range(0));
  UniqueFd pair[2];
  testing::make_tcp_pair(pair);
  static_cast<void>(credentials());
  const pid_t child = fork();
  const int side = child == 0 ? 1 : 0;
  pair[1 - side].reset();
  std::unique_ptr<Stream> stream;
  if (tls) {
    stream = std::make_unique<TlsStream>(std::move(pair[side]), credentials(), side == 1);
  } else {
    stream = std::make_unique<PlainStream>(std::move(pair[side]));
  }
  std::vector<std::byte> bytes(std::max<size_t>(size, 8), std::byte{1});
  uint64_t answer = 0;
  if (child == 0) {
    while (stream->read(bytes.data(), size)) {
      look_at(bytes.data(), size);
      stream->write(&answer, sizeof answer);
    }
    _exit(0);
  }
  for (auto _ : state) {
    stream->write(bytes.data(), size);
    stream->read(&answer, sizeof answer);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  stream = nullptr;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// ---- Ours ----

struct AnsweringSink final : LinkSink {
  void on_frame(Link& link, MessagePtr message) override {
    for (const Part& part : message->parts) look_at(part.data, part.size);
    const bool asks = message->header.kind == FrameKind::kRequest;
    message = nullptr;
    if (asks) answer(link);
    ++count;
    count.notify_all();
  }
  void on_control(Link& link, MessagePtr message) override {
    if (message->header.kind == FrameKind::kPing) {
      Outgoing pong{FrameHeader{}, {}, {}};
      pong.header.kind = FrameKind::kPong;
      link.send_control(pong);
    }
    ++controls;
    controls.notify_all();
  }
  void on_closed(Link&, const Error&) override {}
  static void answer(Link& link) {
    Outgoing answer{FrameHeader{}, {}, {}};
    answer.header.kind = FrameKind::kReply;
    link.send(answer);
  }
  std::atomic<uint64_t> count{0}, controls{0};
};

enum Mode { kPlain = 0, kTls = 1, kSession = 2, kTlsSession = 3, kLowat = 4 };

struct Side {
  Side(UniqueFd socket, bool accepts, int mode) {
    reactor.start();
    internal::keep_large_blocks(&reactor);  // as a Runtime does
    const int unsent = 256 << 10;
    if ((mode & kLowat) != 0) setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    std::unique_ptr<Channel> channel = std::make_unique<SocketChannel>(std::move(socket));
    if ((mode & kTls) != 0) {
      auto context = TlsContext::make(credentials()).value();  // shared: with its channels
      channel = std::make_unique<TlsChannel>(std::move(channel), context, accepts);
    }
    if ((mode & kSession) == 0) {
      link = std::make_shared<TcpLink>(reactor, sink, 1, 0);
      establish(*channel);
      static_cast<TcpLink&>(*link).start(std::move(channel));
      return;
    }
    Sessions::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> made, bool) { link = std::move(made); };
    sessions = Sessions::make(reactor, random, sink, std::move(events));
    establish(*channel);
    const auto connect = [&](LinkSink& to) {
      auto made = std::make_shared<TcpLink>(reactor, to, 1, 0);
      made->start(std::move(channel));
      return made;
    };
    if (accepts) {
      reactor.post_and_wait([&] { sessions->accepted(1, false, 1'000'000'000'000, connect); });
    } else {
      link = sessions->dial(1, 1'000'000'000'000, [&](LinkSink& to) { return connect(to); });
    }
  }
  static void establish(Channel& channel) {
    while (!channel.establish().value()) sched_yield();
  }
  ~Side() {
    if (link) link->close();
    internal::keep_large_blocks(nullptr);
    reactor.stop();
    if (sessions) sessions->end();
  }
  Reactor reactor;
  SystemRandom random;
  AnsweringSink sink;
  std::shared_ptr<Sessions> sessions;
  std::shared_ptr<Link> link;
};

struct Peers {
  explicit Peers(int mode) {
    UniqueFd pair[2];
    testing::make_tcp_pair(pair);
    static_cast<void>(credentials());
    child = fork();
    const int side = child == 0 ? 1 : 0;
    pair[1 - side].reset();
    if (child == 0) {
      Side there(std::move(pair[1]), true, mode);
      for (;;) pause();
    }
    here = std::make_unique<Side>(std::move(pair[0]), false, mode);
  }
  ~Peers() {
    here.reset();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  pid_t child;
  std::unique_ptr<Side> here;
};

void wait_for(std::atomic<uint64_t>& value, uint64_t wanted) {
  for (uint64_t seen = value; seen < wanted; seen = value) value.wait(seen);
}

void Ours(benchmark::State& state, int mode) {
  Peers peers(mode);
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)), std::byte{1});
  const ByteSpan part(bytes);
  Outgoing request{FrameHeader{}, {}, {&part, 1}};
  request.header.kind = FrameKind::kRequest;
  uint64_t count = 0;
  for (auto _ : state) {
    peers.here->link->send(request);
    wait_for(peers.here->sink.count, ++count);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// A ping and its answer while as much data as the link takes goes the same way, over the same connection or another one.
void ControlUnderFlood(benchmark::State& state) {
  const int mode = state.range(0) == 2 ? kLowat : kPlain;
  Peers flooded(mode), other(mode);
  Peers& asked = state.range(0) == 1 ? other : flooded;
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    const std::vector<std::byte> bytes(1 << 20, std::byte{1});
    const ByteSpan part(bytes);
    while (!stop) {
      if (flooded.here->link->backlog() < 16 << 20) flooded.here->link->send(Outgoing{FrameHeader{}, {}, {&part, 1}});
    }
  });
  std::vector<int64_t> times;
  Outgoing ping{FrameHeader{}, {}, {}};
  ping.header.kind = FrameKind::kPing;
  uint64_t count = 0;
  for (auto _ : state) {
    const int64_t start_ns = monotonic_ns();
    asked.here->link->send_control(ping);
    wait_for(asked.here->sink.controls, ++count);
    times.push_back(monotonic_ns() - start_ns);
  }
  stop = true;
  flood.join();
  std::sort(times.begin(), times.end());
  state.counters["p50_us"] = static_cast<double>(times[times.size() / 2]) / 1e3;
  state.counters["p99_us"] = static_cast<double>(times[times.size() * 99 / 100]) / 1e3;
}

#define SIZES Arg(1)->Arg(1 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20)->Arg(64 << 20)->Arg(1 << 30)->UseRealTime()
BENCHMARK_CAPTURE(Limit, plain, false)->SIZES;
BENCHMARK_CAPTURE(Ours, link, kPlain)->SIZES;
BENCHMARK_CAPTURE(Ours, link_lowat, kLowat)->SIZES;
BENCHMARK_CAPTURE(Ours, session, kSession)->SIZES;
BENCHMARK_CAPTURE(Limit, openssl, true)->SIZES;
BENCHMARK_CAPTURE(Ours, link_tls, kTls)->SIZES;
BENCHMARK_CAPTURE(Ours, session_tls, kTlsSession)->SIZES;
BENCHMARK(ControlUnderFlood)->Arg(0)->Arg(1)->Arg(2)->Iterations(2000)->UseRealTime();

}  // namespace
}  // namespace monarch
