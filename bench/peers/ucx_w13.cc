// W13 of UCX by itself: ucp_get_nbx and ucp_put_nbx between two processes of this host, in the settings it comes with.
//
//   ucx_w13 SECONDS CPU CPU_OF_OWNER ROW...     rows as workloads/w13.py has them; a negative cpu: not pinned
//
// s: the owner lets UCX allocate the memory (others can map it). v, w: malloc's, which it has registered. A read is done
// when its bytes have arrived, a write when a flush of the endpoint says that they are at the owner. c: registration,
// first contact and first read, in two fresh processes that have a worker of UCX each and no contact. The owner polls
// all the time, since some ways of UCX need it: it burns its core, as MPI's does.
// With W13_EXPLAIN set, UCX's own words for the way it takes are on stderr.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "../limits/limit.h"

namespace {

constexpr int kPattern = 251;
constexpr double kWarmSeconds = 0.1;
constexpr std::size_t kFewest = 5;

void must(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "ucx_w13: %s\n", what);
  std::exit(1);
}

void must(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "ucx_w13: %s: %s\n", what, ucs_status_string(status));
  std::exit(1);
}

struct Options {
  double seconds = 0;
  int cpu = -1, cpu_of_owner = -1;
};

/// A context and a worker; what is left at the end is the kernel's to clear.
struct Side {
  Side() {
    ucp_config_t* config = nullptr;
    must(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t features{};
    features.field_mask = UCP_PARAM_FIELD_FEATURES;
    features.features = UCP_FEATURE_RMA;
    must(ucp_init(&features, config, &context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t single{};
    single.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    single.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(context, &single, &worker), "ucp_worker_create");
  }

  void wait(ucs_status_ptr_t request, const char* what) const {
    if (!UCS_PTR_IS_PTR(request)) return must(UCS_PTR_STATUS(request), what);
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
    must(status, what);
  }

  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
};

void write_all(int socket, const void* bytes, std::size_t size) {
  must(write(socket, bytes, size) == static_cast<ssize_t>(size), "write");
}

void read_all(int socket, void* bytes, std::size_t size) {
  must(recv(socket, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size), "recv");
}

void send_block(int socket, const void* bytes, std::size_t size) {
  write_all(socket, &size, sizeof size);
  write_all(socket, bytes, size);
}

std::vector<char> receive_block(int socket) {
  std::size_t size = 0;
  read_all(socket, &size, sizeof size);
  std::vector<char> bytes(size);
  read_all(socket, bytes.data(), size);
  return bytes;
}

char* map(const Side& side, bool mapped, std::vector<char>& own, ucp_mem_h& handle) {
  ucp_mem_map_params_t wanted{};
  wanted.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  wanted.length = own.size();
  wanted.address = mapped ? nullptr : own.data();
  wanted.flags = mapped ? UCP_MEM_MAP_ALLOCATE : 0;
  must(ucp_mem_map(side.context, &wanted, &handle), "ucp_mem_map");
  ucp_mem_attr_t known{};
  known.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  must(ucp_mem_query(handle, &known), "ucp_mem_query");
  return static_cast<char*>(known.address);
}

/// The owner's life: it has its bytes, tells that it is up, registers them when it is told to, and polls until it is
/// killed. A byte asks it for its last three ones.
[[noreturn]] void own(int socket, bool mapped, std::size_t size, int cpu) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin_thread(cpu);
  const Side side;
  std::vector<char> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i % kPattern);
  char byte = 0;
  write_all(socket, &byte, 1);
  read_all(socket, &byte, 1);
  ucp_mem_h handle = nullptr;
  char* const at = map(side, mapped, bytes, handle);
  if (mapped) std::memcpy(at, bytes.data(), size);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  must(ucp_worker_get_address(side.worker, &address, &length), "ucp_worker_get_address");
  send_block(socket, address, length);
  void* key = nullptr;
  must(ucp_rkey_pack(side.context, handle, &key, &length), "ucp_rkey_pack");
  send_block(socket, key, length);
  write_all(socket, &at, sizeof at);
  constexpr int kPollsBetweenLooks = 1024;
  for (int polls = 0;; ++polls) {
    ucp_worker_progress(side.worker);
    if (polls % kPollsBetweenLooks == 0 && recv(socket, &byte, 1, MSG_DONTWAIT) == 1) write_all(socket, at + size - 3, 3);
  }
}

/// A fresh owner, and this process, which is fresh too, as its reader.
class Pair {
 public:
  Pair(bool mapped, std::size_t size, const Options& options) {
    int sockets[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
    owner_ = fork();
    must(owner_ >= 0, "fork");
    if (owner_ == 0) {
      close(sockets[0]);
      own(sockets[1], mapped, size, options.cpu_of_owner);
    }
    close(sockets[1]);
    socket_ = sockets[0];
    pin_thread(options.cpu);
    side_ = new Side;
    char up = 0;
    read_all(socket_, &up, 1);
  }

  ~Pair() {
    kill(owner_, SIGKILL);
    waitpid(owner_, nullptr, 0);
  }

  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  /// Lets the owner register, and makes what is needed to reach it.
  void meet() {
    const char byte = 0;
    write_all(socket_, &byte, 1);
    const std::vector<char> address = receive_block(socket_), key = receive_block(socket_);
    read_all(socket_, &at_, sizeof at_);
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    to.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(ucp_ep_create(side_->worker, &to, &endpoint_), "ucp_ep_create");
    must(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "ucp_ep_rkey_unpack");
  }

  void get(std::vector<char>& target) {
    const ucp_request_param_t plain{};
    side_->wait(ucp_get_nbx(endpoint_, target.data(), target.size(), at_, key_, &plain), "ucp_get_nbx");
  }

  void put(const std::vector<char>& source) {
    const ucp_request_param_t plain{};
    ucs_status_ptr_t request = ucp_put_nbx(endpoint_, source.data(), source.size(), at_, key_, &plain);
    ucs_status_ptr_t flush = ucp_ep_flush_nbx(endpoint_, &plain);
    side_->wait(request, "ucp_put_nbx");
    side_->wait(flush, "ucp_ep_flush_nbx");
  }

  /// Whether the last three bytes at the owner are those of `bytes`.
  bool owner_has(const std::vector<char>& bytes) {
    char tail[3];
    write_all(socket_, tail, 1);
    read_all(socket_, tail, sizeof tail);
    return std::memcmp(tail, bytes.data() + bytes.size() - sizeof tail, sizeof tail) == 0;
  }

  void explain() const { ucp_ep_print_info(endpoint_, stderr); }

 private:
  pid_t owner_ = -1;
  int socket_ = -1;
  Side* side_ = nullptr;  // never ended: this process is
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::uint64_t at_ = 0;
};

bool as_owner_made_it(const std::vector<char>& bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<char>(i % kPattern)) return false;
  }
  return true;
}

/// Runs `life` in a process of its own; whether it went well.
bool in_child(const std::function<void()>& life) {
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    life();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::uint64_t in_seconds(double seconds) { return now_ns() + static_cast<std::uint64_t>(seconds * 1e9); }

void measure(const std::string& row, char kind, std::size_t size, const Options& options) {
  Pair pair(kind == 's', size, options);
  pair.meet();
  std::vector<char> bytes(size, 'x');
  const auto operate = [&] { kind == 'w' ? pair.put(bytes) : pair.get(bytes); };
  operate();
  must(kind == 'w' || as_owner_made_it(bytes), "WRONG ANSWER: other bytes");
  if (std::getenv("W13_EXPLAIN") != nullptr) pair.explain();
  for (const std::uint64_t warm = in_seconds(kWarmSeconds); now_ns() < warm;) operate();
  std::vector<double> samples;
  for (const std::uint64_t end = in_seconds(options.seconds); now_ns() < end || samples.size() < kFewest;) {
    const std::uint64_t start = now_ns();
    operate();
    samples.push_back(static_cast<double>(now_ns() - start));
  }
  must(pair.owner_has(bytes), "WRONG ANSWER: other bytes at the owner");
  const bool as_time = size < 1u << 20;
  for (double& sample : samples) sample = as_time ? sample / 1e3 : static_cast<double>(size) / sample;
  print_row(row, "ucx", as_time ? "us" : "GB/s", samples);
}

/// -> ms; a pipe takes them out of the process that is fresh.
void measure_cold(const std::string& row, std::size_t size, const Options& options) {
  std::vector<double> samples;
  int pipes[2];
  must(pipe(pipes) == 0, "pipe");
  const auto life = [&] {
    Pair pair(false, size, options);
    const std::uint64_t start = now_ns();
    pair.meet();
    std::vector<char> bytes(size);
    pair.get(bytes);
    const double took_ms = static_cast<double>(now_ns() - start) / 1e6;
    must(as_owner_made_it(bytes), "WRONG ANSWER: other bytes");
    write_all(pipes[1], &took_ms, sizeof took_ms);
  };
  for (const std::uint64_t end = in_seconds(options.seconds); now_ns() < end || samples.size() < kFewest;) {
    must(in_child(life), "a fresh pair failed");
    double took_ms = 0;
    must(read(pipes[0], &took_ms, sizeof took_ms) == sizeof took_ms, "read");
    samples.push_back(took_ms);
  }
  print_row(row, "ucx", "ms", samples);
}

std::size_t size_of(const std::string& row) {
  char* unit = nullptr;
  const std::size_t count = std::strtoull(row.c_str() + row.find('_') + 1, &unit, 10);
  return *unit == 'K' ? count << 10 : *unit == 'M' ? count << 20 : count;
}

}  // namespace

int main(int argc, char** argv) {
  must(argc >= 4, "SECONDS CPU CPU_OF_OWNER ROW...");
  const Options options{std::atof(argv[1]), std::atoi(argv[2]), std::atoi(argv[3])};
  bool well = true;
  for (int i = 4; i < argc; ++i) {
    const std::string row = argv[i];
    must(row.size() > 5 && row.find('_') != std::string::npos, "ROW: W13<kind>_<size>");
    const char kind = row[3];
    // Each in a process of its own, which has no memory of UCX from the last one.
    if (kind == 'c') {
      well = in_child([&] { measure_cold(row, size_of(row), options); }) && well;
    } else {
      well = in_child([&] { measure(row, kind, size_of(row), options); }) && well;
    }
  }
  return well ? 0 : 1;
}
