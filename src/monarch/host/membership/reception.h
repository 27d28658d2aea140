// The script's end of what jobs have to do with each other: it publishes the job's token when a process of the job asks,
// and tells guests which of the job's processes have ended. An actor of the script's node, without a thread: it works on
// the reactor, so that it answers whatever the script is doing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "monarch/actor/deaths.h"
#include "monarch/actor/node.h"
#include "monarch/base/well_known.h"
#include "monarch/host/membership/job_address.h"
#include "monarch/loop/reactor.h"

namespace monarch {

class Reception final : public Cell {
 public:
  enum Method : uint32_t {
    kPublish = 1,  // no arguments; answers nothing, or fails with why not
    kHowAre = 2,   // node ids, 8 bytes each; answers for each the Failure that it is down of, or nothing
  };
  // Its id, for processes of the job and guests.
  static ActorId id_of(NodeId script) { return well_known(script, WellKnown::kReception); }

  static Outgoing request(Method method, const std::vector<NodeId>& nodes);
  // What kHowAre has answered about `nodes`: those that are down, and why.
  static std::vector<std::pair<NodeId, Failure>> read_down(const Message& reply, const std::vector<NodeId>& nodes);

  // `before_publish` starts who takes the token away if this process cannot; `why_down`: null, the node is not.
  Reception(Reactor& reactor, Node& node, std::function<void()> before_publish,
            std::function<FailurePtr(NodeId)> why_down, const JobAddress& address, const JobToken& token)
      : reactor_(reactor),
        node_(node),
        before_publish_(std::move(before_publish)),
        why_down_(std::move(why_down)),
        path_(address.token_path()),
        token_(token) {}

  void deliver(MessagePtr message) override;

  // Reactor. Publishes the token no more.
  void close();
  // Afterwards, not on the reactor: it waits for files. Takes the token away.
  void remove_token();

 private:
  void handle(const std::shared_ptr<Message>& request);
  void publish(const std::shared_ptr<Message>& request);
  void on_written(const Status& done);
  void answer_how_are(const Message& request);

  Reactor& reactor_;
  Node& node_;
  const std::function<void()> before_publish_;
  const std::function<FailurePtr(NodeId)> why_down_;
  const std::string path_;
  const JobToken token_;
  bool closed_ = false;  // reactor
  bool published_ = false;
  // Files may be slow (a folder on a network): they are written by a thread that lives as long as that takes.
  std::thread writer_;
  std::vector<std::shared_ptr<Message>> askers_;  // who wait for it; shared: posted tasks must be copyable
};

}  // namespace monarch
