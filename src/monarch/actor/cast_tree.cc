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

std::string encode_tree(const Tree& tree, TreeRange range) {
  std::vector<TreeHost> hosts;
  std::vector<std::byte> targets;
  hosts.reserve(range.count);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Tree::Host& host = tree.hosts[i];
    hosts.push_back(host.at);
    const ByteSpan own =
        tree.cast.targets.subspan(host.first_target * sizeof(CastTarget), host.at.targets * sizeof(CastTarget));
    targets.insert(targets.end(), own.begin(), own.end());
  }
  TreeCast part = tree.cast;
  part.fan_out = tree.fan_out;
  part.hosts = as_byte_span(hosts.data(), hosts.size() * sizeof(TreeHost));
  part.targets = targets;
  return encode_tree_cast(part);
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

// `visit(host, parent)`, each host of the tree after its parent; the parent of the first ones is none.
constexpr uint32_t kNoParent = UINT32_MAX;
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

}  // namespace

// ---- At the origin ----

void CastOrigin::send(Tree tree, int64_t now_ns, Sends& sends) {
  for (Tree::Host& host : tree.hosts) host.at.number = ++hosts_[host.at.gateway].numbered;
  add_both(std::move(tree), now_ns, sends);
}

void CastOrigin::add_both(Tree tree, int64_t now_ns, Sends& sends) {
  const auto is_direct = [&](const Tree::Host& host) { return hosts_[host.at.gateway].direct_until_ns > now_ns; };
  const auto direct_ones = std::stable_partition(tree.hosts.begin(), tree.hosts.end(), std::not_fn(is_direct));
  if (direct_ones != tree.hosts.end()) {
    Tree direct = tree;
    direct.hosts.assign(direct_ones, tree.hosts.end());
    tree.hosts.erase(direct_ones, tree.hosts.end());
    add(std::move(direct), now_ns, sends, true);
  }
  add(std::move(tree), now_ns, sends, false);
}

// Their numbers are given; a host that has the number pending gets it from this tree from now on.
void CastOrigin::add(Tree made, int64_t now_ns, Sends& sends, bool direct) {
  if (made.hosts.empty()) return;
  const auto count = static_cast<uint32_t>(made.hosts.size());
  if (direct) made.fan_out = std::max(count, kFanOutMin);
  made.waiting = count;
  made.made = ++made_;
  const auto tree = std::make_shared<Tree>(std::move(made));
  trees_.insert(tree);
  for (uint32_t i = 0; i < count; ++i) {
    tree->hosts[i].waiting = true;
    Host& host = hosts_[tree->hosts[i].at.gateway];
    if (Pending* pending = find(tree->hosts[i].at.gateway, tree->hosts[i].at.number)) {
      *pending = {tree, i};
      continue;
    }
    if (host.pending.empty()) host.since_ns = now_ns;
    host.pending.push_back({tree, i});
    host.bytes += tree->bytes;
  }
  for (const TreeRange& group : split_tree({0, count}, tree->fan_out)) sends.push_back({tree, group});
}

CastOrigin::Pending* CastOrigin::find(NodeId gateway, uint64_t number) {
  auto found = hosts_.find(gateway);
  if (found == hosts_.end() || number <= found->second.taken) return nullptr;
  const uint64_t place = number - found->second.taken - 1;
  return place < found->second.pending.size() ? &found->second.pending[place] : nullptr;
}

void CastOrigin::settle(const std::shared_ptr<Tree>& tree, uint32_t host) {
  if (std::exchange(tree->hosts[host].waiting, false) && --tree->waiting == 0) trees_.erase(tree);
}

bool CastOrigin::taken(NodeId gateway, uint64_t number, int64_t now_ns) {
  auto found = hosts_.find(gateway);
  if (found == hosts_.end()) return true;  // it has been held for dead
  Host& host = found->second;
  if (number > host.numbered) return false;
  for (; host.taken < number; ++host.taken) {
    const Pending pending = std::move(host.pending.front());
    host.pending.pop_front();
    host.bytes -= pending.tree->bytes;
    host.since_ns = now_ns;
    settle(pending.tree, pending.host);
  }
  if (host.taken >= host.fenced) host.bytes_behind = 0;
  return true;
}

// ---- What goes wrong ----

// Those that wait behind one of `bad`.
void CastOrigin::pick_behind(const std::shared_ptr<Tree>& tree, const Nodes& bad, Picked& picked) {
  std::vector<bool> behind(tree->hosts.size());
  walk(*tree, [&](uint32_t host, uint32_t parent) {
    if (parent == kNoParent) return;
    behind[host] = behind[parent] || bad.contains(tree->hosts[parent].at.gateway);
    if (behind[host] && tree->hosts[host].waiting) picked[tree].insert(host);
  });
}

void CastOrigin::pass_by(const Nodes& bad, int64_t now_ns, Picked& picked) {
  for (const NodeId gateway : bad) {
    if (auto found = hosts_.find(gateway); found != hosts_.end()) {
      found->second.direct_until_ns = now_ns + kDirectNs;
      found->second.since_ns = now_ns;
    }
  }
  for (const auto& tree : trees_) pick_behind(tree, bad, picked);
}

void CastOrigin::send_anew(const Picked& picked, int64_t now_ns, Sends& sends) {
  for (const auto& [tree, hosts] : picked) {
    Tree again = *tree;
    again.hosts.clear();
    for (const uint32_t i : hosts) {
      hosts_[tree->hosts[i].at.gateway].since_ns = now_ns;
      again.hosts.push_back(tree->hosts[i]);
    }
    add_both(std::move(again), now_ns, sends);
    for (const uint32_t i : hosts) settle(tree, i);
  }
}

void CastOrigin::missed(NodeId gateway, uint64_t number, int64_t now_ns, Sends& sends) {
  const Pending* pending = find(gateway, number);
  if (pending == nullptr) return;
  hosts_[gateway].direct_until_ns = now_ns + kDirectNs;
  send_anew({{pending->tree, {pending->host}}}, now_ns, sends);
}

std::optional<CastOrigin::Send> CastOrigin::lost(NodeId gateway, uint64_t number, int64_t now_ns, Sends& sends) {
  const Pending* pending = find(gateway, number);
  if (pending == nullptr) return std::nullopt;
  const Pending was = *pending;
  Picked picked;
  pick_behind(was.tree, {gateway}, picked);
  send_anew(picked, now_ns, sends);
  return Send{was.tree, {was.host, 1}};
}

void CastOrigin::down(NodeId gateway, int64_t now_ns, Sends& sends) {
  auto found = hosts_.find(gateway);
  if (found == hosts_.end()) return;
  const std::deque<Pending> pending = std::move(found->second.pending);
  hosts_.erase(found);
  Picked picked;
  pass_by({gateway}, now_ns, picked);
  send_anew(picked, now_ns, sends);
  for (const Pending& each : pending) settle(each.tree, each.host);
}

bool CastOrigin::is_stuck(const Host& host, int64_t now_ns) const {
  if (host.pending.empty()) return false;
  const int64_t limit_ns = kStuckNs + static_cast<int64_t>(host.bytes >> 20) * kStuckNsPerMiB;
  return now_ns - host.since_ns >= limit_ns;
}

// Not those who wait because one of these does not pass it on.
CastOrigin::Nodes CastOrigin::stuck(int64_t now_ns) const {
  Nodes stuck;
  for (const auto& tree : trees_) {
    walk(*tree, [&](uint32_t i, uint32_t parent) {
      const NodeId gateway = tree->hosts[i].at.gateway;
      const bool can_have_it = parent == kNoParent || !tree->hosts[parent].waiting;
      if (!tree->hosts[i].waiting || !can_have_it) return;
      const Host& host = hosts_.at(gateway);
      const bool is_first = host.pending.front().tree == tree;
      if (is_first && is_stuck(host, now_ns)) stuck.insert(gateway);
    });
  }
  return stuck;
}

void CastOrigin::look(int64_t now_ns, Sends& sends) {
  const Nodes bad = stuck(now_ns);
  if (bad.empty()) return;
  Picked picked;
  pass_by(bad, now_ns, picked);
  // Whoever was to pass it on may have no way to them any more.
  for (const auto& tree : trees_) {
    walk(*tree, [&](uint32_t host, uint32_t parent) {
      if (parent != kNoParent && tree->hosts[host].waiting && bad.contains(tree->hosts[host].at.gateway)) {
        picked[tree].insert(host);
      }
    });
  }
  send_anew(picked, now_ns, sends);
}

// ---- Direct frames ----

uint64_t CastOrigin::fence(NodeId gateway) const {
  auto found = hosts_.find(gateway);
  if (found == hosts_.end()) return 0;
  const Host& host = found->second;
  return host.numbered > std::max(host.fenced, host.taken) ? host.numbered : 0;
}

void CastOrigin::fenced(NodeId gateway, uint64_t number) { hosts_.at(gateway).fenced = number; }

void CastOrigin::sent_behind(NodeId gateway, uint64_t bytes) {
  auto found = hosts_.find(gateway);
  if (found != hosts_.end() && found->second.taken < found->second.fenced) found->second.bytes_behind += bytes;
}

uint64_t CastOrigin::backlog(NodeId gateway) const {
  auto found = hosts_.find(gateway);
  return found == hosts_.end() ? 0 : found->second.bytes + found->second.bytes_behind;
}

// ---- At a host ----

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

void CastArrivals::begin_anew() {
  is_anew_ = true;
  passed_ = 0;
  early_.clear();
}

std::optional<CastArrivals::Arrival> CastArrivals::next() {
  const auto is_fence = [](const Message& message) { return message.header.kind == FrameKind::kTreeFence; };
  while (const Message* first = held_.first()) {
    if (!is_anew_ && is_fence(*first) && first->header.token > taken_) break;
    passed_ += !is_anew_;
    MessagePtr message = held_.pop();
    if (!is_fence(*message)) return message;
  }
  is_anew_ = false;
  auto first = early_.begin();
  if (first == early_.end() || first->first != taken_ + 1 || first->second.after > passed_) return std::nullopt;
  ++taken_;
  Cast cast = std::move(first->second);
  early_.erase(first);
  return cast;
}

}  // namespace monarch
