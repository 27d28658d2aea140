// Limit of W20 and W13h: what passes between two bare processes over one TCP connection of loopback.
//
//   wire SECONDS ROW=WHAT...     WHAT is `1`: a byte there and back, without TLS.
//                                `BYTES`: a byte asks for so many, without TLS.
//                                `BYTES*TIMES`: so many bytes over TLS 1.3 as OpenSSL's own programs send them, counted
//                                TIMES times
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>

#include "limit.h"

namespace {

constexpr double kWarmSeconds = 0.5;
constexpr long kDaySeconds = 86'400;

void must(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "wire: %s\n", what);
  std::exit(1);
}

struct Pair {
  int here = -1, there = -1;
};

Pair connected() {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  must(bind(listening, any, size) == 0 && listen(listening, 1) == 0, "listen");
  must(getsockname(listening, any, &size) == 0, "getsockname");
  Pair pair;
  pair.here = socket(AF_INET, SOCK_STREAM, 0);
  must(connect(pair.here, any, size) == 0, "connect");
  pair.there = accept(listening, nullptr, nullptr);
  must(pair.there >= 0, "accept");
  close(listening);
  const int on = 1;
  for (const int end : {pair.here, pair.there}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return pair;
}

/// Forks one that runs `serve` with the other end; it dies with this process.
pid_t serve_in_child(const Pair& pair, const std::function<void(int)>& serve) {
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair.here);
    serve(pair.there);
    _exit(0);
  }
  close(pair.there);
  return child;
}

void end_child(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

std::vector<double> time_ns(const std::function<void()>& round, double seconds) {
  const auto after = [](double length) { return now_ns() + static_cast<std::uint64_t>(length * 1e9); };
  for (const std::uint64_t warm = after(kWarmSeconds); now_ns() < warm;) round();
  std::vector<double> times;
  for (const std::uint64_t end = after(seconds); now_ns() < end || times.size() < 3;) {
    const std::uint64_t start = now_ns();
    round();
    times.push_back(static_cast<double>(now_ns() - start));
  }
  return times;
}

void measure_byte(const std::string& row, double seconds) {
  const Pair pair = connected();
  char byte = 1;
  const pid_t child = serve_in_child(pair, [](int socket) {
    char one = 0;
    while (read(socket, &one, 1) == 1 && write(socket, &one, 1) == 1) {
    }
  });
  const auto round = [&] { must(write(pair.here, &byte, 1) == 1 && read(pair.here, &byte, 1) == 1, "a byte"); };
  auto times = time_ns(round, seconds);
  for (double& time : times) time /= 1e3;
  print_row(row, "limit", "us", times);
  end_child(child);
  close(pair.here);
}

void print_rates(const std::string& row, const char* system, double bytes, std::vector<double> samples) {
  for (double& sample : samples) sample = bytes / sample;
  print_row(row, system, "GB/s", samples);
}

bool write_all(int socket, const char* at, std::size_t size) {
  while (size != 0) {
    const ssize_t count = write(socket, at, size);
    if (count <= 0) return false;
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool read_all(int socket, char* at, std::size_t size) {
  while (size != 0) {
    const ssize_t count = read(socket, at, size);
    if (count <= 0) return false;
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

void measure_bare_bytes(const std::string& row, std::size_t size, double seconds) {
  const Pair pair = connected();
  std::vector<char> bytes(size, 'x');
  const pid_t child = serve_in_child(pair, [&](int socket) {
    char asked = 0;
    while (read(socket, &asked, 1) == 1 && write_all(socket, bytes.data(), size)) {
    }
  });
  const auto round = [&] { must(write(pair.here, "y", 1) == 1 && read_all(pair.here, bytes.data(), size), row.c_str()); };
  print_rates(row, "limit", static_cast<double>(size), time_ns(round, seconds));
  end_child(child);
  close(pair.here);
}

/// With a key of its own, and a certificate that this key has signed.
SSL_CTX* make_context() {
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), kDaySeconds);
  X509_set_pubkey(certificate, key);
  must(X509_sign(certificate, key, EVP_sha256()) > 0, "X509_sign");
  must(SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1, "certificate");
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, 128u << 10);
  return context;
}

bool write_all(SSL* ssl, const char* at, std::size_t size) {
  for (std::size_t count = 0; size != 0; at += count, size -= count) {
    if (SSL_write_ex(ssl, at, size, &count) != 1) return false;
  }
  return true;
}

bool read_all(SSL* ssl, char* at, std::size_t size) {
  for (std::size_t count = 0; size != 0; at += count, size -= count) {
    if (SSL_read_ex(ssl, at, size, &count) != 1) return false;
  }
  return true;
}

void measure_bytes(const std::string& row, const char* system, std::size_t size, double times, double seconds) {
  const Pair pair = connected();
  SSL_CTX* context = make_context();
  std::vector<char> bytes(size, 'x');
  char answer = 0;
  const auto begin = [context](int socket) {
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, socket);
    return ssl;
  };
  const pid_t child = serve_in_child(pair, [&](int socket) {
    SSL* ssl = begin(socket);
    must(SSL_accept(ssl) == 1, "SSL_accept");
    while (read_all(ssl, bytes.data(), size) && write_all(ssl, "y", 1)) {
    }
  });
  SSL* ssl = begin(pair.here);
  must(SSL_connect(ssl) == 1, "SSL_connect");
  const auto round = [&] { must(write_all(ssl, bytes.data(), size) && read_all(ssl, &answer, 1), row.c_str()); };
  print_rates(row, system, static_cast<double>(size) * times, time_ns(round, seconds));
  end_child(child);
  close(pair.here);
}

}  // namespace

int main(int argc, char** argv) {
  must(argc >= 2, "SECONDS ROW=WHAT...");
  const double seconds = std::atof(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const char* const is = std::strchr(argv[i], '=');
    must(is != nullptr, "ROW=WHAT");
    const std::string row(argv[i], static_cast<std::size_t>(is - argv[i]));
    const std::size_t size = std::strtoull(is + 1, nullptr, 10);
    const char* const star = std::strchr(is, '*');
    if (star != nullptr) {
      measure_bytes(row, "limit", size, std::atof(star + 1), seconds);
    } else if (size == 1) {
      measure_byte(row, seconds);
    } else {
      measure_bare_bytes(row, size, seconds);
    }
  }
  return 0;
}
