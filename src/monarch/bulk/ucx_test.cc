#include "monarch/bulk/ucx.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/bulk/ucx_abi.h"
#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>
#endif

namespace monarch::testing {
namespace {

#if __has_include(<ucp/api/ucp.h>)
#define SAME(ours, member, theirs, its) static_assert(offsetof(ucx::ours, member) == offsetof(theirs, its))
SAME(Params, mask, ucp_params_t, field_mask);
SAME(Params, features, ucp_params_t, features);
SAME(Params, several_threads, ucp_params_t, mt_workers_shared);
SAME(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME(EndpointParams, address, ucp_ep_params_t, address);
SAME(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME(EndpointParams, on_error, ucp_ep_params_t, err_handler.cb);
SAME(EndpointParams, argument, ucp_ep_params_t, err_handler.arg);
SAME(RequestParams, mask, ucp_request_param_t, op_attr_mask);
SAME(RequestParams, memory_type, ucp_request_param_t, memory_type);
SAME(ContextAttributes, mask, ucp_context_attr_t, field_mask);
SAME(ContextAttributes, memory_types, ucp_context_attr_t, memory_types);
SAME(TagInfo, length, ucp_tag_recv_info_t, length);
static_assert(sizeof(ucx::Params) >= sizeof(ucp_params_t) && sizeof(ucx::WorkerParams) >= sizeof(ucp_worker_params_t));
static_assert(sizeof(ucx::EndpointParams) >= sizeof(ucp_ep_params_t));
static_assert(sizeof(ucx::RequestParams) >= sizeof(ucp_request_param_t) && sizeof(ucx::Code) == sizeof(ucs_status_t));
static_assert(ucx::Params::kMask == (UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED));
static_assert(ucx::Params::kTagAndWakeup == (UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP));
static_assert(UCP_WORKER_PARAM_FIELD_THREAD_MODE == 1 && UCS_THREAD_MODE_SERIALIZED == 1);
static_assert(UCP_ERR_HANDLING_MODE_PEER == 1);
static_assert(ucx::EndpointParams::kMask == (UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                             UCP_EP_PARAM_FIELD_ERR_HANDLER));
static_assert(ucx::RequestParams::kNeverAtOnce == UCP_OP_ATTR_FLAG_NO_IMM_CMPL && ucx::kBusy == UCS_ERR_BUSY);
static_assert(sizeof(ucx::TagInfo) == sizeof(ucp_tag_recv_info_t));
static_assert(ucx::kInProgress == UCS_INPROGRESS && ucx::kErrorLast == UCS_ERR_LAST);
static_assert(ucx::kCloseByForce == UCP_EP_CLOSE_MODE_FORCE);
static_assert(sizeof(ucx::ContextAttributes) >= sizeof(ucp_context_attr_t));
static_assert(ucx::ContextAttributes::kMemoryTypes == UCP_ATTR_FIELD_MEMORY_TYPES && ucx::kCuda == UCS_MEMORY_TYPE_CUDA);
static_assert(ucx::RequestParams::kMemoryType == UCP_OP_ATTR_FIELD_MEMORY_TYPE);
#undef SAME
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// UCX patches functions of the C library that the sanitizers have, too.
const int unpatched = setenv("UCX_MEM_EVENTS", "no", 0);
#endif

Memory all_of(std::vector<std::byte>& bytes) { return Memory(bytes.data(), bytes.size()); }

Status wait_on(int fd) {
  pollfd waits{fd, POLLIN, 0};
  poll(&waits, 1, 50);
  return Ok{};
}

class UcxPair : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& end : ends) {
      auto made = UcxEnd::make();
      if (!made) GTEST_SKIP() << "not run: " << made.error().message;
      end = std::move(*made);
    }
    ASSERT_TRUE(ends[0]->connect(ends[1]->address().value(), 77));
    ASSERT_TRUE(ends[1]->connect(ends[0]->address().value(), 77));
  }
  std::unique_ptr<UcxEnd> ends[2];
};

TEST_F(UcxPair, MovesMessagesOfAnySize) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{300'001}, size_t{9} << 20}) {
    std::vector<std::byte> from(size), to(size);
    for (size_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
    std::thread other([&] { EXPECT_TRUE(ends[1]->receive(all_of(to), wait_on)); });
    EXPECT_TRUE(ends[0]->send(all_of(from), wait_on));
    other.join();
    EXPECT_EQ(from, to) << size;
  }
}

TEST_F(UcxPair, AMessageThatIsShorterIsNoneOfThatSize) {
  for (const size_t size : {size_t{100}, size_t{2} << 20}) {
    std::vector<std::byte> from(size), to(2 * size);
    std::thread other([&] { EXPECT_FALSE(ends[1]->receive(all_of(to), wait_on)); });
    EXPECT_TRUE(ends[0]->send(all_of(from), wait_on));
    other.join();
  }
}

TEST_F(UcxPair, ConnectsToNoAddressThatIsNone) {
  auto end = UcxEnd::make().value();
  EXPECT_FALSE(end->connect({}, 77));
}

TEST_F(UcxPair, IsAskedWhetherToGoOnWhileOthersKeepItBusy) {
  std::atomic<bool> over = false;
  std::thread busy([&] {
    std::byte byte{};
    while (!over && ends[0]->send(Memory(&byte, 1), wait_on)) continue;
  });
  ASSERT_TRUE(ends[1]->connect(ends[0]->address().value(), 78));  // what comes is not what it waits for
  std::vector<std::byte> to(1);
  const int64_t until_ns = monotonic_ns() + 50'000'000;
  EXPECT_FALSE(ends[1]->receive(all_of(to), [&](int fd) -> Status {
    if (fd >= 0) return wait_on(fd);
    return monotonic_ns() < until_ns ? Status(Ok{}) : Error{ErrorCode::kDeadline, "it took too long"};
  }));
  over = true;
  busy.join();
}

TEST_F(UcxPair, IsGivenUpWhenSomebodySaysSo) {
  std::vector<std::byte> bytes(size_t{4} << 20);
  int asked = 0;
  const auto told = ends[0]->send(all_of(bytes), [&](int) {
    return ++asked < 3 ? Status(Ok{}) : Error{ErrorCode::kDeadline, "it took too long"};
  });
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, ErrorCode::kDeadline);
  EXPECT_FALSE(ends[0]->send(all_of(bytes), wait_on));  // it is closed
}

TEST_F(UcxPair, AReceiverThatGivesUpIsNotWrittenToAnyMore) {
  std::vector<std::byte> from(size_t{4} << 20, std::byte{1}), to(from.size());
  const auto told = ends[1]->receive(all_of(to), [](int) { return Error{ErrorCode::kDeadline, "it took too long"}; });
  ASSERT_FALSE(told);
  int asked = 0;
  static_cast<void>(ends[0]->send(all_of(from), [&](int) {
    return ++asked < 5 ? Status(Ok{}) : Error{ErrorCode::kDeadline, "it took too long"};
  }));
  EXPECT_EQ(to, std::vector<std::byte>(to.size()));
}

}  // namespace
}  // namespace monarch::testing
