// The jobs that this process has to do with: its own, those that it is a guest of because it holds handles of theirs, and
// the guests that its own job has. Only a table; ProcessRuntime acts on it. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "monarch/host/membership/job_address.h"
#include "monarch/net/identity.h"

namespace monarch {

class Jobs {
 public:
  explicit Jobs(const Identity& own) : own_(own) {}

  const Identity& own() const { return own_; }
  // As what to dial a node: nodes belong to this process's own job unless it has been told otherwise.
  Identity identity_for(NodeId node) const;
  // Whether this process has met any other job, as its guest or by a guest: then its messages may leave its job.
  bool any_other() const { return any_other_.load(std::memory_order_relaxed); }
  // Whether `node` is known to be of another job: a guest of ours, or of a job that we are a guest of.
  bool is_foreign(NodeId node) const;

  // ---- Jobs that this process is a guest of ----
  bool knows(const JobId& job) const;
  // This process is a guest of the job from now on. Nothing happens if it was before.
  void join(const JobAddress& address, const JobToken& token);
  // These nodes belong to that job, which is known. Returns why it has ended; empty: it has not.
  std::string add_nodes(const JobId& job, const std::vector<NodeId>& nodes);
  // The job has ended, or cannot be joined. It may be unknown so far. The first reason stays.
  void end(const JobAddress& address, const std::string& why);

  // Whether `script` is the one that knows how `node`, of another job, fares.
  bool speaks_for(NodeId script, NodeId node) const { return script != 0 && script_of(node) == script; }
  // 0: it is of no job that this process is a guest of.
  NodeId script_of(NodeId node) const;

  // ---- Guests of this process's own job ----
  void add_guest(NodeId node);
  bool is_guest(NodeId node) const;

  // The link to `node` has ended. What that says of nodes of other jobs: these are down, for this reason. nullopt: nothing
  // is known, or the node is of our own job.
  struct Loss {
    std::string why;
    std::vector<NodeId> nodes;
  };
  std::optional<Loss> on_link_lost(NodeId node, const Error& why);

 private:
  struct Job {
    JobAddress address;
    JobToken token{};
    std::unordered_set<NodeId> nodes;  // its script among them
    std::string ended;
  };
  Job& job_at(const JobAddress& address);  // mutex_ held

  const Identity own_;
  std::atomic<bool> any_other_{false};
  mutable std::mutex mutex_;
  std::map<JobId, Job> jobs_;
  std::unordered_map<NodeId, Job*> job_of_;  // nodes of jobs_, whose entries stay where they are
  std::unordered_set<NodeId> guests_;
};

}  // namespace monarch
