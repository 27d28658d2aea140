#include "monarch/bulk/ucx.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/bulk/ucx_abi.h"

namespace monarch {

namespace {

constexpr char kLibrary[] = "libucp.so.0";
constexpr char kDevices[] = "/sys/class/infiniband";
// UCX would take the signals of crashes, which are ours to tell, and print about variables that it does not know.
constexpr const char* kSettings[][2] = {{"UCX_ERROR_SIGNALS", ""}, {"UCX_WARN_UNUSED_ENV_VARS", "n"}};
// What is given up by force ends so soon, or the worker is destroyed with it.
constexpr int64_t kCloseNs = 200'000'000;
// Before it sleeps: what is on its way comes within that, mostly.
constexpr int kSpins = 200;

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
  ucx::Functions ucp{};
  ucx::Context context = nullptr;
  std::string why_not;

  Library() {
    // Its constructors read them.
    bool ours[std::size(kSettings)];
    for (size_t i = 0; i < std::size(kSettings); ++i) {
      ours[i] = std::getenv(kSettings[i][0]) == nullptr;
      if (ours[i]) setenv(kSettings[i][0], kSettings[i][1], 0);
    }
    open();
    for (size_t i = 0; i < std::size(kSettings); ++i) {
      if (ours[i]) unsetenv(kSettings[i][0]);
    }
  }

 private:
  void open() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      why_not = why == nullptr ? kLibrary : why;
      return;
    }
    const auto find = [&](const char* name, auto& function) {
      const std::string whole = std::string("ucp_") + name;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, whole.c_str()));
      if (function == nullptr && why_not.empty()) why_not = std::string(kLibrary) + " has no " + whole;
    };
    find("config_read", ucp.config_read);
    find("config_modify", ucp.config_modify);
    find("config_release", ucp.config_release);
    find("init_version", ucp.init_version);
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
    find("request_cancel", ucp.request_cancel);
    find("request_free", ucp.request_free);
    if (!why_not.empty()) return;
    void* config = nullptr;
    if (const ucx::Code code = ucp.config_read(nullptr, nullptr, &config); code != ucx::kOk) {
      why_not = failed("ucp_config_read", code).message;
      return;
    }
    std::string nic;
    {
      std::lock_guard lock(chosen_mutex);
      nic = chosen_nic;
    }
    const ucx::Params params;
    ucx::Code code = nic.empty() ? ucx::kOk : ucp.config_modify(config, "NET_DEVICES", nic.c_str());
    if (code == ucx::kOk) code = ucp.init_version(ucx::kMajor, ucx::kMinor, &params, config, &context);
    if (code != ucx::kOk) why_not = failed("ucp_init", code).message + (nic.empty() ? "" : ", with the NIC " + nic);
    ucp.config_release(config);
  }
};

const Library& library() {
  static const auto* const loaded = new Library;  // never destroyed: threads may be in it
  return *loaded;
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

Result<std::unique_ptr<UcxEnd>> UcxEnd::make() {
  const Library& its = library();
  if (!its.why_not.empty()) return Error{ErrorCode::kUnavailable, its.why_not};
  std::unique_ptr<UcxEnd> made(new UcxEnd);
  const ucx::WorkerParams params;
  ucx::Code code = its.ucp.worker_create(its.context, &params, &made->worker_);
  if (code != ucx::kOk) {
    made->worker_ = nullptr;
    return failed("ucp_worker_create", code);
  }
  code = its.ucp.worker_get_efd(made->worker_, &made->event_);
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
  tag_ = tag;
  ucx::EndpointParams params;
  params.address = address.data();
  const ucx::Code code = library().ucp.ep_create(worker_, &params, &endpoint_);
  if (code == ucx::kOk) return Ok{};
  endpoint_ = nullptr;
  return failed("ucp_ep_create", code);
}

Status UcxEnd::send(ByteSpan bytes, const Pause& pause) {
  if (endpoint_ == nullptr) return Error{ErrorCode::kClosed, "it is closed"};
  const ucx::RequestParams params;
  return finish(library().ucp.tag_send_nbx(endpoint_, bytes.data(), bytes.size(), tag_, &params), pause);
}

Status UcxEnd::receive(std::span<std::byte> into, const Pause& pause) {
  if (endpoint_ == nullptr) return Error{ErrorCode::kClosed, "it is closed"};
  const ucx::RequestParams params;
  return finish(library().ucp.tag_recv_nbx(worker_, into.data(), into.size(), tag_, ~uint64_t{0}, &params), pause);
}

// Nothing touches the memory any more when it returns: a request that is given up ends with its endpoint, or its worker.
Status UcxEnd::finish(void* request, const Pause& pause) {
  const ucx::Functions& ucp = library().ucp;
  if (!is_request(request)) {
    const ucx::Code code = code_of(request);
    return code == ucx::kOk ? Status(Ok{}) : failed("a message", code);
  }
  Status outcome = Ok{};
  ucx::Code code;
  int idle = 0;
  while ((code = ucp.request_check_status(request)) == ucx::kInProgress && outcome) {
    if (ucp.worker_progress(worker_) != 0) {
      idle = 0;
    } else if (++idle > kSpins && ucp.worker_arm(worker_) == ucx::kOk) {
      outcome = pause(event_);
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
  ucp.request_free(request);
  return code == ucx::kOk ? Status(Ok{}) : failed("a message", code);
}

}  // namespace monarch
