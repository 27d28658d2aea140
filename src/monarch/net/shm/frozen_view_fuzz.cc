// Any offers of frozen memory, losses and ends, in any order, with memory that is right, unsealed, empty or none: what is
// found then is whole, and nothing else is.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "monarch/net/shm/frozen_view.h"

namespace {

monarch::UniqueFd descriptor(uint8_t kind) {
  if (kind % 4 == 3) return monarch::UniqueFd();
  monarch::UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (kind % 4 != 2 && ftruncate(fd.get(), 4096) != 0) __builtin_trap();
  if (kind % 4 != 1) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  monarch::FrozenView view;
  for (; size >= 5; data += 5, size -= 5) {
    const uint64_t number = monarch::kFrozenFirst - 4 + data[1] % 16 + (data[2] % 8 == 0 ? monarch::kFrozenNumbers : 0);
    const uint64_t serial = data[3] % 8;
    if (data[0] % 3 == 0) static_cast<void>(view.add(number, serial, data[0] >= 128, descriptor(data[4])));
    if (data[0] % 3 == 1) static_cast<void>(view.lose(number, serial));
    if (data[0] % 3 == 2) view.forget(number);
    const auto map = view.find(number);
    if (!map) continue;
    const auto memory = monarch::Freezable::use(map);
    if (!monarch::is_frozen_number(number) || !memory->frozen() || memory->size() != 4096) __builtin_trap();
    static_cast<void>(static_cast<volatile std::byte*>(memory->data())[memory->size() - 1]);
  }
  return 0;
}
