#include "monarch/actor/cast_tree.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace monarch {

std::vector<TreeRange> split_tree(TreeRange hosts, uint32_t fan_out) {
  std::vector<TreeRange> groups;
  const uint32_t count = std::min(hosts.count, fan_out);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t size = hosts.count / count + (i < hosts.count % count ? 1 : 0);
    groups.push_back({hosts.first, size});
    hosts.first += size;
  }
  return groups;
}

namespace {
// That of split_tree() which `host` is in.
TreeRange group_of(TreeRange hosts, uint32_t fan_out, uint32_t host) {
  const uint32_t count = std::min(hosts.count, fan_out), size = hosts.count / count;
  const uint32_t in_larger = hosts.count % count * (size + 1), place = host - hosts.first;
  if (place < in_larger) return {host - place % (size + 1), size + 1};
  return {host - (place - in_larger) % size, size};
}
}  // namespace

uint32_t parent_in_tree(uint32_t hosts, uint32_t fan_out, uint32_t host) {
  uint32_t parent = kNoParent;
  TreeRange group = group_of({0, hosts}, fan_out, host);
  while (group.first != host) {
    parent = group.first;
    group = group_of({parent + 1, group.count - 1}, fan_out, host);
  }
  return parent;
}

std::string encode_tree(const Tree& tree, TreeRange range) {
  std::vector<TreeHost> hosts;
  std::vector<ByteSpan> targets;  // of neighbours in one piece
  hosts.reserve(range.count);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Tree::Host& host = tree.hosts[i];
    hosts.push_back(host.at);
    const ByteSpan own =
        tree.cast.targets.subspan(host.first_target * sizeof(CastTarget), host.at.targets * sizeof(CastTarget));
    if (!targets.empty() && targets.back().data() + targets.back().size() == own.data()) {
      targets.back() = {targets.back().data(), targets.back().size() + own.size()};
    } else {
      targets.push_back(own);
    }
  }
  TreeCast part = tree.cast;
  part.fan_out = tree.fan_out;
  part.hosts = as_byte_span(hosts.data(), hosts.size() * sizeof(TreeHost));
  return encode_tree_cast(part, targets);
}

TreeCast part_of(const TreeCast& cast, TreeRange range) {
  size_t before = 0, within = 0;
  for (uint32_t i = 0; i < range.first; ++i) before += cast.host(i).targets;
  for (uint32_t i = range.first; i < range.first + range.count; ++i) within += cast.host(i).targets;
  TreeCast part = cast;
  part.hosts = cast.hosts.subspan(range.first * sizeof(TreeHost), range.count * sizeof(TreeHost));
  part.targets = cast.targets.subspan(before * sizeof(CastTarget), within * sizeof(CastTarget));
  return part;
}

namespace {

// `visit(host, parent)`, each host of the tree after its parent.
template <typename Visit>
void walk(TreeRange hosts, uint32_t parent, uint32_t fan_out, const Visit& visit) {
  for (const TreeRange& group : split_tree(hosts, fan_out)) {
    visit(group.first, parent);
    walk({group.first + 1, group.count - 1}, group.first, fan_out, visit);
  }
}
template <typename Visit>
void walk(const Tree& tree, const Visit& visit) {
  walk({0, static_cast<uint32_t>(tree.hosts.size())}, kNoParent, tree.fan_out, visit);
}

uint32_t parent_of(const Tree& tree, uint32_t host) {
  return parent_in_tree(static_cast<uint32_t>(tree.hosts.size()), tree.fan_out, host);
}

bool has_children(const Tree& tree) { return tree.hosts.size() > tree.fan_out; }

// The same cast, to some of its hosts.
Tree part_of(const Tree& tree, std::vector<Tree::Host> hosts) {
  Tree part;
  part.source = tree.source;
  part.cast = tree.cast;
  part.bytes = tree.bytes;
  part.kept_bytes = tree.kept_bytes;
  part.deadline_ns = tree.deadline_ns;
  part.fan_out = tree.fan_out;
  part.hosts = std::move(hosts);
  return part;
}

}  // namespace

// ---- At the origin ----

CastOrigin::Pending* CastOrigin::pending(NodeId gateway, uint64_t session, uint64_t number) {
  Host* const host = find(hosts_, gateway, session);
  if (host == nullptr || number <= host->taken) return nullptr;
  const uint64_t place = number - host->taken - 1;
  return place < host->pending.size() ? &host->pending[place] : nullptr;
}

bool CastOrigin::takes(NodeId gateway, uint64_t session) const {
  const auto found = hosts_.find(gateway);
  return found == hosts_.end() || found->second.numbered == 0 || found->second.session == session;
}

namespace {
void send_all(const std::vector<std::shared_ptr<Tree>>& trees, CastOrigin::Sends& sends) {
  for (const auto& tree : trees) {
    const TreeRange all{0, static_cast<uint32_t>(tree->hosts.size())};
    for (const TreeRange& group : split_tree(all, tree->fan_out)) sends.push_back({tree, group});
  }
}
}  // namespace

// One for those that get everything directly, and one for the others. Throws std::bad_alloc: there is none.
CastOrigin::Planted CastOrigin::plant(Tree tree, int64_t now_ns, Sends& sends) {
  Planted planted;
  const auto is_direct = [&](const Tree::Host& host) {
    const Host* const known = find(hosts_, host.at.gateway, host.at.session);
    return known != nullptr && known->direct_until_ns > now_ns;
  };
  const auto direct_ones = std::stable_partition(tree.hosts.begin(), tree.hosts.end(), std::not_fn(is_direct));
  if (direct_ones != tree.hosts.end()) {
    Tree direct = part_of(tree, {direct_ones, tree.hosts.end()});
    direct.fan_out = std::max(static_cast<uint32_t>(direct.hosts.size()), kFanOutMin);
    tree.hosts.erase(direct_ones, tree.hosts.end());
    planted.push_back(plant_one(std::move(direct)));
  }
  if (!tree.hosts.empty()) planted.push_back(plant_one(std::move(tree)));
  const size_t sends_before = sends.size();
  try {
    send_all(planted, sends);
    trees_.insert(planted.begin(), planted.end());
  } catch (const std::bad_alloc&) {
    uproot(planted, sends, sends_before);
    throw;
  }
  return planted;
}

void CastOrigin::uproot(const Planted& planted, Sends& sends, size_t sends_before) {
  sends.resize(sends_before);
  for (const auto& each : planted) trees_.erase(each);
}

std::shared_ptr<Tree> CastOrigin::plant_one(Tree tree) {
  tree.waiting = static_cast<uint32_t>(tree.hosts.size());
  tree.made = ++made_;
  for (Tree::Host& host : tree.hosts) host.waiting = true, host.unsent = 0;
  return std::make_shared<Tree>(std::move(tree));
}

// Memory first, then numbers: a number that is given must come.
void CastOrigin::send(Tree tree, int64_t now_ns, Sends& sends) {
  tree.kept_bytes = cost_of(tree);
  std::vector<Host*> hosts;  // that have a place for it, as in `planted`
  hosts.reserve(tree.hosts.size());
  const size_t sends_before = sends.size();
  const Planted planted = plant(std::move(tree), now_ns, sends);
  try {
    for (const auto& each : planted) {
      for (const Tree::Host& host : each->hosts) {
        Host& to = hosts_[host.at.gateway];
        to.pending.emplace_back();
        hosts.push_back(&to);
      }
    }
  } catch (const std::bad_alloc&) {
    uproot(planted, sends, sends_before);
    for (Host* const to : hosts) to->pending.pop_back();
    throw;
  }
  auto next = hosts.begin();
  for (const auto& each : planted) {
    for (uint32_t i = 0; i < each->hosts.size(); ++i) {
      Host& to = **next++;
      TreeHost& at = each->hosts[i].at;
      to.session = at.session;
      at.number = ++to.numbered;
      if (to.pending.size() == 1) to.since_ns = now_ns;
      to.pending.back() = {each, i, 0};
      to.bytes += each->bytes;
      to.kept_bytes += each->kept_bytes;
    }
  }
}

void CastOrigin::not_sent(const Send& send) {
  send.tree->hosts[send.hosts.first].unsent = send.hosts.count;
  any_unsent_ = send.tree->any_unsent = true;
}

void CastOrigin::settle(const std::shared_ptr<Tree>& tree, uint32_t host, int64_t now_ns) {
  Tree::Host& settled = tree->hosts[host];
  if (!std::exchange(settled.waiting, false)) return;
  settled.settled_ns = now_ns;
  if (--tree->waiting == 0) trees_.erase(tree);
}

// To that host, by another one.
void CastOrigin::note_passed_on(const Tree& tree, uint32_t host, int64_t now_ns) {
  const uint32_t parent = parent_of(tree, host);
  if (parent == kNoParent) return;
  for (const uint32_t each : {host, parent}) {
    const auto found = hosts_.find(tree.hosts[each].at.gateway);
    if (found == hosts_.end()) continue;
    Host& known = found->second;
    if (now_ns - known.direct_until_ns >= known.direct_ns) known.direct_ns = 0;
  }
}

bool CastOrigin::taken(NodeId gateway, uint64_t session, uint64_t number, int64_t now_ns) {
  Host* const found = find(hosts_, gateway, session);
  if (found == nullptr) return true;  // that is over
  Host& host = *found;
  if (number > host.numbered) return false;
  for (; host.taken < number; ++host.taken) {
    const Pending first = std::move(host.pending.front());
    host.pending.pop_front();
    host.bytes -= first.tree->bytes;
    host.kept_bytes -= first.tree->kept_bytes;
    host.bytes_behind -= first.bytes_behind;
    host.since_ns = now_ns;
    note_passed_on(*first.tree, first.host, now_ns);
    settle(first.tree, first.host, now_ns);
  }
  return true;
}

// ---- What goes wrong ----

// Those that wait behind one of `bad`.
void CastOrigin::pick_behind(const std::shared_ptr<Tree>& tree, const Nodes& bad, Picked& picked) {
  if (!has_children(*tree)) return;
  std::vector<bool> behind(tree->hosts.size());
  walk(*tree, [&](uint32_t host, uint32_t parent) {
    if (parent == kNoParent) return;
    behind[host] = behind[parent] || bad.contains(tree->hosts[parent].at.gateway);
    if (behind[host] && tree->hosts[host].waiting) picked[tree].insert(host);
  });
}

void CastOrigin::send_directly(Host& host, int64_t now_ns) {
  if (host.direct_until_ns > now_ns) return;
  host.direct_ns = std::clamp(2 * host.direct_ns, kDirectNs, kDirectMaxNs);
  host.direct_until_ns = now_ns + host.direct_ns;
}

void CastOrigin::pass_by(const Nodes& bad, int64_t now_ns, Picked& picked) {
  for (const NodeId gateway : bad) {
    if (auto found = hosts_.find(gateway); found != hosts_.end()) {
      send_directly(found->second, now_ns);
      found->second.since_ns = now_ns;
    }
  }
  for (const auto& tree : trees_) pick_behind(tree, bad, picked);
}

// A host that has the number pending gets it from the new tree from now on. Throws std::bad_alloc: of the rest, all is as
// it was.
void CastOrigin::send_anew(const Picked& picked, int64_t now_ns, Sends& sends) {
  for (const auto& [tree, hosts] : picked) {
    std::vector<Tree::Host> again;
    again.reserve(hosts.size());
    for (const uint32_t i : hosts) again.push_back(tree->hosts[i]);
    for (const auto& each : plant(part_of(*tree, std::move(again)), now_ns, sends)) {
      for (uint32_t i = 0; i < each->hosts.size(); ++i) {
        const TreeHost& at = each->hosts[i].at;
        Pending& place = *pending(at.gateway, at.session, at.number);
        place.tree = each;
        place.host = i;
        hosts_.at(at.gateway).since_ns = now_ns;
      }
    }
    for (const uint32_t i : hosts) settle(tree, i, now_ns);
  }
}

void CastOrigin::missed(NodeId gateway, uint64_t session, uint64_t number, bool with_rest, int64_t now_ns,
                        Sends& sends) try {
  const Pending* const missing = pending(gateway, session, number);
  if (missing == nullptr) return;
  send_directly(hosts_.at(gateway), now_ns);
  Picked picked{{missing->tree, {missing->host}}};
  if (with_rest) pick_behind(missing->tree, {gateway}, picked);
  send_anew(picked, now_ns, sends);
} catch (const std::bad_alloc&) {
}

std::optional<CastOrigin::Send> CastOrigin::lost(NodeId gateway, uint64_t session, uint64_t number, int64_t now_ns,
                                                 Sends& sends) {
  const Pending* const missing = pending(gateway, session, number);
  if (missing == nullptr || std::exchange(missing->tree->hosts[missing->host].refused, true)) return std::nullopt;
  const Pending was = *missing;
  try {
    Picked picked;
    pick_behind(was.tree, {gateway}, picked);
    send_anew(picked, now_ns, sends);
  } catch (const std::bad_alloc&) {
  }
  return Send{was.tree, {was.host, 1}};
}

CastOrigin::Sends CastOrigin::down(NodeId gateway, uint64_t session, int64_t now_ns, Sends& sends) {
  Sends unfinished;
  const auto found = hosts_.find(gateway);
  if (found == hosts_.end() || (session != 0 && found->second.session != session)) return unfinished;
  unfinished.reserve(found->second.pending.size());
  for (const Pending& each : found->second.pending) {
    if (!each.tree->hosts[each.host].refused) unfinished.push_back({each.tree, {each.host, 1}});
    settle(each.tree, each.host, now_ns);
  }
  hosts_.erase(found);
  try {
    Picked picked;
    pass_by({gateway}, now_ns, picked);
    send_anew(picked, now_ns, sends);
  } catch (const std::bad_alloc&) {
  }
  return unfinished;
}

bool CastOrigin::is_stuck(const Host& host, int64_t since_ns, int64_t now_ns) {
  return now_ns - since_ns >= kStuckNs + static_cast<int64_t>(host.bytes >> 20) * kStuckNsPerMiB;
}

// By what is first in their turn. Not those who wait because one of these does not pass it on.
CastOrigin::Nodes CastOrigin::stuck(int64_t now_ns) const {
  Nodes stuck;
  for (const auto& [gateway, host] : hosts_) {
    if (host.pending.empty()) continue;
    const Tree& tree = *host.pending.front().tree;
    const uint32_t parent = parent_of(tree, host.pending.front().host);
    if (parent != kNoParent && tree.hosts[parent].waiting) continue;
    const int64_t came_ns = parent == kNoParent ? 0 : tree.hosts[parent].settled_ns;
    if (is_stuck(host, std::max(host.since_ns, came_ns), now_ns)) stuck.insert(gateway);
  }
  return stuck;
}

void CastOrigin::send_unsent(Sends& sends) {
  if (!any_unsent_) return;
  for (const auto& tree : trees_) {
    if (!tree->any_unsent) continue;
    for (uint32_t i = 0; i < tree->hosts.size(); ++i) {
      if (tree->hosts[i].unsent == 0) continue;
      sends.push_back({tree, {i, tree->hosts[i].unsent}});
      tree->hosts[i].unsent = 0;
    }
    tree->any_unsent = false;
  }
  any_unsent_ = false;
}

void CastOrigin::look(int64_t now_ns, Sends& sends) try {
  send_unsent(sends);
  pass_by_stuck(now_ns, sends);
} catch (const std::bad_alloc&) {
}

void CastOrigin::pass_by_stuck(int64_t now_ns, Sends& sends) {
  const Nodes bad = stuck(now_ns);
  if (bad.empty()) return;
  Picked picked;
  pass_by(bad, now_ns, picked);
  // Whoever was to pass it on may have no way to them any more, nor those behind them to each other.
  for (const auto& tree : trees_) {
    if (!has_children(*tree)) continue;
    std::vector<bool> in_doubt(tree->hosts.size());
    walk(*tree, [&](uint32_t i, uint32_t parent) {
      if (parent == kNoParent) return;
      in_doubt[i] = in_doubt[parent] || (bad.contains(tree->hosts[i].at.gateway) && !tree->hosts[parent].waiting);
      if (!in_doubt[i] || !tree->hosts[i].waiting) return;
      send_directly(hosts_.at(tree->hosts[i].at.gateway), now_ns);
      picked[tree].insert(i);
    });
  }
  send_anew(picked, now_ns, sends);
}

// ---- Direct frames ----

uint64_t CastOrigin::fence(NodeId gateway, uint64_t session) const {
  const Host* const host = find(hosts_, gateway, session);
  return host != nullptr && host->numbered > std::max(host->fenced, host->taken) ? host->numbered : 0;
}

void CastOrigin::fenced(NodeId gateway, uint64_t number) { hosts_.at(gateway).fenced = number; }

void CastOrigin::sent_behind(NodeId gateway, uint64_t session, uint64_t bytes) {
  const Host* const host = find(hosts_, gateway, session);
  Pending* const behind = host == nullptr ? nullptr : pending(gateway, session, host->fenced);
  if (behind == nullptr) return;
  behind->bytes_behind += bytes + kFrameCost;
  hosts_.at(gateway).bytes_behind += bytes + kFrameCost;
}

uint64_t CastOrigin::backlog(NodeId gateway) const {
  auto found = hosts_.find(gateway);
  return found == hosts_.end() ? 0 : found->second.kept_bytes + found->second.bytes_behind;
}

// ---- At a host ----

namespace {
bool is_fence(const Message& message) { return message.header.kind == FrameKind::kTreeFence; }
}  // namespace

void CastArrivals::direct(MessagePtr message) {
  if (!message && held_.empty()) return static_cast<void>(++passed_);
  if (!message) {
    FrameHeader no_fence;
    no_fence.kind = FrameKind::kTreeFence;
    message = Message::make(no_fence, {});
  }
  held_.push(std::move(message));
}

bool CastArrivals::cast(uint64_t number, Cast cast) {
  return number > taken_ && early_.emplace(number, std::move(cast)).second;
}

void CastArrivals::end(MessageQueue& held) {
  while (MessagePtr message = held_.pop()) {
    if (!is_fence(*message)) held.push(std::move(message));
  }
  early_.clear();
}

std::optional<CastArrivals::Arrival> CastArrivals::next() {
  while (const Message* first = held_.first()) {
    if (is_fence(*first) && first->header.token > taken_) break;
    ++passed_;
    MessagePtr message = held_.pop();
    if (!is_fence(*message)) return message;
  }
  auto first = early_.begin();
  if (first == early_.end() || first->first != taken_ + 1 || first->second.after > passed_) return std::nullopt;
  ++taken_;
  Cast cast = std::move(first->second);
  early_.erase(first);
  return cast;
}

}  // namespace monarch
