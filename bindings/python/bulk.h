// One-sided operations (monarch/bulk/bulk.h) of this process.
#pragma once

#include <memory>

namespace monarch {

class Bulk;
class ProcessRuntime;

// Before the first frame is handled. The cell of its node, too.
std::shared_ptr<Bulk> install_bulk(ProcessRuntime& runtime);

// GIL held: gives back what operations have kept of Python's memory, and what nobody will touch any more.
void release_kept_buffers();

// Of a worker, any thread: its main thread looks what there is to do.
void wake_main_thread();

}  // namespace monarch
