// One-sided operations on the memory of other processes: what a process registers, any other that holds a handle of it
// reads and writes, without an actor or anybody else there doing anything for it.
//
// Which way the bytes go is found out for each pair of processes, when they first meet (neighbour.h): within a process, by
// memory that both have mapped, by the kernel, or by the link that messages go by. Reads of a neighbour are one-sided in
// the strict sense: its process may be stopped. So are writes that are neither small nor huge, by those whom the owner has
// admitted (writers.h). Whatever else there is, threads of the owner's Bulk do (bulk_cell.cc): they write, fetching from
// the other's memory where they can.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "monarch/actor/cell.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/result.h"
#include "monarch/base/well_known.h"
#include "monarch/bulk/copy_pool.h"
#include "monarch/bulk/handle.h"
#include "monarch/bulk/memory.h"
#include "monarch/bulk/neighbour.h"
#include "monarch/bulk/buffers.h"
#include "monarch/bulk/writers.h"

namespace monarch {

class StreamEnd;
class Streams;
struct StreamAddress;
struct StreamOptions;
struct Wanted;

struct BulkOperation {
  enum class Kind : uint8_t {
    kRead,          // the handle's bytes, all of them, into the first of `local`
    kWrite,         // all of `local` into the first of the handle's bytes
    kFetchAdd,      // the handle's bytes are a 64-bit integer: `operand` is added; the result is what it was
    kCompareSwap,   // the same: becomes `operand` if it is `expected`; the result is what it was
    kDrop,          // the buffer is given up
    kFence,         // what follows begins when all before it has ended
  };
  Kind kind = Kind::kFence;
  BufferHandle at;
  Memory local;
  std::shared_ptr<const void> keeper;  // of `local`; dropped on whatever thread, when nobody will touch that any more
  int64_t operand = 0, expected = 0;
};

struct BulkOutcome {
  enum class Code : uint8_t {
    kDone,
    kRefused,   // `refusal` says why
    kFault,     // memory is not there: somebody has unmapped it
    kDeadline,  // it may have happened in part
    kFailed,    // `failure`: the owner has ended, or cannot be reached
    kShortage,  // `text` says of what
    kNotBegun,  // something before a fence has failed
    kNotSo,     // between the two sides: another way has to be taken
  };
  Code code = Code::kDone;
  Refusal refusal = Refusal::kNone;
  int64_t value = 0;  // of an atomic operation
  std::string text;
  std::optional<Failure> failure;
};

class Bulk final : public Cell, public std::enable_shared_from_this<Bulk> {
 public:
  static ActorId id_of(NodeId node) { return well_known(node, WellKnown::kBulk); }

  // `node` and `timers` outlive all use of this, which ends with stop(). It is a cell of the node, of the index of id_of().
  Bulk(Node& node, Timers& timers, Paths paths = {});
  // First thing: this process is on a network. The reactor outlives this.
  void use_streams(Reactor& reactor, StreamOptions options);
  // Null: it is on none.
  Streams* streams() { return streams_.get(); }
  ~Bulk() override;

  // ---- The owner's side; any thread ----
  Result<BufferHandle> add(Memory memory, bool writable, std::shared_ptr<void> keeper);
  std::optional<BufferHandle> read_only(const BufferHandle& handle);
  // As the operation, for what is here.
  void drop(const BufferHandle& handle);
  size_t buffers() const;

  // ---- The other side; any thread ----
  using Done = std::function<void(std::vector<BulkOutcome>)>;
  // One outcome for each operation that is no fence. `done` is called once, on whatever thread, perhaps before this
  // returns: it must not block.
  void submit(std::vector<BulkOperation> operations, int64_t deadline_ns, Done done);
  // If that takes no longer than a message would: does it here and now.
  std::optional<BulkOutcome> try_now(const BulkOperation& operation, int64_t deadline_ns);
  // Which way reads of this go, and why no other; the first time its owner is asked who it is. `done` as above.
  void explain(const BufferHandle& handle, int64_t deadline_ns, std::function<void(Path, std::string)> done);

  // What others on this machine find this process by; and that an owner has said so in a handle, which spares asking it.
  Contact contact_here();
  void introduce(NodeId owner, const Contact& contact);

  // Whether reads of this go by the link, or a stream; false: by UCX or in another way, or its owner has not been met.
  bool goes_by_link(const BufferHandle& handle);

  // Whether this process, if the buffer is there, writes to it without its owner: that has admitted it by now.
  bool writes_itself(const BufferHandle& handle);

  // Nothing runs any more when it returns, and what is asked for later is refused. Not from a thread of this.
  void stop();

  void deliver(MessagePtr message) override;

 private:
  friend class Transfer;
  friend class Streams;
  enum Method : uint32_t {
    kContact = 1,  // answers a Contact
    kReadPart,     // a handle; answers with its bytes
    kWritePart,    // the same, with the bytes
    kPull,         // the same, with a Contact and where in that process they lie
    kAtomic,       // a handle, BulkOperation's kind, operand and expected
    kDropBuffer,   // a handle; answers when nobody here uses the buffer any more
    kOpenDoor,     // answers a StreamAddress
    kCloseStream,  // the number of a stream of the caller's; answers when nothing more is taken from it
    kExport,       // a handle; answers with a CudaExport of its buffer
    kAdmit,        // a Contact of who wants to write to buffers itself; answers whether it may
  };
  // To fewer bytes a message costs less than what a stream does; and the first waits for the connection.
  static constexpr uint64_t kStreamMin = 256 * 1024;
  using OneDone = std::function<void(BulkOutcome)>;
  using Met = std::function<void(std::shared_ptr<Neighbour>)>;  // null: it has not answered

  // The other side (bulk.cc).
  // `is_here`: small ones may be done on this thread.
  void start(BulkOperation operation, bool is_here, int64_t deadline_ns, OneDone done);
  void read(BulkOperation operation, int64_t deadline_ns, OneDone done);
  void read_near(const std::shared_ptr<Neighbour>& neighbour, BulkOperation operation, int64_t deadline_ns, OneDone done);
  void write(BulkOperation operation, bool is_here, int64_t deadline_ns, OneDone done);
  void write_far(BulkOperation operation, int64_t deadline_ns, OneDone done);
  void write_near(const std::shared_ptr<Neighbour>& neighbour, BulkOperation operation, int64_t deadline_ns, OneDone done);
  void seek_admission(const std::shared_ptr<Neighbour>& neighbour, NodeId owner, int64_t deadline_ns);
  void ask_once(const BulkOperation& operation, int64_t deadline_ns, OneDone done);
  void do_here(const BulkOperation& operation, int64_t deadline_ns, const OneDone& done);
  // Calls `done` at the deadline at the latest; what goes on then keeps what it needs.
  OneDone in_time(int64_t deadline_ns, OneDone done);
  void drop_in_time(const BufferHandle& handle, int64_t deadline_ns, const OneDone& done);
  BulkOutcome copy_here(const BulkOperation& operation) const;
  std::shared_ptr<Neighbour> known(NodeId node);
  void meet(NodeId node, int64_t deadline_ns, Met met);
  std::shared_ptr<Neighbour> meet(NodeId node, const Contact& contact);
  void meet_for(const BufferHandle& handle, int64_t deadline_ns, Met met);
  void ask_for_export(const std::shared_ptr<Neighbour>& neighbour, const BufferHandle& handle, int64_t deadline_ns,
                      Met met);
  void forget(NodeId node, const Neighbour& neighbour);
  using Answered = std::function<void(std::shared_ptr<PendingCall>)>;
  void ask(NodeId node, Method method, ByteSpan body, std::span<const ByteSpan> parts, int64_t deadline_ns,
           Answered answered);
  std::shared_ptr<Buffers> buffers_here() const;
  bool is_stopped() const;
  void forget_idle_maps_later();

  // Between hosts (bulk_streams.cc). False, of the first: not by a stream.
  bool by_stream(BulkOperation& operation, int64_t deadline_ns, const OneDone& done);
  void by_lane(uint32_t lane, BulkOperation operation, int64_t deadline_ns, OneDone done);
  void ask_for_stream(NodeId owner, int64_t deadline_ns, std::function<void(StreamAddress)> found);
  void ask_to_close_stream(NodeId owner, uint64_t number, int64_t deadline_ns, OneDone done);
  void open_door(const Message& request);
  void close_stream(const std::shared_ptr<Message>& request);
  void serve_stream(StreamEnd& end, NodeId peer);
  static Status say(StreamEnd& end, const BulkOutcome& outcome, int64_t deadline_ns);
  bool give_bytes(StreamEnd& end, const Wanted& wanted, NodeId peer, int64_t deadline_ns);
  bool take_bytes(StreamEnd& end, const Wanted& wanted, NodeId peer, int64_t deadline_ns);
  bool use_ucx(StreamEnd& end, ByteSpan address, uint64_t tag, int64_t deadline_ns);
  bool move_by_ucx(StreamEnd& end, const Wanted& wanted, bool to_write, NodeId peer, int64_t deadline_ns);

  // The owner's (bulk_cell.cc).
  void handle(const std::shared_ptr<Message>& request);
  void answer_contact(const Message& request);
  template <typename... Rest>
  std::optional<Wanted> wanted_of(const Message& request, Rest&... rest);
  void read_part(const std::shared_ptr<Message>& request);
  void write_part(const std::shared_ptr<Message>& request);
  void pull(const Message& request);
  void admit(const Message& request);
  Refusal drop_here(const BufferHandle& handle, bool by_owner, std::function<void()> done);
  void look_at_writers_later(int64_t delay_ns);
  void export_memory(const std::shared_ptr<Message>& request);
  void atomic(const Message& request);
  void drop_buffer(const std::shared_ptr<Message>& request);
  std::shared_ptr<const Buffer> find(const BufferHandle& handle, bool to_write, NodeId from, BulkOutcome* outcome) const;
  bool is_on_device(const BufferHandle& handle) const;
  void answer(const Message& request, const BulkOutcome& outcome, ByteSpan bytes = {});
  BulkOutcome apply_atomic(const BufferHandle& handle, BulkOperation::Kind kind, int64_t operand, int64_t expected,
                           NodeId from) const;

  Node& node_;
  Timers& timers_;
  const Paths paths_;
  CopyPool pool_;
  Writers writers_;
  std::atomic<bool> looks_at_writers_{false};
  std::unique_ptr<Streams> streams_;  // null: this process is on no network
  std::atomic<bool> looks_for_idle_maps_{false};
  mutable std::mutex mutex_;  // a leaf
  std::shared_ptr<Buffers> buffers_;  // null: nothing has been registered. shared: with who looks at it
  std::map<NodeId, std::shared_ptr<Neighbour>> met_;  // shared: with operations that are under way
  size_t prune_at_ = 16;
  bool stopped_ = false;
};

}  // namespace monarch
