// The script's end of what jobs have to do with each other: it publishes the job's token when a process of the job asks,
// and tells guests which of the job's processes have ended. An actor of the script's node, without a thread: it works on
// the reactor, so that it answers whatever the script is doing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/host/job_address.h"
#include "monarch/loop/reactor.h"

namespace monarch {

class Host;

class Reception final : public Cell {
 public:
  enum Method : uint32_t {
    kPublish = 1,  // no arguments; answers nothing, or fails with why not
    kHowAre = 2,   // node ids, 8 bytes each; answers for each why it is down, or an empty text
  };
  // Its id, for processes of the job and guests.
  static ActorId id_of(NodeId script) { return {script, script << 32 | kIndex}; }

  static Outgoing request(Method method, const std::vector<NodeId>& nodes);
  // What kHowAre has answered about `nodes`: those that are down, and why.
  static std::vector<std::pair<NodeId, std::string>> read_down(const Message& reply, const std::vector<NodeId>& nodes);

  Reception(Reactor& reactor, Node& node, Host& host, const JobAddress& address, const JobToken& token)
      : reactor_(reactor), node_(node), host_(host), path_(address.token_path()), token_(token) {}

  void deliver(MessagePtr message) override;

  // Reactor. Takes the token away, and publishes it no more.
  void close();

 private:
  static constexpr ActorIndex kIndex = 2;  // Node::new_actor_index() begins later

  void handle(const Message& request);
  Status publish();
  void answer_how_are(const Message& request);

  Reactor& reactor_;
  Node& node_;
  Host& host_;
  const std::string path_;
  const JobToken token_;
  bool closed_ = false;  // reactor
  bool published_ = false;
};

}  // namespace monarch
