// What stands in for UCX: a library whose messages never arrive. FAKE_UCP=endpoint: no endpoint can be made either.
// FAKE_UCP=slow: it takes three seconds to begin.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
using Code = int8_t;
constexpr Code kInProgress = 1, kUnreachable = -6;

bool mode_is(const char* name) {
  const char* const mode = std::getenv("FAKE_UCP");
  return mode != nullptr && std::strcmp(mode, name) == 0;
}
int some;  // what handles point to
}  // namespace

extern "C" {
Code ucp_config_read(const char*, const char*, void** config) { return *config = &some, 0; }
Code ucp_config_modify(void*, const char*, const char*) { return 0; }
void ucp_config_release(void*) {}
Code ucp_init_version(unsigned, unsigned, const void*, const void*, void** context) {
  if (mode_is("slow")) sleep(3);
  return *context = &some, 0;
}
Code ucp_worker_create(void*, const void*, void** worker) { return *worker = &some, 0; }
void ucp_worker_destroy(void*) {}
Code ucp_worker_get_address(void*, void** address, size_t* size) { return *address = &some, *size = sizeof some, 0; }
void ucp_worker_release_address(void*, void*) {}
Code ucp_worker_get_efd(void*, int* fd) {
  static const int event = eventfd(0, EFD_CLOEXEC);
  return *fd = event, 0;
}
Code ucp_worker_arm(void*) { return 0; }
unsigned ucp_worker_progress(void*) { return 0; }
Code ucp_ep_create(void*, const void*, void** endpoint) {
  return *endpoint = &some, mode_is("endpoint") ? kUnreachable : 0;
}
void* ucp_ep_close_nb(void*, unsigned) { return nullptr; }
void* ucp_tag_send_nbx(void*, const void*, size_t, uint64_t, const void*) { return &some; }
void* ucp_tag_recv_nbx(void*, void*, size_t, uint64_t, uint64_t, const void*) { return &some; }
Code ucp_request_check_status(void*) { return kInProgress; }
Code ucp_tag_recv_request_test(void*, void*) { return kInProgress; }
void ucp_request_cancel(void*, void*) {}
void ucp_request_free(void*) {}
}
