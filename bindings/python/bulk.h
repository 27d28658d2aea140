// One-sided operations (monarch/bulk/bulk.h) of this process.
#pragma once

#include <functional>
#include <memory>

#include "monarch/actor/pending_call.h"

namespace monarch {

class Bulk;
class ProcessRuntime;

// What a future of buffers waits for (FutureMode::kEach).
struct BulkCall : PendingCall {
  using PendingCall::PendingCall;
  std::function<void()> help;  // may be empty: called by whoever is about to wait for it, without the GIL
};

// Before the first frame is handled. The cell of its node, too.
std::shared_ptr<Bulk> install_bulk(ProcessRuntime& runtime);

// GIL held: gives back what operations have kept of Python's memory, and what nobody will touch any more.
void release_kept_buffers();

// Of a worker, any thread: its main thread looks what there is to do.
void wake_main_thread();

}  // namespace monarch
