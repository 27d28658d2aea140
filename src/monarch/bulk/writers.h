// Neighbours that write to buffers of this process themselves (process_vm_writev), and what they may still be writing to.
//
// Each is admitted once: so its owner knows whose claims it has to look at, in the table of the writer (buffers.h), and is
// told by the kernel when that has ended. A buffer that is dropped is kept until no writer claims it, or those that do are
// gone with all their threads. Nobody tells it of the end of a write; it looks, again and again while there is something.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "monarch/bulk/buffers.h"
#include "monarch/bulk/neighbour.h"

namespace monarch {

// Any thread.
class Writers {
 public:
  static constexpr size_t kMax = 4096;
  using Claimed = std::pair<uint64_t, std::shared_ptr<const Buffer>>;  // shared: with others that use it

  ~Writers() { end({}); }

  // False: it cannot be seen from here what it does, or there are too many.
  [[nodiscard]] bool admit(const std::shared_ptr<Neighbour>& writer);
  // After that was closed to them: keeps it as long as one may write to it. Whether one may.
  bool keep(Claimed dropped);
  // Lets go of what nobody may write to any more. Whether something is left.
  bool look();
  // `open`: what has just been closed to them. Nobody is admitted from now on, and what somebody may still write to is
  // never given back: this process is about to end.
  void end(std::vector<Claimed> open);

  using Everybody = std::vector<std::shared_ptr<Neighbour>>;
  Everybody everybody() const;
  bool is_full() const;
  size_t kept() const;

 private:
  static bool is_claimed(const Everybody& writers, uint64_t claim);

  mutable std::mutex mutex_;  // a leaf
  std::map<Neighbour::Key, std::shared_ptr<Neighbour>> writers_;  // shared: with whatever else goes on with it
  std::vector<Claimed> kept_;
  size_t prune_at_ = 16;
  bool ended_ = false;
};

}  // namespace monarch
