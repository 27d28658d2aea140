// Stands in for a UCX that has been built with CUDA, over the driver that stands in for CUDA's (fake_cuda.cc): messages of
// memory of the host or a device, by files of this machine whose descriptors go through unix sockets. As UCX, it works with
// a device in the context that it finds.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>

namespace {

using Code = int8_t;
constexpr Code kInProgress = 1, kIoError = -3, kBusy = -15;
constexpr uint64_t kMemoryTypes = 1 << 2, kHostAndCuda = 0b11;
constexpr uint32_t kMemoryType = 1 << 6;
constexpr int kCuda = 1;

struct Parameters {  // ucp_request_param_t
  uint32_t mask, flags;
  void* others[5];
  int memory_type;
  bool is_of_device() const { return (mask & kMemoryType) != 0 && memory_type == kCuda; }
};
struct Attributes {  // ucp_context_attr_t
  uint64_t mask;
  size_t request_size;
  int thread_mode;
  uint64_t memory_types;
};
struct Message {
  uint64_t tag, size;
  int file = -1;
};
struct Request {
  std::byte* into;
  uint64_t size, tag;
  bool is_of_device;
  Code code = kInProgress;
  uint64_t received = 0;
};
struct Worker {
  int socket = -1;
  sockaddr_un address{};
  socklen_t address_size = sizeof(address);
  std::deque<Message> messages;
  std::deque<Request*> requests;
};
struct Endpoint {
  Worker* worker;
  sockaddr_un to{};
  socklen_t to_size = 0;
};

// Of the driver that this process has loaded.
struct Driver {
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_synchronize)(void* stream);
  int (*to_host)(void* to, uint64_t from, size_t size, void* stream);
  int (*from_host)(uint64_t to, const void* from, size_t size, void* stream);

  static const Driver* find() {
    const char* const name = std::getenv("MONARCH_CUDA_LIBRARY");
    void* const library = name == nullptr ? nullptr : dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    static Driver found;
    found.stream_create = reinterpret_cast<decltype(stream_create)>(dlsym(library, "cuStreamCreate"));
    found.stream_synchronize = reinterpret_cast<decltype(stream_synchronize)>(dlsym(library, "cuStreamSynchronize"));
    found.to_host = reinterpret_cast<decltype(to_host)>(dlsym(library, "cuMemcpyDtoHAsync_v2"));
    found.from_host = reinterpret_cast<decltype(from_host)>(dlsym(library, "cuMemcpyHtoDAsync_v2"));
    return &found;
  }
};

template <typename Copy>
bool on_device(Copy copy) {
  const Driver* const driver = Driver::find();
  void* stream = nullptr;  // one for each copy: whoever is in no context gets none
  return driver != nullptr && driver->stream_create(&stream, 0) == 0 && copy(*driver, stream) == 0 &&
         driver->stream_synchronize(stream) == 0;
}

std::atomic<int> of_devices{0};
int some;  // what handles point to that nobody looks at

void* mapped(const Message& message, int rights) {
  return mmap(nullptr, message.size, rights, MAP_SHARED, message.file, 0);
}

Code fill(const Message& message, const std::byte* from, bool is_of_device) {
  if (message.size == 0) return 0;
  if (ftruncate(message.file, static_cast<off_t>(message.size)) != 0) return kIoError;
  void* const bytes = mapped(message, PROT_READ | PROT_WRITE);
  if (bytes == MAP_FAILED) return kIoError;
  bool is_done = true;
  if (is_of_device) {
    is_done = on_device([&](const Driver& driver, void* stream) {
      return driver.to_host(bytes, reinterpret_cast<uint64_t>(from), message.size, stream);
    });
  } else {
    std::memcpy(bytes, from, message.size);
  }
  munmap(bytes, message.size);
  return is_done ? 0 : kIoError;
}

Code empty(const Message& message, std::byte* into, bool is_of_device) {
  if (message.size == 0) return 0;
  void* const bytes = mapped(message, PROT_READ);
  if (bytes == MAP_FAILED) return kIoError;
  bool is_done = true;
  if (is_of_device) {
    is_done = on_device([&](const Driver& driver, void* stream) {
      return driver.from_host(reinterpret_cast<uint64_t>(into), bytes, message.size, stream);
    });
  } else {
    std::memcpy(into, bytes, message.size);
  }
  munmap(bytes, message.size);
  return is_done ? 0 : kIoError;
}

bool take_one(Worker& worker) {
  Message message;
  iovec piece{&message, offsetof(Message, file)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  if (recvmsg(worker.socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) return false;
  std::memcpy(&message.file, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(int));
  worker.messages.push_back(message);
  return true;
}

bool match(Worker& worker) {
  for (auto wanted = worker.requests.begin(); wanted != worker.requests.end(); ++wanted) {
    Request& request = **wanted;
    for (auto message = worker.messages.begin(); message != worker.messages.end(); ++message) {
      if (message->tag != request.tag) continue;
      request.received = message->size;
      request.code = message->size > request.size ? kIoError : empty(*message, request.into, request.is_of_device);
      close(message->file);
      worker.messages.erase(message);
      worker.requests.erase(wanted);
      return true;
    }
  }
  return false;
}

}  // namespace

extern "C" {

// For tests: how many messages have had memory of a device on this side.
int ucp_messages_of_devices() { return of_devices; }

Code ucp_config_read(const char*, const char*, void** config) { return *config = &some, 0; }
Code ucp_config_modify(void*, const char*, const char*) { return 0; }
void ucp_config_release(void*) {}
Code ucp_init_version(unsigned, unsigned, const void*, const void*, void** context) { return *context = &some, 0; }
Code ucp_context_query(void*, Attributes* attributes) {
  if ((attributes->mask & kMemoryTypes) != 0) attributes->memory_types = kHostAndCuda;
  return 0;
}

Code ucp_worker_create(void*, const void*, Worker** made) {
  auto* const worker = new Worker;
  worker->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  worker->address.sun_family = AF_UNIX;  // without a name it gets one
  bind(worker->socket, reinterpret_cast<sockaddr*>(&worker->address), sizeof(sa_family_t));
  getsockname(worker->socket, reinterpret_cast<sockaddr*>(&worker->address), &worker->address_size);
  *made = worker;
  return 0;
}
void ucp_worker_destroy(Worker* worker) {
  for (const Message& message : worker->messages) close(message.file);
  close(worker->socket);
  delete worker;
}
Code ucp_worker_get_address(Worker* worker, void** address, size_t* size) {
  return *address = &worker->address, *size = worker->address_size, 0;
}
void ucp_worker_release_address(void*, void*) {}
Code ucp_worker_get_efd(Worker* worker, int* fd) { return *fd = worker->socket, 0; }
Code ucp_worker_arm(Worker* worker) { return take_one(*worker) ? kBusy : Code{0}; }
unsigned ucp_worker_progress(Worker* worker) {
  const bool has_come = take_one(*worker);
  return match(*worker) || has_come ? 1 : 0;
}

Code ucp_ep_create(Worker* worker, const void* parameters, Endpoint** made) {
  const void* address;  // ucp_ep_params_t: behind its mask
  std::memcpy(&address, static_cast<const std::byte*>(parameters) + sizeof(uint64_t), sizeof address);
  auto* const endpoint = new Endpoint{worker};
  std::memcpy(&endpoint->to, address, worker->address_size);  // they are equally long
  endpoint->to_size = worker->address_size;
  *made = endpoint;
  return 0;
}
void* ucp_ep_close_nb(Endpoint* endpoint, unsigned) { return delete endpoint, nullptr; }

void* ucp_tag_send_nbx(Endpoint* endpoint, const void* bytes, size_t size, uint64_t tag, const Parameters* parameters) {
  if (parameters->is_of_device()) ++of_devices;
  const Message message{tag, size, memfd_create("message", MFD_CLOEXEC)};
  Code code = fill(message, static_cast<const std::byte*>(bytes), parameters->is_of_device());
  iovec piece{const_cast<Message*>(&message), offsetof(Message, file)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr header{};
  header.msg_name = &endpoint->to;
  header.msg_namelen = endpoint->to_size;
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* const files = CMSG_FIRSTHDR(&header);
  files->cmsg_level = SOL_SOCKET;
  files->cmsg_type = SCM_RIGHTS;
  files->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(files), &message.file, sizeof(int));
  if (code == 0 && sendmsg(endpoint->worker->socket, &header, MSG_NOSIGNAL) < 0) code = kIoError;
  close(message.file);
  return reinterpret_cast<void*>(static_cast<intptr_t>(code));
}
void* ucp_tag_recv_nbx(Worker* worker, void* into, size_t size, uint64_t tag, uint64_t, const Parameters* parameters) {
  if (parameters->is_of_device()) ++of_devices;
  auto* const request = new Request{static_cast<std::byte*>(into), size, tag, parameters->is_of_device()};
  worker->requests.push_back(request);
  match(*worker);
  return request;
}
Code ucp_request_check_status(Request* request) { return request->code; }
Code ucp_tag_recv_request_test(Request* request, uint64_t* tag_and_length) {
  tag_and_length[0] = request->tag;
  tag_and_length[1] = request->received;
  return request->code;
}
void ucp_request_cancel(Worker* worker, Request* request) {
  std::erase(worker->requests, request);
  request->code = kIoError;
}
void ucp_request_free(Request* request) { delete request; }
}
