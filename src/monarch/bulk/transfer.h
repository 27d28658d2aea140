// A read or a write that the owner has a part in: cut into pieces, several of which are under way at a time.
#pragma once

#include <memory>
#include <mutex>

#include "monarch/bulk/bulk.h"

namespace monarch {

class Transfer final : public std::enable_shared_from_this<Transfer> {
 public:
  enum class By : uint8_t {
    kParts,  // the bytes travel in messages
    kPulls,  // of a write: the owner fetches them, as a neighbour
  };
  // shared: with what is under way of it. `bulk` lives as long.
  static void start(std::shared_ptr<Bulk> bulk, BulkOperation operation, By by, int64_t deadline_ns, Bulk::OneDone done);

  // In messages: large enough for the cost of one to be small beside its bytes.
  static constexpr uint64_t kPartBytes = uint64_t{1} << 20;
  static constexpr uint64_t kPullBytes = uint64_t{32} << 20;
  // Of parts, so that the link is never idle: some MiB are under way.
  static constexpr uint32_t kWindow = 8;

 private:
  Transfer(std::shared_ptr<Bulk> bulk, BulkOperation operation, By by, int64_t deadline_ns, Bulk::OneDone done);
  void go_on();
  void send(uint64_t at, uint64_t size);
  void take(const Message& answer, uint64_t at, uint64_t size);
  void end_part(BulkOutcome outcome);
  bool is_read() const { return operation_.kind == BulkOperation::Kind::kRead; }

  const std::shared_ptr<Bulk> bulk_;
  BulkOperation operation_;
  const By by_;
  const int64_t deadline_ns_;
  Bulk::OneDone done_;
  uint64_t total_ = 0;
  std::mutex mutex_;  // a leaf
  uint64_t next_ = 0;
  uint32_t under_way_ = 0;
  bool finished_ = false;
  BulkOutcome outcome_;  // the first that was none
};

}  // namespace monarch
