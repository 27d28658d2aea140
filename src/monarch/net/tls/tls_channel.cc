#include "monarch/net/tls/tls_channel.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "monarch/net/tls/openssl.h"

namespace monarch {

namespace {

constexpr size_t kRecord = 16 << 10;     // of TLS
constexpr size_t kOutMax = 256 << 10;    // enciphered and not with the kernel
constexpr size_t kReadAhead = 128 << 10;
// AES-128 first: as strong as the curve, and faster.
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr char kBindingLabel[] = "EXPORTER-Channel-Binding";  // RFC 9266

BioPtr bio_of(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL reads a certificate's extensions when it is first looked at, here: threads that begin at once would do so side by
// side, which it allows, and TSan, which does not know its locks, does not.
void read_extensions(X509* certificate) { static_cast<void>(X509_check_purpose(certificate, -1, 0)); }

bool use_authorities(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = bio_of(pem);
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  int count = 0;
  for (; bio; ++count) {
    const X509Ptr authority(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (!authority || X509_STORE_add_cert(store, authority.get()) != 1) break;
    read_extensions(authority.get());
  }
  if (count != 0) ERR_clear_error();  // the end of the text
  return count != 0;
}

bool use_certificate(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = bio_of(pem);
  const X509Ptr own(bio ? PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  if (!own || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  read_extensions(own.get());
  for (;;) {
    X509* between = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr);
    if (between == nullptr) break;
    if (SSL_CTX_add0_chain_cert(context, between) != 1) return X509_free(between), false;
  }
  ERR_clear_error();  // the end of the text
  return true;
}

bool use_key(SSL_CTX* context, const std::string& pem) {
  const BioPtr bio = bio_of(pem);
  // Nobody is here to be asked for a password.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const PkeyPtr key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr) : nullptr);
  return key && SSL_CTX_use_PrivateKey(context, key.get()) == 1 && SSL_CTX_check_private_key(context) == 1;
}

}  // namespace

Error tls_error(ErrorCode code, const std::string& what) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return {code, what + (reason == nullptr ? "" : std::string(": ") + reason)};
}

// ---- What is common ----

struct TlsContext::State {
  SslContextPtr context;
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
Result<std::shared_ptr<const TlsContext>> TlsContext::of_secret(ByteSpan secret, const std::string& name, Trust trust) {
  auto authority = Authority::of_secret(secret);
  if (!authority) return authority.error();
  auto credentials = authority->issue(name);
  if (!credentials) return credentials.error();
  return make(*credentials, trust);
}

TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::make(const Credentials& credentials, Trust trust) {
  ERR_clear_error();
  auto state = std::make_unique<State>();
  state->context.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* context = state->context.get();
  if (context == nullptr) return tls_error(ErrorCode::kUnavailable, "cannot start TLS");
  const bool set = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_ciphersuites(context, kCiphers) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!set) return tls_error(ErrorCode::kUnavailable, "cannot start TLS");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // each connection proves itself
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  if (!use_certificate(context, credentials.certificate)) {
    return tls_error(ErrorCode::kUnsupported, "there is no usable certificate in what was given for TLS");
  }
  if (!use_key(context, credentials.key)) {
    return tls_error(ErrorCode::kUnsupported, "there is no usable private key in what was given for TLS");
  }
  if (trust == Trust::kAnybody) {
    // Asked for, and not looked at.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
  } else {
    if (!use_authorities(context, credentials.authorities)) {
      return tls_error(ErrorCode::kUnsupported, "there is no authority's certificate in what was given for TLS");
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  // shared: by all channels
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(state)));
}

// ---- One channel ----

struct TlsChannel::State {
  SslPtr ssl;
  std::vector<std::byte> out;  // enciphered; from out_sent on not with the kernel
  size_t out_sent = 0;
  int write_error = 0;  // of the channel below, once it is broken
  bool ended = false;   // the channel below has
  int read_error = 0;
  bool under_drained = false;  // the channel below is, since the last read() or establish() began
  bool drained = false;
  bool said_something = false;
  bool ending = false;        // nothing more is to be written
  bool output_ended = false;  // and all of it is with the channel below, which has been told
  std::optional<Error> fault;
  std::vector<std::byte> small;  // pieces that share a record

  size_t held() const { return out.size() - out_sent; }
};

// Where OpenSSL's bytes go, and come from.
struct TlsChannel::Bio {
  static TlsChannel& of(BIO* bio) { return *static_cast<TlsChannel*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* data, size_t size, size_t* taken) {
    State& state = *of(bio).state_;
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    try {
      state.out.insert(state.out.end(), bytes, bytes + size);
    } catch (const std::bad_alloc&) {  // not through OpenSSL; the other side hears nothing more, and ends it
      state.write_error = EPIPE;
      return 0;
    }
    state.said_something = true;
    *taken = size;
    return 1;
  }
  static int read(BIO* bio, char* data, size_t size, size_t* count) {
    TlsChannel& channel = of(bio);
    BIO_clear_retry_flags(bio);
    if (channel.state_->under_drained) return BIO_set_retry_read(bio), 0;
    const iovec into{data, size};
    const ssize_t received = channel.under_->read({&into, 1});
    channel.state_->under_drained = channel.under_->is_drained();
    if (received > 0) return *count = static_cast<size_t>(received), 1;
    // Of a shortage nothing tells the end; whoever reads comes again.
    if (received < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)) {
      BIO_set_retry_read(bio);
    } else {
      channel.state_->ended = received == 0;
      channel.state_->read_error = received == 0 ? 0 : errno;
    }
    return 0;
  }
  static long control(BIO* bio, int what, long, void*) {
    if (what == BIO_CTRL_EOF) return of(bio).state_->ended ? 1 : 0;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* fresh = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "monarch channel");
      MONARCH_CHECK(fresh != nullptr && BIO_meth_set_write_ex(fresh, &write) == 1 &&
                    BIO_meth_set_read_ex(fresh, &read) == 1 && BIO_meth_set_ctrl(fresh, &control) == 1);
      return fresh;
    }();
    return made;
  }
};

TlsChannel::TlsChannel(std::unique_ptr<Channel> under, std::shared_ptr<const TlsContext> context, bool accepts)
    : under_(std::move(under)),
      context_(std::move(context)),
      accepts_(accepts),
      mutex_(under_->is_enciphered() ? LockRank::kTls : LockRank::kTlsUnder),
      state_(std::make_unique<State>()) {
  state_->small.reserve(kRecord);
  state_->ssl.reset(SSL_new(context_->state_->context.get()));
  BIO* bio = BIO_new(Bio::method());
  if (!state_->ssl || bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(state_->ssl.get(), bio, bio);
  accepts_ ? SSL_set_accept_state(state_->ssl.get()) : SSL_set_connect_state(state_->ssl.get());
}

TlsChannel::~TlsChannel() = default;

Result<bool> TlsChannel::establish() {
  if (!under_established_) {
    auto done = under_->establish();
    if (!done || !*done) return done;
    under_established_ = true;
  }
  std::lock_guard lock(mutex_);
  SSL* ssl = state_->ssl.get();
  if (SSL_is_init_finished(ssl)) return true;
  ERR_clear_error();
  state_->under_drained = false;
  const int result = SSL_do_handshake(ssl);
  flush_locked();  // an alert too
  if (result == 1) return true;
  if (SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ) return false;
  return handshake_failed(result);
}

Result<bool> TlsChannel::handshake_failed(int) {
  if (state_->read_error != 0 || state_->write_error != 0) {
    const int error = state_->read_error != 0 ? state_->read_error : state_->write_error;
    ERR_clear_error();
    return Error{ErrorCode::kClosed, std::string("the connection broke while TLS began: ") + std::strerror(error)};
  }
  if (state_->ended) {
    ERR_clear_error();
    return Error{ErrorCode::kClosed, "the peer closed the connection while TLS began"};
  }
  if (accepts_ && !state_->said_something) {
    // OpenSSL says nothing to who speaks no TLS at all, and that one would take it for a connection that broke.
    constexpr unsigned char kAlert[] = {21, 3, 3, 0, 2, 2, 70};  // fatal: protocol_version
    const iovec piece{const_cast<unsigned char*>(kAlert), sizeof kAlert};
    static_cast<void>(under_->write({&piece, 1}));
  }
  const long verdict = SSL_get_verify_result(state_->ssl.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return Error{ErrorCode::kUnsupported, std::string("the peer's certificate is not one of this job's: ") +
                                              X509_verify_cert_error_string(verdict)};
  }
  return tls_error(ErrorCode::kUnsupported, "TLS with the peer cannot begin");
}

bool TlsChannel::wants_room() const {
  if (!under_established_) return under_->wants_room();
  std::lock_guard lock(mutex_);
  return state_->write_error == 0 && (state_->held() != 0 || under_->wants_room());
}

bool TlsChannel::flush_locked() {
  State& state = *state_;
  while (state.held() != 0 && state.write_error == 0) {
    const iovec piece{state.out.data() + state.out_sent, state.held()};
    const ssize_t count = under_->write({&piece, 1});
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM)) {
      // Whoever goes on writing all the same must not make it grow.
      if (state.out_sent >= kOutMax / 2) {
        state.out.erase(state.out.begin(), state.out.begin() + static_cast<ptrdiff_t>(state.out_sent));
        state.out_sent = 0;
      }
      return false;
    }
    if (count < 0) state.write_error = errno;
    if (count > 0) state.out_sent += static_cast<size_t>(count);
  }
  state.out.clear();
  state.out_sent = 0;
  const bool flushed = under_->flush();
  if (state.ending && !std::exchange(state.output_ended, true)) under_->end_output();
  return flushed;
}

bool TlsChannel::flush() {
  std::lock_guard lock(mutex_);
  return flush_locked();
}

// One record or several. False: OpenSSL says no, which it does only when the stream is broken (write_error).
bool TlsChannel::encipher(const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size != 0) {
    size_t taken = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(state_->ssl.get(), bytes, size, &taken);
    if (result != 1) {
      state_->write_error = EPIPE;
      static_cast<void>(failed(result));
      return false;
    }
    bytes += taken;
    size -= taken;
  }
  return true;
}

ssize_t TlsChannel::write(std::span<const iovec> pieces) {
  std::lock_guard lock(mutex_);
  State& state = *state_;
  flush_locked();
  size_t total = 0;
  for (const iovec& piece : pieces) {
    const auto* data = static_cast<const std::byte*>(piece.iov_base);
    size_t left = piece.iov_len;
    while (left != 0 && state.held() + state.small.size() < kOutMax && state.write_error == 0) {
      const size_t count = std::min(left, kRecord - state.small.size());
      if (count == kRecord) {
        if (!encipher(data, count)) break;
      } else {
        state.small.insert(state.small.end(), data, data + count);
        if (state.small.size() == kRecord || left >= kRecord) {
          if (!encipher(state.small.data(), state.small.size())) break;
          state.small.clear();
        }
      }
      data += count;
      left -= count;
      total += count;
    }
    if (left != 0) break;  // full
  }
  if (!state.small.empty() && state.write_error == 0) encipher(state.small.data(), state.small.size());
  state.small.clear();
  flush_locked();
  if (state.write_error != 0) return errno = state.write_error, -1;
  if (total == 0) return errno = EAGAIN, -1;
  return static_cast<ssize_t>(total);
}

ssize_t TlsChannel::read(std::span<const iovec> into) {
  std::lock_guard lock(mutex_);
  state_->under_drained = state_->drained = false;
  size_t total = 0;
  for (const iovec& piece : into) {
    auto* data = static_cast<std::byte*>(piece.iov_base);
    for (size_t left = piece.iov_len; left != 0;) {
      size_t count = 0;
      ERR_clear_error();
      const int result = SSL_read_ex(state_->ssl.get(), data, left, &count);
      if (result != 1) {
        if (total == 0) return failed(result);
        state_->drained = state_->under_drained && SSL_get_error(state_->ssl.get(), result) == SSL_ERROR_WANT_READ;
        ERR_clear_error();
        return static_cast<ssize_t>(total);  // the end, if it is that, comes again
      }
      data += count;
      left -= count;
      total += count;
    }
  }
  // The other side may want to change its keys, and hear an answer.
  if (state_->held() != 0) flush_locked();
  return static_cast<ssize_t>(total);
}

// As what read() or write() returns, with errno.
ssize_t TlsChannel::failed(int result) {
  const int kind = SSL_get_error(state_->ssl.get(), result);
  if (kind == SSL_ERROR_WANT_READ) return errno = EAGAIN, -1;
  if (state_->read_error != 0) return errno = state_->read_error, -1;
  if (kind == SSL_ERROR_ZERO_RETURN || state_->ended) return 0;  // whoever goes on from here knows how much has come
  if (!state_->fault) state_->fault = tls_error(ErrorCode::kUnsupported, "TLS with the peer has ended");
  return errno = EPROTO, -1;
}

bool TlsChannel::is_drained() const {
  std::lock_guard lock(mutex_);
  return state_->drained;
}

bool TlsChannel::has_input() const {
  std::lock_guard lock(mutex_);
  return SSL_has_pending(state_->ssl.get()) == 1 || under_->has_input();
}

std::optional<Error> TlsChannel::fault() const {
  std::lock_guard lock(mutex_);
  return state_->fault;
}

std::optional<ChannelBinding> TlsChannel::binding() const {
  std::lock_guard lock(mutex_);
  ChannelBinding made;
  const int exported = SSL_export_keying_material(state_->ssl.get(), reinterpret_cast<unsigned char*>(made.data()),
                                                  made.size(), kBindingLabel, sizeof kBindingLabel - 1, nullptr, 0, 1);
  MONARCH_CHECK(exported == 1);
  return made;
}

void forget_thread_of_tls() { OPENSSL_thread_stop(); }

void TlsChannel::end_output() {
  std::lock_guard lock(mutex_);
  if (std::exchange(state_->ending, true)) return;
  if (SSL_is_init_finished(state_->ssl.get())) SSL_shutdown(state_->ssl.get());
  ERR_clear_error();
  flush_locked();
}

}  // namespace monarch
