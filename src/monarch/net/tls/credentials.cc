#include "monarch/net/tls/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "monarch/base/system.h"
#include "monarch/net/tls/openssl.h"

namespace monarch {

namespace {

// A job outlives no certificate; a clock that is behind by a day does no harm.
constexpr long kDay = 24 * 3600, kValidFor = 3650 * kDay;
constexpr int64_t kFileMax = 1 << 20;
constexpr std::string_view kFormat = "monarch-credentials-1\n";

std::string pem_of_certificate(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  char* data = nullptr;
  if (!bio || PEM_write_bio_X509(bio.get(), certificate) != 1) return {};
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string pem_of_key(EVP_PKEY* key) {
  const BioPtr bio(BIO_new(BIO_s_secmem()));  // wiped when it is freed
  char* data = nullptr;
  if (!bio || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) return {};
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

bool add_extension(X509* certificate, X509* issuer, int which, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, which, value);
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// `issuer` null: it signs itself, and may sign others.
X509Ptr make_certificate(EVP_PKEY* key, const std::string& name, X509* issuer, EVP_PKEY* signer) {
  X509Ptr made(X509_new());
  unsigned char serial[16];
  if (!made || RAND_bytes(serial, sizeof serial) != 1) return nullptr;
  serial[0] = (serial[0] & 0x7f) | 0x40;  // positive, and of full length
  X509* certificate = made.get();
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  bool good = number != nullptr && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  good = good && X509_set_version(certificate, X509_VERSION_3) == 1 &&
         X509_gmtime_adj(X509_getm_notBefore(certificate), -kDay) != nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), kValidFor) != nullptr && X509_set_pubkey(certificate, key) == 1;
  X509_NAME* subject = X509_get_subject_name(certificate);
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  const int size = static_cast<int>(std::min<size_t>(name.size(), 64));  // what the field may hold
  good = good && X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, size, -1, 0) == 1 &&
         X509_set_issuer_name(certificate, issuer == nullptr ? subject : X509_get_subject_name(issuer)) == 1;
  X509* signed_by = issuer == nullptr ? certificate : issuer;
  good = good && add_extension(certificate, signed_by, NID_subject_key_identifier, "hash");
  if (issuer == nullptr) {
    good = good && add_extension(certificate, signed_by, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add_extension(certificate, signed_by, NID_key_usage, "critical,keyCertSign");
  } else {
    good = good && add_extension(certificate, signed_by, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, signed_by, NID_authority_key_identifier, "keyid") &&
           add_extension(certificate, signed_by, NID_key_usage, "critical,digitalSignature") &&
           add_extension(certificate, signed_by, NID_ext_key_usage, "serverAuth,clientAuth");
  }
  const EVP_MD* digest = EVP_PKEY_is_a(signer, "ED25519") ? nullptr : EVP_sha256();
  if (!good || X509_sign(certificate, signer, digest) == 0) return nullptr;
  return made;
}

PkeyPtr make_key() { return PkeyPtr(EVP_EC_gen("P-256")); }

Error no_credentials() { return tls_error(ErrorCode::kUnavailable, "cannot make certificates"); }

Result<std::string> read_file(const std::string& path, bool secret) {
  const UniqueFd file = sys::open_file(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK);
  if (!file && (errno == EMFILE || errno == ENFILE)) return sys::shortage_error(("open " + path).c_str());
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) {
    return Error{ErrorCode::kUnsupported, "cannot read '" + path + "': " + std::strerror(errno)};
  }
  if (!S_ISREG(status.st_mode) || status.st_size > kFileMax) {
    return Error{ErrorCode::kUnsupported, "'" + path + "' is no file of certificates"};
  }
  if (secret && (status.st_mode & 077) != 0) {
    return Error{ErrorCode::kUnsupported, "'" + path + "' holds a private key that others can read: chmod 600 " + path};
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t count = read(file.get(), text.data() + have, text.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Error{ErrorCode::kUnsupported, "cannot read '" + path + "'"};
    have += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace

Credentials::~Credentials() { OPENSSL_cleanse(key.data(), key.size()); }

// The sizes, then the three as they are.
std::string Credentials::to_text() const {
  return std::string(kFormat) + std::to_string(authorities.size()) + " " + std::to_string(certificate.size()) + " " +
         std::to_string(key.size()) + "\n" + authorities + certificate + key;
}

Result<Credentials> Credentials::parse(std::string_view text) {
  const Error bad{ErrorCode::kMalformed, "these are no credentials of a host, or of another version"};
  if (!text.starts_with(kFormat) || text.size() > static_cast<size_t>(3 * kFileMax)) return bad;
  text.remove_prefix(kFormat.size());
  const size_t line = text.find('\n');
  if (line == std::string_view::npos || line > 64) return bad;
  size_t sizes[3];
  std::string_view head = text.substr(0, line);
  for (size_t& size : sizes) {
    const auto [rest, error] = std::from_chars(head.data(), head.data() + head.size(), size);
    if (error != std::errc() || size > static_cast<size_t>(kFileMax)) return bad;
    head.remove_prefix(static_cast<size_t>(rest - head.data()));
    if (&size == &sizes[2] ? !head.empty() : !head.starts_with(' ')) return bad;
    if (!head.empty()) head.remove_prefix(1);
  }
  text.remove_prefix(line + 1);
  if (sizes[0] + sizes[1] + sizes[2] != text.size()) return bad;
  Credentials credentials;
  credentials.authorities = text.substr(0, sizes[0]);
  credentials.certificate = text.substr(sizes[0], sizes[1]);
  credentials.key = text.substr(sizes[0] + sizes[1]);
  return credentials;
}

struct Authority::State {
  explicit State(PkeyPtr made) : key(std::move(made)) {}
  PkeyPtr key;
  X509Ptr certificate;
};

Authority::Authority(std::unique_ptr<State> state) : state_(std::move(state)) {}
Authority::Authority(Authority&&) noexcept = default;
Authority& Authority::operator=(Authority&&) noexcept = default;
Authority::~Authority() = default;

Result<Authority> Authority::make() { return of_state(std::make_unique<State>(make_key())); }

Result<Authority> Authority::of_secret(ByteSpan secret) {
  static constexpr char kPurpose[] = "monarch certificates 1";
  unsigned char seed[32];
  unsigned int size = sizeof seed;
  const bool made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                         reinterpret_cast<const unsigned char*>(kPurpose), sizeof kPurpose - 1, seed, &size) != nullptr;
  PkeyPtr key(made ? EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed, sizeof seed) : nullptr);
  OPENSSL_cleanse(seed, sizeof seed);
  return of_state(std::make_unique<State>(std::move(key)));
}

Result<Authority> Authority::of_state(std::unique_ptr<State> state) {
  if (!state->key) return no_credentials();
  state->certificate = make_certificate(state->key.get(), "monarch job", nullptr, state->key.get());
  if (!state->certificate) return no_credentials();
  return Authority(std::move(state));
}

Result<Credentials> Authority::issue(const std::string& name) const {
  const PkeyPtr key = make_key();
  if (!key) return no_credentials();
  const X509Ptr certificate = make_certificate(key.get(), name, state_->certificate.get(), state_->key.get());
  if (!certificate) return no_credentials();
  Credentials credentials;
  credentials.authorities = pem_of_certificate(state_->certificate.get());
  credentials.certificate = pem_of_certificate(certificate.get());
  credentials.key = pem_of_key(key.get());
  const bool whole = !credentials.authorities.empty() && !credentials.certificate.empty() && !credentials.key.empty();
  return whole ? Result<Credentials>(std::move(credentials)) : no_credentials();
}

Result<Credentials> load_credentials(const std::string& authority_file, const std::string& key_file) {
  auto authorities = read_file(authority_file, false);
  if (!authorities) return authorities.error();
  auto key = read_file(key_file, true);
  if (!key) return key.error();
  Credentials credentials;
  credentials.authorities = std::move(*authorities);
  credentials.certificate = *key;  // each reads what is its own out of it
  credentials.key = std::move(*key);
  return credentials;
}

}  // namespace monarch
