// Owners of what OpenSSL makes, and its errors as ours. Private to net/tls.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "monarch/base/result.h"

namespace monarch {

template <auto release>
struct OpensslDeleter {
  template <typename T>
  void operator()(T* object) const {
    release(object);
  }
};
using BioPtr = std::unique_ptr<BIO, OpensslDeleter<&BIO_free_all>>;
using PkeyPtr = std::unique_ptr<EVP_PKEY, OpensslDeleter<&EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, OpensslDeleter<&X509_free>>;
using SslPtr = std::unique_ptr<SSL, OpensslDeleter<&SSL_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpensslDeleter<&SSL_CTX_free>>;

// "<what>: <the first thing that OpenSSL has said on this thread>"; what else it has said is dropped.
Error tls_error(ErrorCode code, const std::string& what);

}  // namespace monarch
