#include "monarch/host/start/attach.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>

#include <cstring>
#include <tuple>

#include "monarch/wire/value_codec.h"

namespace monarch {

namespace {

constexpr size_t kHostNameMax = 255;

template <size_t size>
std::vector<std::byte> bytes_of(const std::array<std::byte, size>& from) {
  return {from.begin(), from.end()};
}

template <size_t size>
bool put(const std::vector<std::byte>& from, std::array<std::byte, size>& into) {
  if (from.size() != size) return false;
  std::copy(from.begin(), from.end(), into.begin());
  return true;
}

std::string with_size(const ValueWriter& writer) {
  const auto size = static_cast<uint32_t>(writer.size());
  std::string message(sizeof size + writer.size(), '\0');
  std::memcpy(message.data(), &size, sizeof size);
  std::memcpy(message.data() + sizeof size, writer.data(), writer.size());
  return message;
}

template <typename Tuple>
Status decode_whole(ByteSpan bytes, Tuple into) {
  ValueReader reader(bytes);
  if (!decode_into(reader, into) || !(reader.done() || reader.trailing())) return reader.error();
  return Ok{};
}

enum class OrderKind : uint8_t { kAttach = 1, kRelay = 2 };

// The version by itself, so that another one's order is told from nonsense; the order is its kind and a value.
std::string with_version(OrderKind kind, const ValueWriter& value) {
  std::vector<std::byte> order = {static_cast<std::byte>(kind)};
  order.insert(order.end(), value.written().begin(), value.written().end());
  ValueWriter writer;
  encode(writer, std::tuple(kBootstrapVersion, as_byte_span(order.data(), order.size())));
  OPENSSL_cleanse(order.data(), order.size());
  return with_size(writer);
}

Result<ClientOrder> decode_relay(ByteSpan value) {
  RelayOrder relay;
  if (auto decoded = decode_whole(value, std::tie(relay.to.host, relay.to.port, relay.identity)); !decoded) {
    return decoded.error();
  }
  if (auto dialled = TcpAddress{relay.to, std::nullopt}.check_dialled(); !dialled) return dialled.error();
  if (relay.to.host.empty() || relay.to.host.size() > kHostNameMax) {
    return Error{ErrorCode::kMalformed, "no name of a host"};
  }
  return ClientOrder(std::move(relay));
}

Result<ClientOrder> decode_attach(ByteSpan value) {
  AttachOrder attach;
  Bootstrap& made = attach.host;
  HostNumber host = 0;
  std::vector<std::byte> seed, job, token, payload;
  auto decoded = decode_whole(value, std::tie(seed, host, made.parent, made.owner, job, token, made.transport,
                                              made.address, made.place.dialled_at, made.host_lease_ns, payload,
                                              attach.identity));
  if (!decoded) return decoded.error();
  NodeKey::Seed key;
  if (!put(seed, key) || !put(job, made.job) || !put(token, made.token) || host == 0 || host > kHostMax ||
      made.parent == 0 || made.owner == 0 || made.host_lease_ns <= 0 || made.place.dialled_at.size() > kHostNameMax) {
    return Error{ErrorCode::kMalformed, "no order for a host"};
  }
  made.key = NodeKey(key, host);
  OPENSSL_cleanse(key.data(), key.size());
  OPENSSL_cleanse(seed.data(), seed.size());
  made.is_host = true;
  made.payload.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  return ClientOrder(std::move(attach));
}

}  // namespace

std::string encode_order(const AttachOrder& attach) {
  const Bootstrap& bootstrap = attach.host;
  const auto seed = bytes_of(bootstrap.key.seed()), job = bytes_of(bootstrap.job), token = bytes_of(bootstrap.token);
  ValueWriter order;
  encode(order, std::tuple(seed, host_number(bootstrap.key.id()), bootstrap.parent, bootstrap.owner, job, token,
                           bootstrap.transport, bootstrap.address, bootstrap.place.dialled_at, bootstrap.host_lease_ns,
                           as_byte_span(bootstrap.payload.data(), bootstrap.payload.size()), attach.identity));
  return with_version(OrderKind::kAttach, order);
}

std::string encode_order(const RelayOrder& relay) {
  ValueWriter order;
  encode(order, std::tuple(relay.to.host, relay.to.port, relay.identity));
  return with_version(OrderKind::kRelay, order);
}

Result<ClientOrder> decode_order(ByteSpan bytes) {
  uint32_t version = 0;
  std::vector<std::byte> order;
  if (auto decoded = decode_whole(bytes, std::tie(version, order)); !decoded) return decoded.error();
  if (version != kBootstrapVersion) {
    return Error{ErrorCode::kUnsupported, "the script's monarch speaks bootstrap version " + std::to_string(version) +
                                              ", the host's " + std::to_string(kBootstrapVersion)};
  }
  Result<ClientOrder> decoded = Error{ErrorCode::kMalformed, "no order for a host"};
  const auto kind = order.empty() ? OrderKind{} : static_cast<OrderKind>(order[0]);
  if (kind == OrderKind::kAttach) decoded = decode_attach(ByteSpan(order).subspan(1));
  if (kind == OrderKind::kRelay) decoded = decode_relay(ByteSpan(order).subspan(1));
  OPENSSL_cleanse(order.data(), order.size());
  return decoded;
}

std::string encode_report(const HostReport& report) {
  ValueWriter writer;
  const ExitStatus& status = report.status;
  const auto encode_with = [&](auto... more) {
    encode(writer, std::tuple(static_cast<int>(report.kind), report.text, report.port, report.host, report.pid, status.code,
                              status.signal, more...));
  };
  // Clients of before do not know the last one.
  const bool is_short = status.out_of_memory == OutOfMemory::kUnknown || status.out_of_memory == OutOfMemory::kNo;
  is_short ? encode_with() : encode_with(static_cast<int>(status.out_of_memory));
  return with_size(writer);
}

Result<HostReport> decode_report(ByteSpan bytes) {
  HostReport report;
  int kind = 0, out_of_memory = 0;
  const auto decode_with = [&](auto&... more) {
    return decode_whole(bytes, std::tie(kind, report.text, report.port, report.host, report.pid, report.status.code,
                                        report.status.signal, more...));
  };
  auto decoded = decode_with();
  if (!decoded) decoded = decode_with(out_of_memory);
  if (!decoded) return decoded.error();
  if (kind < HostReport::kStarted || kind > HostReport::kUnreachable || out_of_memory < 0 ||
      out_of_memory > kOutOfMemoryMax) {
    return Error{ErrorCode::kMalformed, "no report of a host"};
  }
  report.kind = static_cast<HostReport::Kind>(kind);
  report.status.known = true;
  report.status.out_of_memory = static_cast<OutOfMemory>(out_of_memory);
  return report;
}

ExitStatus explained(ExitStatus status, int64_t host_lease_ns) {
  if (!status.known || status.signal != 0) return status;
  if (status.code == kHostUnheard) {
    status.because = "has ended, since it had not heard of this script for " +
                     std::to_string(host_lease_ns / 1'000'000) + " ms (host_lease)";
  } else if (status.code == kHostDaemonEnded) {
    status.because = kEndedWithHostd;
  } else {
    return status;
  }
  status.known = false;  // what it has ended with was for this word
  status.code = 0;
  return status;
}

bool AttachReader::read(Channel& channel) {
  char piece[16384];
  for (;;) {
    const iovec into{piece, sizeof piece};
    const ssize_t count = channel.read({&into, 1});
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count < 0) return !malformed_;
    bytes_.append(piece, static_cast<size_t>(count));
    malformed_ = malformed_ || bytes_.size() > 2 * kAttachBytesMax;
    if (malformed_) return false;
  }
}

std::optional<std::string> AttachReader::next() {
  uint32_t size;
  if (bytes_.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, bytes_.data(), sizeof size);
  malformed_ = malformed_ || size > kAttachBytesMax;
  if (malformed_ || bytes_.size() - sizeof size < size) return std::nullopt;
  std::string message = bytes_.substr(sizeof size, size);
  OPENSSL_cleanse(bytes_.data(), sizeof size + size);
  bytes_.erase(0, sizeof size + size);
  return message;
}

bool write_all(Channel& channel, const std::string& bytes, int limit_ms) {
  size_t written = 0;
  while (written < bytes.size() || channel.wants_room()) {
    const iovec piece{const_cast<char*>(bytes.data()) + written, bytes.size() - written};
    const ssize_t count = written < bytes.size() ? channel.write({&piece, 1}) : 0;
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) written += static_cast<size_t>(count);
    if (channel.flush() && written == bytes.size()) return true;
    pollfd room{channel.fd(), POLLOUT, 0};
    if (poll(&room, 1, limit_ms) <= 0) return false;
  }
  return true;
}

}  // namespace monarch
