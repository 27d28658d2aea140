#include "monarch/bulk/ucx.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/bulk/cuda.h"
#include "monarch/bulk/ucx_abi.h"

namespace monarch {

namespace {

constexpr char kLibrary[] = "libucp.so.0";
constexpr char kDevices[] = "/sys/class/infiniband";
// What is given up by force ends so soon, or the worker is destroyed with it.
constexpr int64_t kCloseNs = 200'000'000;
// Before it sleeps: what is on its way comes within that, mostly.
constexpr int kSpins = 200;
// So often it is asked whether to go on, though there is no time to wait.
constexpr int64_t kAskNs = 10'000'000;
// Behind an address, which says itself how long it is.
constexpr size_t kAddressRoom = 1024;

bool is_request(ucx::Request request) {
  const auto value = reinterpret_cast<intptr_t>(request);
  return value > 0 || value < ucx::kErrorLast;
}
ucx::Code code_of(ucx::Request request) { return static_cast<ucx::Code>(reinterpret_cast<intptr_t>(request)); }

Error failed(const char* what, int code) {
  return {ErrorCode::kUnavailable, std::string("UCX: ") + what + " failed (" + std::to_string(code) + ")"};
}

std::mutex chosen_mutex;  // a leaf
std::string chosen_nic;

// The library, and this process's context in it; both stay until it ends.
struct Library {
  Library() { open(); }
  // Whether there is a context. Tried again each time: what was missing may have been a shortage.
  Status prepare() {
    if (!why_not_.empty()) return Error{ErrorCode::kUnavailable, why_not_};
    std::lock_guard lock(mutex_);
    return context != nullptr ? Status(Ok{}) : make_context();
  }

  ucx::Functions ucp{};
  ucx::Context context = nullptr;  // of who has prepared it
  bool takes_devices = false;      // as above

 private:
  void open() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      why_not_ = why == nullptr ? kLibrary : why;
      return;
    }
    // The signals of crashes are ours to tell.
    if (void* const disable = dlsym(library, "ucs_debug_disable_signals")) reinterpret_cast<void (*)()>(disable)();
    const auto find = [&](const char* name, auto& function) {
      const std::string whole = std::string("ucp_") + name;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, whole.c_str()));
      if (function == nullptr && why_not_.empty()) why_not_ = std::string(kLibrary) + " has no " + whole;
    };
    find("config_read", ucp.config_read);
    find("config_modify", ucp.config_modify);
    find("config_release", ucp.config_release);
    find("init_version", ucp.init_version);
    find("context_query", ucp.context_query);
    find("worker_create", ucp.worker_create);
    find("worker_destroy", ucp.worker_destroy);
    find("worker_get_address", ucp.worker_get_address);
    find("worker_release_address", ucp.worker_release_address);
    find("worker_get_efd", ucp.worker_get_efd);
    find("worker_arm", ucp.worker_arm);
    find("worker_progress", ucp.worker_progress);
    find("ep_create", ucp.ep_create);
    find("ep_close_nb", ucp.ep_close_nb);
    find("tag_send_nbx", ucp.tag_send_nbx);
    find("tag_recv_nbx", ucp.tag_recv_nbx);
    find("request_check_status", ucp.request_check_status);
    find("tag_recv_request_test", ucp.tag_recv_request_test);
    find("request_cancel", ucp.request_cancel);
    find("request_free", ucp.request_free);
  }

  Status make_context() {
    void* config = nullptr;
    ucx::Code code = ucp.config_read(nullptr, nullptr, &config);
    if (code != ucx::kOk) return failed("ucp_config_read", code);
    std::string nic;
    {
      std::lock_guard lock(chosen_mutex);
      nic = chosen_nic;
    }
    const ucx::Params params;
    if (!nic.empty()) code = ucp.config_modify(config, "NET_DEVICES", nic.c_str());
    if (code == ucx::kOk) code = ucp.init_version(ucx::kMajor, ucx::kMinor, &params, config, &context);
    ucp.config_release(config);
    ucx::ContextAttributes can;
    if (code == ucx::kOk) {
      const bool is_known = ucp.context_query(context, &can) == ucx::kOk;
      takes_devices = is_known && (can.memory_types >> ucx::kCuda & 1) != 0;
      return Ok{};
    }
    context = nullptr;
    Error why = failed("ucp_init", code);
    if (!nic.empty()) why.message += ", with the NIC " + nic;
    return why;
  }

  std::string why_not_;  // it cannot be loaded
  std::mutex mutex_;     // held while there is no context yet
};

Library& library() {
  static auto* const loaded = new Library;  // never destroyed: threads may be in it
  return *loaded;
}

std::atomic<bool> is_tried{false};
std::mutex loading_mutex;           // held while the thread is joined; that does not take it
std::optional<pthread_t> loading;  // the thread that does

ucx::RequestParams params_for(const Memory& memory) {
  ucx::RequestParams params;
  if (memory.is_on_device()) {
    params.mask = ucx::RequestParams::kMemoryType;
    params.memory_type = ucx::kCuda;
  }
  return params;
}

// UCX works with a device in the context that it finds.
Status where_it_is(const Memory& memory, const std::function<Status()>& move) {
  if (!memory.is_on_device()) return move();
  std::string why_not;
  const Cuda* const cuda = Cuda::find(&why_not);
  return cuda != nullptr ? cuda->within(memory.device(), move) : Status(Error{ErrorCode::kUnsupported, why_not});
}

}  // namespace

bool has_rdma_device() {
  DIR* const folder = opendir(kDevices);
  if (folder == nullptr) return false;
  bool found = false;
  while (const dirent* const entry = readdir(folder)) found |= entry->d_name[0] != '.';
  closedir(folder);
  return found;
}

void choose_nic(std::string name) {
  const bool is_device = !name.empty() && access((kDevices + ("/" + name)).c_str(), F_OK) == 0;
  std::lock_guard lock(chosen_mutex);
  chosen_nic = is_device ? name + ":1" : std::move(name);  // its first port
}

bool UcxEnd::is_loaded() {
  std::lock_guard lock(loading_mutex);
  if (!is_tried && !loading) {
    const auto load = [](void*) -> void* {
      static_cast<void>(can_be_made());
      return nullptr;
    };
    pthread_t thread;
    if (!sys::start_thread(&thread, load, nullptr)) return true;  // who asks loads it
    loading = thread;
  }
  return is_tried;
}

void UcxEnd::finish_loading() {
  if (in_forked_child()) return;
  std::lock_guard lock(loading_mutex);
  if (loading) pthread_join(*loading, nullptr);
  loading.reset();
}

Status UcxEnd::can_be_made() {
  if (in_forked_child()) return Error{ErrorCode::kUnavailable, "this process is a child of fork()"};
  Status can = library().prepare();
  is_tried = true;
  return can;
}

Result<std::unique_ptr<UcxEnd>> UcxEnd::make() {
  if (auto can = can_be_made(); !can) return can.error();
  const ucx::Functions& ucp = library().ucp;
  std::unique_ptr<UcxEnd> made(new UcxEnd);
  const ucx::WorkerParams params;
  ucx::Code code = ucp.worker_create(library().context, &params, &made->worker_);
  if (code != ucx::kOk) {
    made->worker_ = nullptr;
    return failed("ucp_worker_create", code);
  }
  code = ucp.worker_get_efd(made->worker_, &made->event_);
  if (code != ucx::kOk) return failed("ucp_worker_get_efd", code);
  return made;
}

UcxEnd::~UcxEnd() {
  if (in_forked_child()) return;
  close();
  if (worker_ != nullptr) library().ucp.worker_destroy(worker_);
}

void UcxEnd::close() {
  if (endpoint_ == nullptr) return;
  const ucx::Functions& ucp = library().ucp;
  const ucx::Request closing = ucp.ep_close_nb(std::exchange(endpoint_, nullptr), ucx::kCloseByForce);
  if (!is_request(closing)) return;
  const int64_t until_ns = monotonic_ns() + kCloseNs;
  while (ucp.request_check_status(closing) == ucx::kInProgress && monotonic_ns() < until_ns) ucp.worker_progress(worker_);
  ucp.request_free(closing);
}

Result<std::vector<std::byte>> UcxEnd::address() const {
  const ucx::Functions& ucp = library().ucp;
  void* address = nullptr;
  size_t size = 0;
  const ucx::Code code = ucp.worker_get_address(worker_, &address, &size);
  if (code != ucx::kOk) return failed("ucp_worker_get_address", code);
  const auto* const first = static_cast<const std::byte*>(address);
  std::vector<std::byte> bytes(first, first + size);
  ucp.worker_release_address(worker_, address);
  return bytes;
}

Status UcxEnd::connect(ByteSpan address, uint64_t tag) {
  if (address.empty()) return Error{ErrorCode::kUnavailable, "UCX: an address that is none"};
  tag_ = tag;
  std::vector<std::byte> whole(address.begin(), address.end());
  whole.resize(address.size() + kAddressRoom);  // whoever has sent it may have cut it off
  ucx::EndpointParams params;
  params.address = whole.data();
  const ucx::Code code = library().ucp.ep_create(worker_, &params, &endpoint_);
  if (code == ucx::kOk) return Ok{};
  endpoint_ = nullptr;
  return failed("ucp_ep_create", code);
}

bool UcxEnd::takes(const Memory& memory) const {
  return memory.in_one_piece() && (!memory.is_on_device() || library().takes_devices);
}

Status UcxEnd::send(const Memory& bytes, const Pause& pause) {
  if (endpoint_ == nullptr) return Error{ErrorCode::kClosed, "it is closed"};
  const ucx::RequestParams params = params_for(bytes);
  return where_it_is(bytes, [&] {
    return finish(library().ucp.tag_send_nbx(endpoint_, bytes.data(), bytes.size(), tag_, &params), pause);
  });
}

Status UcxEnd::receive(const Memory& into, const Pause& pause) {
  if (endpoint_ == nullptr) return Error{ErrorCode::kClosed, "it is closed"};
  ucx::RequestParams params = params_for(into);
  params.mask |= ucx::RequestParams::kNeverAtOnce;  // so that there is a request, which knows how much has come
  size_t received = 0;
  auto came = where_it_is(into, [&] {
    return finish(library().ucp.tag_recv_nbx(worker_, into.data(), into.size(), tag_, ~uint64_t{0}, &params), pause,
                  &received);
  });
  if (!came) return came;
  return received == into.size() ? Status(Ok{}) : Error{ErrorCode::kUnavailable, "UCX: a message of another size"};
}

// Nothing touches the memory any more when it returns: a request that is given up ends with its endpoint, or its worker.
Status UcxEnd::finish(void* request, const Pause& pause, size_t* received) {
  const ucx::Functions& ucp = library().ucp;
  if (!is_request(request)) {
    const ucx::Code code = code_of(request);
    return code == ucx::kOk ? Status(Ok{}) : failed("a message", code);
  }
  Status outcome = Ok{};
  ucx::Code code;
  int idle = 0;
  int64_t asked_ns = monotonic_ns();
  while ((code = ucp.request_check_status(request)) == ucx::kInProgress && outcome) {
    idle = ucp.worker_progress(worker_) != 0 ? 0 : idle + 1;
    const ucx::Code armed = idle > kSpins ? ucp.worker_arm(worker_) : ucx::kBusy;
    if (armed != ucx::kOk && armed != ucx::kBusy) {
      outcome = failed("ucp_worker_arm", armed);
    } else if (armed == ucx::kOk || monotonic_ns() - asked_ns > kAskNs) {
      outcome = pause(armed == ucx::kOk ? event_ : -1);
      asked_ns = monotonic_ns();
    }
  }
  if (code == ucx::kInProgress) {
    ucp.request_cancel(worker_, request);
    close();
    const int64_t until_ns = monotonic_ns() + kCloseNs;
    while (ucp.request_check_status(request) == ucx::kInProgress && monotonic_ns() < until_ns) ucp.worker_progress(worker_);
    if (ucp.request_check_status(request) == ucx::kInProgress) ucp.worker_destroy(std::exchange(worker_, nullptr));
    else ucp.request_free(request);
    return outcome;
  }
  ucx::TagInfo info;
  if (received != nullptr && code == ucx::kOk && ucp.tag_recv_request_test(request, &info) == ucx::kOk) {
    *received = info.length;
  }
  ucp.request_free(request);
  return code == ucx::kOk ? Status(Ok{}) : failed("a message", code);
}

}  // namespace monarch
