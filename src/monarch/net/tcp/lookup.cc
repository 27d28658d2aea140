#include "monarch/net/tcp/lookup.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "monarch/base/system.h"

namespace monarch {

namespace {
std::atomic<int> threads{0};
}  // namespace

struct Lookup::State {
  enum class Step { kNone, kAsking, kDone };
  std::mutex mutex;
  Step step = Step::kNone;
  Result<std::vector<SocketAddress>> found = std::vector<SocketAddress>{};
  TcpEndpoint endpoint;
  Ask ask = nullptr;
};

Lookup::Lookup(TcpEndpoint endpoint, Ask ask) : endpoint_(std::move(endpoint)), state_(std::make_shared<State>()) {
  state_->endpoint = endpoint_;
  state_->ask = ask;
  const auto numeric = numeric_address(endpoint_);
  if (!numeric) return;
  state_->found = std::vector{*numeric};
  state_->step = State::Step::kDone;
}

Result<std::vector<SocketAddress>> Lookup::addresses(bool* pending) {
  *pending = false;
  const Error wait{ErrorCode::kUnavailable, "the address of '" + endpoint_.host + "' is not known yet"};
  std::lock_guard lock(state_->mutex);
  if (state_->step == State::Step::kDone) return state_->found;
  if (state_->step == State::Step::kAsking) {
    *pending = true;
    return wait;
  }
  if (threads.fetch_add(1) >= kThreadsMax) {
    --threads;
    return Error{ErrorCode::kUnavailable, "too many names of hosts are being looked up; does the name service answer?"};
  }
  const auto run = [](void* context) -> void* {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(context));
    auto found = (*state)->ask((*state)->endpoint);
    {
      std::lock_guard state_lock((*state)->mutex);
      (*state)->found = std::move(found);
      (*state)->step = State::Step::kDone;
    }
    --threads;
    return nullptr;
  };
  auto context = std::make_unique<std::shared_ptr<State>>(state_);
  pthread_t thread;
  if (!sys::start_thread(&thread, run, context.get())) {
    --threads;
    return sys::shortage_error("look up the name of a host");
  }
  static_cast<void>(context.release());  // the thread's
  pthread_detach(thread);
  state_->step = State::Step::kAsking;
  *pending = true;
  return wait;
}

void Lookup::forget() {
  std::lock_guard lock(state_->mutex);
  if (state_->step == State::Step::kDone && !numeric_address(endpoint_)) state_->step = State::Step::kNone;
}

}  // namespace monarch
