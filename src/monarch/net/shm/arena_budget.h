// How much memory the arenas of a job may have together: a page that all its processes map, with a slot for each. A
// process takes a slot by a lock on the file that ends with it, so that what the dead had is found and used again, by
// whoever needs it, without anybody being told of a death.
//
// The page is not trusted with anything but memory: a process that writes lies there makes others send large parts
// through rings, or lets them have more than the limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "monarch/base/result.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

// What an arena asks before it touches new memory. Any thread; never blocks.
class ArenaBudget {
 public:
  virtual ~ArenaBudget() = default;
  // False: there is not so much left.
  virtual bool reserve(uint64_t bytes) = 0;
  virtual void give_back(uint64_t bytes) = 0;
};

class JobBudget final : public ArenaBudget {
 public:
  static constexpr uint32_t kSlots = 4000;  // processes of a job that have a share of their own; others have none

  // For the first process of a job: the page, to be inherited by the others (join() in each, this process too).
  static Result<UniqueFd> make(uint64_t bytes_max);
  // At most one in a process, which keeps `fd` open: to close any descriptor of this file gives the slot up. kUnavailable:
  // there is no slot left.
  static Result<std::shared_ptr<JobBudget>> join(int fd);

  bool reserve(uint64_t bytes) override;
  void give_back(uint64_t bytes) override;
  // Of all processes that live, and of those that have died since somebody last looked.
  uint64_t bytes_reserved() const;

 private:
  struct Page;
  JobBudget(int fd, Mapping mapping, uint32_t slot) : fd_(fd), mapping_(std::move(mapping)), slot_(slot) {}
  Page& page() const { return *static_cast<Page*>(mapping_.get()); }
  bool forget_the_dead();

  const int fd_;
  Mapping mapping_;
  const uint32_t slot_;
};

}  // namespace monarch
