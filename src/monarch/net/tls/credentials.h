// What a host needs for TLS with the others of its job: a certificate and its key, and the authority by which it knows
// theirs. Made at launch, in memory; the keys of P-256. They are handed over as the token is: by descriptor, or in a file
// that only this user can read, and never by argument or environment.
//
// That a peer has a certificate of the authority says that it may speak. Who it is, and that it belongs to the job, the
// hello says (wire/hello.h), which is bound to the TLS that it is spoken in.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "monarch/base/bytes.h"
#include "monarch/base/result.h"

namespace monarch {

// All as PEM.
struct Credentials {
  std::string authorities;  // whose certificates are believed: one or several
  std::string certificate;  // this host's, and those between it and its authority
  std::string key;          // its private key; secret

  Credentials() = default;
  Credentials(const Credentials&) = default;
  Credentials(Credentials&&) = default;
  Credentials& operator=(const Credentials&) = default;
  Credentials& operator=(Credentials&&) = default;
  ~Credentials();  // wipes the key

  // One text, secret, for who is to have them; and back. kMalformed: it is none.
  std::string to_text() const;
  static Result<Credentials> parse(std::string_view text);
};

// Makes the certificates of one job. Its own key never leaves it.
class Authority {
 public:
  // kUnavailable: OpenSSL says no, and why.
  static Result<Authority> make();
  // The one that all have who know `secret`, and nobody else: each makes its own certificate then, and none has to be
  // handed out. Its key is Ed25519, HMAC-SHA256(secret, a text of its own).
  static Result<Authority> of_secret(ByteSpan secret);
  Authority(Authority&&) noexcept;
  Authority& operator=(Authority&&) noexcept;
  ~Authority();

  // For one host; `name` is for people.
  Result<Credentials> issue(const std::string& name) const;

 private:
  struct State;
  static Result<Authority> of_state(std::unique_ptr<State> state);
  explicit Authority(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The user's own. `key_file` has the private key and behind it the certificate. kUnsupported, with what to do: a file that
// is not there or not what it should be, or a key that others can read.
Result<Credentials> load_credentials(const std::string& authority_file, const std::string& key_file);

}  // namespace monarch
