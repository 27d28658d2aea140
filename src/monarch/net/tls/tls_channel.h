// TLS 1.3 over another channel, mutual: both ends show a certificate (net/tls/credentials.h). OpenSSL enciphers; bytes are
// moved here, so that nothing is written to a broken socket with a signal, and several records go with one system call.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "monarch/base/mutex.h"
#include "monarch/net/channel.h"
#include "monarch/net/tls/credentials.h"

namespace monarch {

// What all channels of a process have in common. Any thread.
class TlsContext {
 public:
  enum class Trust {
    kAuthority,  // peers have a certificate of the same authority
    kAnybody,    // the user's explicit word: any certificate, or none. The hello still tells who belongs to the job
  };
  // kUnsupported: what is wrong with the credentials.
  static Result<std::shared_ptr<const TlsContext>> make(const Credentials& credentials, Trust trust = Trust::kAuthority);
  // Of whoever knows `secret` (Authority::of_secret); `name` is for people.
  static Result<std::shared_ptr<const TlsContext>> of_secret(ByteSpan secret, const std::string& name,
                                                             Trust trust = Trust::kAuthority);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsChannel;
  struct State;
  explicit TlsContext(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// What OpenSSL keeps for the calling thread goes, before its end. For one that nobody joins: the end of a process gives
// that back as well, and perhaps at the same time.
void forget_thread_of_tls();

class TlsChannel final : public Channel {
 public:
  // shared_ptr: by all channels and whoever makes them. Throws std::bad_alloc.
  TlsChannel(std::unique_ptr<Channel> under, std::shared_ptr<const TlsContext> context, bool accepts);
  ~TlsChannel() override;

  int fd() const override { return under_->fd(); }
  Result<bool> establish() override;
  bool wants_room() const override;
  ssize_t write(std::span<const iovec> pieces) override;
  bool flush() override;
  ssize_t read(std::span<const iovec> into) override;
  bool is_drained() const override;
  bool has_input() const override;
  std::optional<Error> fault() const override;
  std::optional<ChannelBinding> binding() const override;
  void end_output() override;
  bool is_enciphered() const override { return true; }

 private:
  struct State;
  struct Bio;
  bool flush_locked();
  bool encipher(const void* data, size_t size);
  ssize_t failed(int result);
  Result<bool> handshake_failed(int result);

  const std::unique_ptr<Channel> under_;
  const std::shared_ptr<const TlsContext> context_;  // shared: see above
  const bool accepts_;
  bool under_established_ = false;

  mutable Mutex mutex_;  // one thread writes and one reads, OpenSSL takes one at a time
  const std::unique_ptr<State> state_;
};

}  // namespace monarch
