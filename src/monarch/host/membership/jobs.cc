#include "monarch/host/membership/jobs.h"

namespace monarch {

Identity Jobs::identity_for(NodeId node) const {
  std::lock_guard lock(mutex_);
  auto found = job_of_.find(node);
  if (found == job_of_.end()) return own_;
  const Job& job = *found->second;
  return {own_.node, own_.key, job.address.job, job.token, true};
}

bool Jobs::is_foreign(NodeId node) const {
  if (!any_other()) return false;
  std::lock_guard lock(mutex_);
  return guests_.contains(node) || job_of_.contains(node);
}

bool Jobs::knows(const JobId& job) const {
  std::lock_guard lock(mutex_);
  return jobs_.contains(job);
}

Jobs::Job& Jobs::job_at(const JobAddress& address) {
  any_other_.store(true, std::memory_order_relaxed);
  auto [entry, is_new] = jobs_.try_emplace(address.job);
  Job& job = entry->second;
  if (is_new) {
    job.address = address;
    job.nodes.insert(address.script);
    job_of_.emplace(address.script, &job);
  }
  return job;
}

void Jobs::join(const JobAddress& address, const JobToken& token) {
  std::lock_guard lock(mutex_);
  job_at(address).token = token;
}

std::string Jobs::add_nodes(const JobId& job, const std::vector<NodeId>& nodes) {
  std::lock_guard lock(mutex_);
  Job& found = jobs_.at(job);
  for (NodeId node : nodes) {
    if (node == own_.node) continue;
    found.nodes.insert(node);
    job_of_.emplace(node, &found);
  }
  return found.ended;
}

void Jobs::end(const JobAddress& address, const std::string& why) {
  std::lock_guard lock(mutex_);
  Job& job = job_at(address);
  if (job.ended.empty()) job.ended = why;
}

NodeId Jobs::script_of(NodeId node) const {
  if (!any_other()) return 0;
  std::lock_guard lock(mutex_);
  const auto found = job_of_.find(node);
  return found == job_of_.end() ? 0 : found->second->address.script;
}

void Jobs::add_guest(NodeId node) {
  std::lock_guard lock(mutex_);
  any_other_.store(true, std::memory_order_relaxed);
  guests_.insert(node);
}

bool Jobs::is_guest(NodeId node) const {
  if (!any_other()) return false;
  std::lock_guard lock(mutex_);
  return guests_.contains(node);
}

std::optional<Jobs::Loss> Jobs::on_link_lost(NodeId node, const Error& why) {
  if (!any_other()) return std::nullopt;
  std::lock_guard lock(mutex_);
  const bool was_guest = guests_.erase(node) != 0;
  auto found = job_of_.find(node);
  if (found == job_of_.end()) {
    if (!was_guest) return std::nullopt;
    return Loss{"the process, which was a guest of this job, has ended", {node}};
  }
  Job& job = *found->second;
  if (node == job.address.script && job.ended.empty()) {
    // On one host a closed link is a death, and the death of its script the end of a job.
    job.ended = why.code == ErrorCode::kClosed ? job.address.name() + " has ended"
                                               : job.address.name() + " cannot be joined with the token in " +
                                                     job.address.token_path() + ": " + why.message;
    return Loss{job.ended, {job.nodes.begin(), job.nodes.end()}};
  }
  if (job.ended.empty()) return std::nullopt;
  return Loss{job.ended, {node}};
}

}  // namespace monarch
