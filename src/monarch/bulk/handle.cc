#include "monarch/bulk/handle.h"

#include <bit>

namespace monarch {

namespace {

struct Sip {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (; count > 0; --count) {
      v0 += v1, v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1, v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }
  void add(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  uint64_t result() const { return v0 ^ v1 ^ v2 ^ v3; }
};

bool lies_in(const BufferPart& part, const BufferPart& whole) {
  return part.offset >= whole.offset && part.size <= whole.size && part.offset - whole.offset <= whole.size - part.size;
}

}  // namespace

BufferKey sip_hash(const BufferKey& key, uint64_t first, uint64_t second) {
  Sip sip{key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d ^ 0xee, key.low ^ 0x6c7967656e657261,
          key.high ^ 0x7465646279746573};
  sip.add(first);
  sip.add(second);
  sip.add(uint64_t{16} << 56);  // how many bytes there were
  sip.v2 ^= 0xee;
  sip.rounds(4);
  const uint64_t low = sip.result();
  sip.v1 ^= 0xdd;
  sip.rounds(4);
  constexpr uint64_t kBits = UINT64_MAX >> 1;
  return {low & kBits, sip.result() & kBits};
}

void BufferHandle::confine() {
  const BufferPart meant{offset, reach()};
  if (within.size() == kWithinMax || (!within.empty() && within.back() == meant)) return;
  within.push_back(meant);
  key = sip_hash(key, meant.offset, meant.size);
}

std::optional<BufferKey> BufferHandle::key_made_of(BufferKey of_buffer) const {
  if (within.empty()) return of_buffer;
  if (within.size() > kWithinMax) return std::nullopt;
  BufferPart whole{0, UINT64_MAX};
  for (const BufferPart& part : within) {
    if (!lies_in(part, whole)) return std::nullopt;
    whole = part;
    of_buffer = sip_hash(of_buffer, part.offset, part.size);
  }
  BufferHandle here = *this;
  here.offset -= whole.offset;
  const bool is_inside = offset >= whole.offset && here.lies_within(whole.size);
  return is_inside ? std::optional(of_buffer) : std::nullopt;
}

bool BufferHandle::lies_within(uint64_t bytes) const {
  if (offset > bytes) return false;
  if (!is_block()) return dims.empty() && size <= bytes - offset;
  uint64_t reach = run, sum = run;
  for (const Memory::Dim& dim : dims) {
    uint64_t steps;
    if (dim.count == 0 || dim.stride < 0 || __builtin_mul_overflow(sum, dim.count, &sum) ||
        __builtin_mul_overflow(dim.count - 1, static_cast<uint64_t>(dim.stride), &steps) ||
        __builtin_add_overflow(reach, steps, &reach)) {
      return false;
    }
  }
  return sum == size && reach <= bytes - offset;
}

uint64_t BufferHandle::reach() const {
  if (!is_block()) return size;
  uint64_t reach = run;
  for (const Memory::Dim& dim : dims) reach += (dim.count - 1) * static_cast<uint64_t>(dim.stride);
  return reach;
}

Memory BufferHandle::memory_at(std::byte* data) const {
  return is_block() ? Memory(data + offset, run, dims) : Memory(data + offset, size);
}

}  // namespace monarch
