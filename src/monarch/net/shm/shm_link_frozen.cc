// The part of a shared-memory link that is about frozen memory (docs/design/037): what lies in such memory is not copied.
// Its descriptor goes to the peer once, over the control lane, and records name it by number.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/net/shm/shm_link.h"

namespace monarch {

namespace {
// Between looks at descriptors that wait to be sent.
constexpr int64_t kUnsentMinNs = 10'000'000, kUnsentMaxNs = 1'000'000'000;
}  // namespace

// ---- Sending ----

// Where the part lies; 0: it is copied. It stays there for as long as its sender holds it, so until the record is written.
uint64_t ShmLink::place_frozen(ByteSpan part) {
  const auto memory = Freezable::find_frozen(part);
  uint32_t number = 0;
  if (!memory || memory->fd() < 0 || !lend_frozen(memory, &number)) return 0;
  return ArenaLocation{number, false, static_cast<uint64_t>(part.data() - memory->data())}.pack();
}

// Makes sure that the peer has its descriptor, or will have it before it can see a record that names it.
bool ShmLink::lend_frozen(const std::shared_ptr<Freezable>& memory, uint32_t* number) {
  std::lock_guard lock(send_mutex_);
  if (closed() || !started_) return false;
  if (has_ended_loans_.load(std::memory_order_relaxed)) flush_forgotten();
  if (loans_.has_unsent() && control_.backlog() == 0) loans_.all_sent();
  FrozenLoans::Loan* loan = loans_.find(memory->id());
  if (loan == nullptr) {
    loan = loans_.lend(memory, producer_->taken());
    if (loan == nullptr) return false;
    try {
      memory->tell(weak_from_this());
      offer_frozen(*loan, memory);
    } catch (const std::bad_alloc&) {  // no record has named it, nor may one
      loans_.end(*loan, appended_);
      throw;
    }
  }
  *number = loan->number;
  return !loan->unsent;
}

// With send_mutex_ held.
void ShmLink::offer_frozen(FrozenLoans::Loan& loan, std::shared_ptr<Freezable> memory) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.dest = loan.number;
  header.token = loan.serial;
  header.method = kOffered;
  header.rank = memory->made_here() ? 1 : 0;
  if (control_.send(Outgoing{header, {}, {}}, memory->fd())) return;
  loans_.keep_unsent(loan, std::move(memory));
  if (unsent_watched_) return;
  watch_unsent(kUnsentMinNs);
  unsent_watched_ = true;
}

// What waits in the control lane is kept until it has gone, which nobody tells.
void ShmLink::watch_unsent(int64_t after_ns) {
  context_.reactor.after(after_ns, [weak = weak_from_this(), after_ns] {
    const auto self = weak.lock();
    if (!self) return;
    std::lock_guard lock(self->send_mutex_);
    if (!self->closed() && self->control_.backlog() != 0) {
      return self->watch_unsent(std::min(2 * after_ns, kUnsentMaxNs));
    }
    self->unsent_watched_ = false;
    self->loans_.all_sent();
  });
}

// Any thread, with any lock held, as the deleter of the last view: never waits.
void ShmLink::frozen_ended(uint64_t id) {
  if (closed()) return;
  {
    std::lock_guard lock(ended_loans_mutex_);
    ended_loans_.push_back(id);
    has_ended_loans_.store(true, std::memory_order_relaxed);
  }
  look_again();
}

// With send_mutex_ held. The peer is woken for it: it may be gigabytes that nobody else has.
void ShmLink::flush_forgotten() {
  send_mutex_.assert_held();
  std::vector<uint64_t> ended;
  {
    std::lock_guard lock(ended_loans_mutex_);
    ended.swap(ended_loans_);
    has_ended_loans_.store(false, std::memory_order_relaxed);
  }
  if (closed()) return;
  std::vector<FrozenLoans::Loan*> over;
  std::vector<uint64_t> numbers;
  for (const uint64_t id : ended) {
    if (FrozenLoans::Loan* const loan = loans_.find(id)) {
      over.push_back(loan);
      numbers.push_back(loan->number);
    }
  }
  if (over.empty()) return;
  FrameHeader header;
  header.kind = FrameKind::kReleased;
  header.method = kForgotten;
  write_record({header, as_byte_span(numbers.data(), numbers.size() * sizeof(uint64_t)), {}}, /*quiet=*/false);
  for (FrozenLoans::Loan* loan : over) loans_.end(*loan, appended_);
}

// ---- Receiving ----

// The memory is there. False: the part is not in it.
bool ShmLink::receive_frozen_part(const Message::ArenaRef& ref, Part& part) {
  std::shared_ptr<FreezableMap> map;
  {
    std::lock_guard lock(view_mutex_);
    map = frozen_view_.find(ref.location.segment);
  }
  std::shared_ptr<Freezable> memory = Freezable::use(map);
  const uint64_t offset = ref.location.offset;
  if (offset > memory->size() || part.size > memory->size() - offset) {
    wrong_ = "a part reaches beyond its frozen memory";
    return false;
  }
  part.data = memory->data() + offset;
  part.owner = std::move(memory);
  return true;
}

void ShmLink::on_forgotten(const Message& message) {
  std::vector<std::shared_ptr<void>> over;  // goes without the lock
  std::lock_guard lock(view_mutex_);
  for (size_t at = 0; at + sizeof(uint64_t) <= message.body.size(); at += sizeof(uint64_t)) {
    uint64_t number;
    std::memcpy(&number, message.body.data() + at, sizeof number);
    over.push_back(frozen_view_.forget(number));
  }
}

// As a segment of the arena is taken (on_control_read).
SocketLane::Verdict ShmLink::on_frozen_offered(SocketLane::Received& received) {
  const FrameHeader& header = received.message->header;
  std::lock_guard lock(view_mutex_);
  const bool was_lost = frozen_view_.has_lost(header.dest);
  const Status taken =
      received.fd_lost ? frozen_view_.lose(header.dest, header.token)
                       : frozen_view_.add(header.dest, header.token, header.rank == 1, std::move(received.fd));
  if (!taken && taken.error().code != ErrorCode::kUnavailable) return SocketLane::Verdict::kMalformed;
  if (frozen_view_.has_lost(header.dest)) {
    if (received.fd_lost) errno = EMFILE;
    short_of_room(taken ? sys::shortage_error("take frozen memory of another process").message : taken.error().message);
  } else if (was_lost) {
    found_room();
  }
  return SocketLane::Verdict::kDone;
}

}  // namespace monarch
