// Memory for the frames of Python threads.
#pragma once

namespace monarch {

// From now on the interpreter takes the 16 KiB chunks in which it keeps a thread's frames from slabs, and gives them back
// to these; by itself it maps and unmaps each, a twentieth of what a new actor costs. GIL held; once.
// Where only the stable ABI is used (python_api.h), nothing happens.
void pool_frame_chunks();

}  // namespace monarch
