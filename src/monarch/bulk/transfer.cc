#include "monarch/bulk/transfer.h"

#include <algorithm>
#include <utility>

#include "monarch/bulk/bulk_frames.h"

namespace monarch {

namespace {

// A copy that is no longer than this is made on whatever thread an answer comes.
constexpr uint64_t kSmall = 64 * 1024;

}  // namespace

Transfer::Transfer(std::shared_ptr<Bulk> bulk, BulkOperation operation, By by, int64_t deadline_ns, Bulk::OneDone done)
    : bulk_(std::move(bulk)), operation_(std::move(operation)), by_(by), deadline_ns_(deadline_ns), done_(std::move(done)),
      total_(is_read() ? operation_.at.size : operation_.local.size()) {}

void Transfer::start(std::shared_ptr<Bulk> bulk, BulkOperation operation, By by, int64_t deadline_ns, Bulk::OneDone done) {
  std::shared_ptr<Transfer>(new Transfer(std::move(bulk), std::move(operation), by, deadline_ns, std::move(done)))->go_on();
}

void Transfer::go_on() {
  for (;;) {
    uint64_t at, size;
    bool is_over = false;
    std::shared_ptr<const void> keeper;  // the part may be given up, and all be over, while it is being sent
    {
      std::lock_guard lock(mutex_);
      is_over = next_ == total_ || outcome_.code != BulkOutcome::Code::kDone;
      if (finished_ || under_way_ == kWindow || (is_over && under_way_ > 0)) return;
      finished_ = is_over;
      at = next_;
      size = std::min(total_ - at, by_ == By::kParts ? kPartBytes : kPullBytes);
      if (!is_over) {
        next_ += size;
        ++under_way_;
        keeper = operation_.keeper;
      }
    }
    if (!is_over) {
      send(at, size);
      continue;
    }
    {
      std::lock_guard lock(mutex_);
      keeper = std::move(operation_.keeper);
    }
    keeper.reset();
    return std::exchange(done_, nullptr)(std::move(outcome_));
  }
}

void Transfer::send(uint64_t at, uint64_t size) {
  const Wanted wanted{operation_.at, at, size, machine_number(), deadline_ns_};
  ValueWriter body;
  std::unique_ptr<std::byte[]> gathered;
  ByteSpan bytes;
  Bulk::Method method = Bulk::kReadPart;
  if (by_ == By::kPulls) {
    method = Bulk::kPull;
    const auto there = reinterpret_cast<uint64_t>(operation_.local.data()) + at;
    encode(body, std::make_tuple(wanted, bulk_->contact_here(), there));
  } else {
    encode(body, std::make_tuple(wanted));
  }
  if (!is_read() && by_ == By::kParts) {
    method = Bulk::kWritePart;
    if (operation_.local.is_contiguous()) {
      bytes = {operation_.local.data() + at, size};
    } else {
      gathered = std::make_unique_for_overwrite<std::byte[]>(size);
      if (!operation_.local.gather(at, size, gathered.get())) {
        return end_part({BulkOutcome::Code::kFault, Refusal::kNone, 0, "", {}});
      }
      bytes = {gathered.get(), size};
    }
  }
  const std::span<const ByteSpan> parts(&bytes, bytes.empty() ? 0 : 1);
  bulk_->ask(operation_.at.owner, method, body.written(), parts, deadline_ns_,
             [self = shared_from_this(), at, size](std::shared_ptr<PendingCall> call) {
               const auto take = [self, call = std::move(call), at, size] { self->take(*call->reply(0), at, size); };
               const bool is_long = size > kSmall || self->operation_.local.is_on_device();
               const bool copies = self->by_ == By::kParts && is_long;
               copies ? self->bulk_->pool_.run(take) : take();
             });
}

void Transfer::take(const Message& answer, uint64_t at, uint64_t size) {
  BulkOutcome outcome = outcome_of(answer);
  if (is_read() && outcome.code == BulkOutcome::Code::kDone) {
    if (answer.parts.size() == 1 && answer.parts[0].size == size) {
      const bool is_there = operation_.local.scatter(at, size, answer.parts[0].data);
      if (!is_there) outcome.code = BulkOutcome::Code::kFault;
    } else {
      outcome = {BulkOutcome::Code::kShortage, Refusal::kNone, 0, "an answer without the bytes that were asked for", {}};
    }
  }
  end_part(std::move(outcome));
}

void Transfer::end_part(BulkOutcome outcome) {
  {
    std::lock_guard lock(mutex_);
    --under_way_;
    if (outcome_.code == BulkOutcome::Code::kDone) outcome_ = std::move(outcome);
  }
  go_on();
}

}  // namespace monarch
