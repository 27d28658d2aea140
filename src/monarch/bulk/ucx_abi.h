// What is used of UCX's C interface (ucp/api/ucp.h, version 1.10 and later), declared here so that nothing of UCX is needed
// to build. A test compares it with UCX's own headers where those are (ucx_test.cc). Structures grow at their end, and a
// mask says which members count: of each only the beginning is named.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monarch::ucx {

using Context = void*;
using Worker = void*;
using Endpoint = void*;
using Request = void*;  // null: done; the last few values: minus a status
using Code = int8_t;    // ucs_status_t

constexpr Code kOk = 0, kInProgress = 1, kBusy = -15, kErrorLast = -100;
constexpr unsigned kMajor = 1, kMinor = 10;

struct Params {
  uint64_t mask = kMask, features = kTagAndWakeup;
  size_t request_size = 0;
  void *init = nullptr, *cleanup = nullptr;
  uint64_t tag_sender_mask = 0;
  int several_threads = 1;  // each with a worker of its own
  uint64_t room[32]{};
  static constexpr uint64_t kMask = 1 << 0 | 1 << 5, kTagAndWakeup = 1 << 0 | 1 << 4;
};

struct WorkerParams {
  uint64_t mask = 1;
  unsigned thread_mode = 1;  // one thread at a time
  uint64_t room[64]{};
};

struct EndpointParams {
  uint64_t mask = kMask;
  const void* address = nullptr;
  unsigned error_mode = 1;  // what is under way fails when the peer has
  void (*on_error)(void*, Endpoint, Code) = [](void*, Endpoint, Code) {};  // without one it prints
  void* argument = nullptr;
  uint64_t room[32]{};
  static constexpr uint64_t kMask = 1 << 0 | 1 << 1 | 1 << 2;
};

struct RequestParams {
  uint32_t mask = 0, flags = 0;
  void* reserved[5]{};
  int memory_type = 0;  // ucs_memory_type_t
  uint64_t room[25]{};
  static constexpr uint32_t kMemoryType = 1 << 6, kNeverAtOnce = 1 << 16;
};
constexpr int kCuda = 1;

// What a context can do.
struct ContextAttributes {
  uint64_t mask = kMemoryTypes;
  size_t request_size = 0;
  int thread_mode = 0;
  uint64_t memory_types = 0;  // a bit for each
  uint64_t room[32]{};
  static constexpr uint64_t kMemoryTypes = 1 << 2;
};

// Of what has been received.
struct TagInfo {
  uint64_t tag = 0;
  size_t length = 0;
};

constexpr unsigned kCloseByForce = 0;

// The functions, by the names that they have behind "ucp_".
struct Functions {
  Code (*config_read)(const char*, const char*, void**);
  Code (*config_modify)(void*, const char*, const char*);
  void (*config_release)(void*);
  Code (*init_version)(unsigned, unsigned, const Params*, const void*, Context*);
  Code (*context_query)(Context, ContextAttributes*);
  Code (*worker_create)(Context, const WorkerParams*, Worker*);
  void (*worker_destroy)(Worker);
  Code (*worker_get_address)(Worker, void**, size_t*);
  void (*worker_release_address)(Worker, void*);
  Code (*worker_get_efd)(Worker, int*);
  Code (*worker_arm)(Worker);
  unsigned (*worker_progress)(Worker);
  Code (*ep_create)(Worker, const EndpointParams*, Endpoint*);
  Request (*ep_close_nb)(Endpoint, unsigned);
  Request (*tag_send_nbx)(Endpoint, const void*, size_t, uint64_t, const RequestParams*);
  Request (*tag_recv_nbx)(Worker, void*, size_t, uint64_t, uint64_t, const RequestParams*);
  Code (*request_check_status)(Request);
  Code (*tag_recv_request_test)(Request, TagInfo*);
  void (*request_cancel)(Worker, Request);
  void (*request_free)(Request);
};

}  // namespace monarch::ucx
