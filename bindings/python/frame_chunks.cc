#include "frame_chunks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "monarch/base/system.h"
#include "python_api.h"

#ifdef Py_LIMITED_API  // which has no word for these chunks

namespace monarch {
void pool_frame_chunks() {}
}  // namespace monarch

#else

namespace monarch {

namespace {

constexpr size_t kChunkBytes = 16 << 10;  // DATA_STACK_CHUNK_SIZE of CPython 3.11 to 3.13; its arenas are larger
constexpr size_t kChunksPerSlab = 64;
constexpr size_t kSlabBytes = kChunksPerSlab * kChunkBytes;
constexpr size_t kFreeWithMemory = 64;  // beyond so many, a free chunk keeps its addresses only

PyObjectArenaAllocator usual;

class FrameChunks {
 public:
  // Null: there is no memory.
  void* take() {
    std::lock_guard lock(mutex_);
    if (free_.empty() && !add_slab()) return nullptr;
    std::byte* chunk = free_.back();
    free_.pop_back();
    return chunk;
  }

  // False: it is not from here.
  bool give_back(void* memory) {
    auto* chunk = static_cast<std::byte*>(memory);
    std::lock_guard lock(mutex_);
    const bool ours = std::any_of(slabs_.begin(), slabs_.end(),
                                  [&](std::byte* slab) { return chunk >= slab && chunk < slab + kSlabBytes; });
    if (!ours) return false;
    if (free_.size() >= kFreeWithMemory) madvise(chunk, kChunkBytes, MADV_DONTNEED);
    free_.push_back(chunk);
    return true;
  }

 private:
  bool add_slab() {
    void* memory = sys::map(kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (memory == MAP_FAILED) return false;
    madvise(memory, kSlabBytes, MADV_NOHUGEPAGE);  // most threads touch one page of a chunk
    auto* slab = static_cast<std::byte*>(memory);
    slabs_.push_back(slab);
    for (size_t i = kChunksPerSlab; i-- > 0;) free_.push_back(slab + i * kChunkBytes);
    return true;
  }

  std::mutex mutex_;
  std::vector<std::byte*> slabs_;  // for good
  std::vector<std::byte*> free_;
};

FrameChunks& chunks() {
  static auto* pool = new FrameChunks;  // never destroyed: threads give back to it while the process ends
  return *pool;
}

void* allocate(void* context, size_t size) {
  return size == kChunkBytes ? chunks().take() : usual.alloc(context, size);
}

void release(void* context, void* memory, size_t size) {
  if (size != kChunkBytes || !chunks().give_back(memory)) usual.free(context, memory, size);
}

}  // namespace

void pool_frame_chunks() {
  PyObject_GetArenaAllocator(&usual);
  PyObjectArenaAllocator pooled{usual.ctx, allocate, release};
  PyObject_SetArenaAllocator(&pooled);
}

}  // namespace monarch

#endif
