// What a client and a monarch-hostd say to each other over TCP, where no descriptors can be handed over, once each has
// proved itself (hostd.h): the client who is to be started, once; then the host's keeper what becomes of it. Or the client
// where it wants to be connected to; then the keeper whether it is, and all that follows is passed on (relay.h). Each
// message is its size, a u32, and a value of the native codec. A client who says kKillByte wants its host killed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"
#include "monarch/host/start/bootstrap.h"
#include "monarch/net/channel.h"
#include "monarch/net/tcp/tcp_address.h"
#include "monarch/wire/failure.h"

namespace monarch {

// Who is to be started, and by whom: which host this is meant for (HostdAddress::identity).
struct AttachOrder {
  Bootstrap host;
  std::string identity{};
};

// Where the client wants to be connected to, from there; the names in it are those that are known there.
struct RelayOrder {
  TcpEndpoint to;
  std::string identity{};  // which host is to pass on what they say
};

using ClientOrder = std::variant<AttachOrder, RelayOrder>;

struct HostReport {
  // The last three answer a RelayOrder. kRefused: nobody listens there; kUnreachable: whether somebody does is not known.
  enum Kind : uint8_t { kStarted = 1, kFailed = 2, kExited = 3, kConnected = 4, kRefused = 5, kUnreachable = 6 };
  Kind kind = kFailed;
  std::string text{};  // why not
  uint16_t port = 0;  // kStarted: on which it listens
  std::string host{};  // kStarted: its name
  int64_t pid = 0;    // kStarted
  ExitStatus status{};  // kExited
};

// With which exit code a host that a monarch-hostd has made ends by itself: why, for its client.
enum HostEnd : int {
  kHostAsked = 0,
  kHostUnheard = 121,  // over TCP: the session to the script is over
  kHostDaemonEnded = 122,  // its monarch-hostd ends, in order
};
inline constexpr const char* kEndedWithHostd = "was ended with its monarch-hostd";
// In words (ExitStatus::because), where it is one of these.
ExitStatus explained(ExitStatus status, int64_t host_lease_ns);

inline constexpr size_t kAttachBytesMax = 1 << 20;
inline constexpr std::byte kKillByte{'k'};

// With their size in front.
std::string encode_order(const AttachOrder& order);
std::string encode_order(const RelayOrder& order);
std::string encode_report(const HostReport& report);
// Without it. kMalformed.
Result<ClientOrder> decode_order(ByteSpan bytes);
Result<HostReport> decode_report(ByteSpan bytes);

// Puts messages together from what a channel brings.
class AttachReader {
 public:
  // Reads what is there. False: the channel has ended, or brings what is no message.
  bool read(Channel& channel);
  // The next whole message.
  std::optional<std::string> next();

 private:
  std::string bytes_;
  bool malformed_ = false;
};

// Writes all of it, of a channel that does not wait, within `limit_ms`; for processes that do nothing else.
bool write_all(Channel& channel, const std::string& bytes, int limit_ms);

}  // namespace monarch
