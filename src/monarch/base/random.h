// Randomness enters through an interface, so that the simulator can give a seeded one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monarch {

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t next_u64() = 0;
};

// The kernel's generator. Thread-safe.
class SystemRandom final : public Random {
 public:
  uint64_t next_u64() override;
};

// Fills `size` bytes (at most 256) from the kernel's generator.
void fill_random(void* out, size_t size);

}  // namespace monarch
