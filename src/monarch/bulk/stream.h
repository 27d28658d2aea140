// The stream of this process to one owner of buffers on another host: a connection, made when there is something to be read
// or written, and a thread that does that, one operation after the other. Some seconds after the last both are given up.
//
// Hosts may be cut off from each other but for the links of their gateways. So nobody waits for a connection for longer
// than a moment, nor for one that could not be made the last time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "monarch/bulk/bulk.h"
#include "monarch/bulk/stream_end.h"

namespace monarch {

// Where an owner's streams are connected to.
struct StreamAddress {
  std::string host;
  uint16_t port = 0;  // 0: nowhere
  bool enciphered = true;
  std::string why_not;
};

// How a stream's bytes go.
enum class Way : uint8_t { kNone, kEnciphered, kPlain, kUcx };

class Stream final : public std::enable_shared_from_this<Stream> {
 public:
  // kNotSo: nothing is under way of it any more, and another way is to be taken.
  using Done = std::function<void(BulkOutcome)>;
  struct Hooks {
    std::function<void(int64_t deadline_ns, std::function<void(StreamAddress)>)> find_address;
    // kUnavailable, with `busy`: the same again soon.
    std::function<Result<std::unique_ptr<Channel>>(const StreamAddress&, bool* busy)> connect;
    std::function<bool()> is_down;  // the owner
    // Asks the owner to close its end of what was begun with that number: kDone, it has; else nobody knows.
    std::function<void(uint64_t number, int64_t deadline_ns, std::function<void(BulkOutcome)>)> close_there;
    // Whether UCX is to be tried, where nothing is enciphered.
    bool tries_ucx = false;
  };

  Stream(NodeId owner, const HelloIdentity& identity, StreamSockets& sockets, Hooks hooks);
  ~Stream();

  // Any thread. A read or a write.
  void submit(BulkOperation operation, int64_t deadline_ns, Done done);
  // Any thread. How they go, once there is one, or can be; and why in no better way, for people.
  void explain(int64_t deadline_ns, std::function<void(Way, std::string)> done);
  // What is asked for from now on is kNotSo, and so is what waits. Any thread, its own too.
  void end();
  // The same, and returns when nothing runs any more.
  void stop();
  // Nothing waits here or is under way. Any thread; true for the moment.
  bool is_idle() const { return tasks_ == 0; }
  // Nor has it a connection, or a thread that is about to end.
  bool is_at_rest();
  // That its bytes go by UCX, or may, as far as is known.
  bool may_go_by_ucx();

 private:
  struct Task {
    BulkOperation operation;  // kFence: nothing but a connection is wanted
    int64_t deadline_ns = kNoDeadline;
    Done done;
    int64_t since_ns = 0;
  };

  // One connection, of one thread.
  struct Session {
    std::unique_ptr<StreamEnd> end;
    uint64_t number = 0;
    std::deque<Task> asked;  // reads whose answers are to come, in this order
    std::shared_ptr<UniqueFd> stop;
  };

  void finish(Task task, BulkOutcome outcome);
  bool start_thread();
  void add(Task task);
  void run();
  Status connect(Session& session);
  Status greet(Session& session, int64_t limit_ns);
  Status use_ucx(Session& session, int64_t limit_ns);
  void note_ucx(const Session& session, const Status& taken);
  std::optional<StreamAddress> find_address(int64_t limit_ns);
  bool wait_for_task(const Session& session);
  bool send_requests(Session& session);
  bool may_ask(const Session& session) const;
  bool take_answer(Session& session);
  bool write(Session& session, Task task);
  void close_there(const Session& session, Task task, BulkOutcome outcome);
  void give_up_all(Session& session);
  bool may_wait(const Task& task, int64_t now_ns) const;
  int64_t look();
  std::string explanation(bool is_there) const;

  const NodeId owner_;
  const HelloIdentity identity_;
  StreamSockets& sockets_;
  const Hooks hooks_;
  std::atomic<size_t> tasks_{0};

  std::mutex mutex_;  // a leaf
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  bool runs_ = false;     // a thread sees to what waits
  size_t threads_ = 0;    // and others that are about to end
  std::shared_ptr<UniqueFd> stop_event_;  // of the one that sees to it. shared: with that
  bool stopped_ = false;
  bool connected_ = false;
  Way way_ = Way::kNone;
  std::string why_not_;        // the last time; empty: it was connected
  std::string why_no_ucx_;     // the last time
  int64_t no_ucx_before_ns_ = 0;
  int64_t not_before_ns_ = 0;  // is it tried again
  std::optional<StreamAddress> address_;
};

}  // namespace monarch
