// monarch-hostd: see host/hostd.h. What a host gives to the processes that it starts comes from an interpreter, which is
// asked once, before the daemon listens, or from whoever starts it, by a descriptor.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/host/hostd.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/host/start/process.h"
#include "monarch/loop/reactor.h"

namespace {

using namespace monarch;  // NOLINT: a program of this library

constexpr char kUsage[] =
    "usage: monarch-hostd ADDRESS [--python PROGRAM | --no-python | --defaults FD] [--token-file PATH |\n"
    "                     --token-fd FD] [--lifeline FD] [--ca FILE --private-key FILE | --credentials FD]\n"
    "\n"
    "Makes this machine a host: programs of the same user attach to it and start processes here.\n"
    "\n"
    "  ADDRESS            ipc://PATH of the socket, or ipc://@NAME without a file; tcp://HOST:PORT, for programs on other\n"
    "                     machines, with TLS. Port 0: the kernel chooses one, and the first line of output says which;\n"
    "                     fd7: descriptor 7 is a socket that is bound. HOST *: on all interfaces. tcp://A:P@tcp://B:Q:\n"
    "                     listens at B, is reached at A. IDENTITY@ in front, such as service<2MuA>@: who attaches by\n"
    "                     another one is refused\n"
    "  --python PROGRAM   the interpreter of the processes that are started here (python3)\n"
    "  --no-python        none: for programs in C++ only\n"
    "  --defaults FD      in its place: what they are given, as LaunchDefaults (host/start/launch.h)\n"
    "  --token-file PATH  who attaches must know what is in there (hosts.token in the user's runtime folder, or\n"
    "                     MONARCH_TOKEN_FILE); made, with mode 0600, if it is missing\n"
    "  --token-fd FD      or what this descriptor gives, 16 bytes\n"
    "  --ca FILE          PEM: programs must have a certificate of one of these, in place of one made from the token\n"
    "  --private-key FILE PEM: this host's private key, and its certificate behind it\n"
    "  --credentials FD   in their place: both, as Credentials (net/tls/credentials.h). No authority: any certificate\n"
    "  --lifeline FD      ends when this descriptor does, unless a byte has come over it before\n"
    "\n"
    "SIGTERM ends it, with all that it has started.\n";

[[noreturn]] void fail(const std::string& why, int status = 1) {
  dprintf(STDERR_FILENO, "monarch-hostd: %s\n", why.c_str());
  _exit(status);
}

std::string read_all(int fd) {
  std::string text;
  char piece[65536];
  for (;;) {
    const ssize_t count = read(fd, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(std::string("cannot read what processes are given: ") + std::strerror(errno));
    if (count == 0) return text;
    text.append(piece, static_cast<size_t>(count));
  }
}

// This program lies in monarch/bin, beside the package that an interpreter is to find.
std::string package_root() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  std::string root(path, size > 0 ? static_cast<size_t>(size) : 0);
  for (int i = 0; i < 3; ++i) root.resize(root.rfind('/') == std::string::npos ? 0 : root.rfind('/'));
  return root;
}

std::string ask_interpreter(const std::string& python) {
  UniqueFd ends[2];
  if (!sys::make_pipe(ends)) fail(sys::shortage_error("ask an interpreter").message);
  ProcessSpec spec;
  spec.argv = {python, "-c",
               "import sys\n"
               "if sys.path[:1] == ['']: del sys.path[0]\n"
               "sys.path.append(sys.argv[1])\n"
               "from monarch._programs import host_defaults\n"
               "host_defaults.main(int(sys.argv[2]))",
               package_root(), std::to_string(ends[1].get())};
  for (char** at = environ; *at != nullptr; ++at) spec.env.emplace_back(*at);
  spec.keep_fds = {ends[1].get()};
  spec.stdout_fd = STDERR_FILENO;  // what it prints by itself: on ours somebody waits for an address
  auto started = start_process(spec);
  if (!started) fail(started.error().message);
  ends[1].reset();
  std::string text = read_all(ends[0].get());
  pollfd ended{started->pidfd.get(), POLLIN, 0};
  poll(&ended, 1, -1);
  const ExitStatus status = reap(*started);
  if (status.code != 0 || status.signal != 0) fail(python + " cannot run monarch's processes: it " + describe(status));
  return text;
}

// What processes are given where no interpreter is there to say it.
std::string own_environment() {
  LaunchDefaults defaults;
  for (char** at = environ; *at != nullptr; ++at) defaults.env.emplace_back(*at);
  return encode(defaults);
}

// The user's own certificates.
void take_credentials(HostdAddress& address, const std::string& ca_file, const std::string& key_file, int fd) {
  if (!address.tcp) fail("certificates are for addresses of TCP", 2);
  std::string text = fd >= 0 ? read_all(fd) : std::string();
  if (fd >= 0) close(fd);
  auto credentials = fd >= 0 ? Credentials::parse(text) : load_credentials(ca_file, key_file);
  std::fill(text.begin(), text.end(), '\0');
  if (!credentials) fail(credentials.error().message, 2);
  address.trusts_all = fd >= 0 && credentials->authorities.empty();
  address.credentials = std::make_shared<const Credentials>(std::move(*credentials));  // shared: by copies of the address
}

JobToken read_token(int fd) {
  std::string text = read_all(fd);
  close(fd);
  JobToken token;
  if (text.size() != token.size()) {
    fail("--token-fd: a token is " + std::to_string(token.size()) + " bytes, not " + std::to_string(text.size()), 2);
  }
  std::memcpy(token.data(), text.data(), token.size());
  explicit_bzero(text.data(), text.size());
  return token;
}

}  // namespace

int main(int argc, char** argv) {
  struct stat log;
  if (fstat(STDERR_FILENO, &log) == 0 && S_ISREG(log.st_mode)) begin_lines_with_times();
  std::string address, python = "python3", ca_file, key_file;
  int defaults_fd = -1, credentials_fd = -1;
  bool without_python = false;
  HostDaemon::Options options;
  options.address.token_file = hosts_token_file();
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") return std::fputs(kUsage, stdout) < 0;
    if (!name.starts_with("--") && address.empty()) {
      address = name;
      continue;
    }
    if (name == "--no-python") {
      without_python = true;
      continue;
    }
    if (i + 1 == argc) fail(std::string("what does ") + argv[i] + " mean?\n" + kUsage, 2);
    const char* value = argv[++i];
    if (name == "--python") {
      python = value;
    } else if (name == "--defaults") {
      defaults_fd = atoi(value);
    } else if (name == "--token-file") {
      options.address.token_file = value;
    } else if (name == "--token-fd") {
      options.token = read_token(atoi(value));
    } else if (name == "--ca") {
      ca_file = value;
    } else if (name == "--private-key") {
      key_file = value;
    } else if (name == "--credentials") {
      credentials_fd = atoi(value);
    } else if (name == "--lifeline") {
      options.lifeline.reset(atoi(value));
      fcntl(options.lifeline.get(), F_SETFD, FD_CLOEXEC);
    } else {
      fail("there is no option " + std::string(name) + "\n" + kUsage, 2);
    }
  }
  if (address.empty()) {
    fail("wants an address such as ipc:///run/user/1000/host or tcp://host:port\n" + std::string(kUsage), 2);
  }
  auto where = HostdAddress::parse(address, options.address.token_file);
  if (!where) fail(where.error().message, 2);
  options.address = std::move(*where);
  if (ca_file.empty() != key_file.empty()) fail("--ca and --private-key go together", 2);
  if (!ca_file.empty() || credentials_fd >= 0) take_credentials(options.address, ca_file, key_file, credentials_fd);
  if (options.address.token_file[0] != '/') fail("the path of the token file must be absolute", 2);
  const std::string text = without_python     ? own_environment()
                           : defaults_fd >= 0 ? read_all(defaults_fd)
                                              : ask_interpreter(python);
  if (defaults_fd >= 0) close(defaults_fd);
  auto defaults = decode_launch_defaults(as_byte_span(text.data(), text.size()));
  if (!defaults) fail("what processes are given cannot be read: " + defaults.error().message);
  options.defaults = std::move(*defaults);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // who ignores it never learns how its children end, and it is inherited
  Reactor clock;  // never started: all that is wanted of it
  auto daemon = HostDaemon::make(clock, std::move(options));
  if (!daemon) fail(daemon.error().message);
  dprintf(STDOUT_FILENO, "%s\n", (*daemon)->address().to_text().c_str());  // it is there
  return (*daemon)->run();
}
