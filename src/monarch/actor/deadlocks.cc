#include "monarch/actor/deadlocks.h"

#include <algorithm>
#include <utility>

#include "monarch/wire/failure.h"
#include "monarch/wire/value.h"

namespace monarch {

namespace {

constexpr uint32_t kEntryFields = 8;
constexpr size_t kTextMax = 1024;

void write_text(ValueWriter& writer, std::string_view text) {
  writer.str(is_utf8(text) ? shortened(text, kTextMax) : "?");
}

bool read_entry(ValueReader& reader, BlockedActor& entry) {
  uint32_t fields;
  int64_t node, index, token;
  std::string_view who, doing, called;
  if (!reader.begin_tuple(fields) || fields != kEntryFields || !reader.integer(node) || !reader.integer(index) ||
      !reader.integer(token) || !reader.integer(entry.waited_ns) || !reader.str(who) || !reader.str(doing) ||
      !reader.str(called) || !reader.boolean(entry.queued)) {
    return false;
  }
  reader.end();
  entry.actor = {static_cast<NodeId>(node), static_cast<ActorIndex>(index)};
  entry.token = static_cast<uint64_t>(token);
  entry.who = who;
  entry.doing = doing;
  entry.called = called;
  return true;
}

// Which calls it goes along.
std::string signature(const Probe& probe) {
  std::string text;
  for (const BlockedActor& entry : probe.path) {
    text += std::to_string(entry.actor.node) + "/" + std::to_string(entry.actor.index) + ":" +
            std::to_string(entry.token) + " ";
  }
  return text;
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ hash >> 33;
}

// Whether it is the call of the first that has closed the cycle.
bool has_closed(const std::vector<BlockedActor>& cycle) {
  const auto queued = [&cycle](size_t i) { return cycle[(i + 1) % cycle.size()].queued; };  // the call that it makes
  const bool any = std::ranges::any_of(cycle, &BlockedActor::queued);
  if (any && !queued(0)) return false;
  for (size_t i = 1; i < cycle.size(); ++i) {
    if (queued(i) == any && cycle[i].waited_ns < cycle[0].waited_ns) return false;
  }
  return true;
}

// The path is that of a whole cycle; the first entry says what the last has called of it.
std::string describe(const std::vector<BlockedActor>& cycle) {
  std::string text = cycle.size() == 1
                         ? "an actor waits for a call to itself, which it can only answer afterwards:"
                         : "a cycle of calls, each of which waits for the next:";
  for (size_t i = 0; i < cycle.size(); ++i) {
    const BlockedActor& next = cycle[(i + 1) % cycle.size()];
    text += "\n  " + cycle[i].who + ", in " + cycle[i].doing + ", waits for " + next.who + ": " + next.called;
  }
  return text;
}

}  // namespace

std::string Probe::encoded() const {
  ValueWriter writer;
  writer.begin_tuple(2);
  writer.integer(round);
  writer.begin_list(static_cast<uint32_t>(path.size()));
  for (const BlockedActor& entry : path) {
    writer.begin_tuple(kEntryFields);
    writer.integer(static_cast<int64_t>(entry.actor.node));
    writer.integer(static_cast<int64_t>(entry.actor.index));
    writer.integer(static_cast<int64_t>(entry.token));
    writer.integer(entry.waited_ns);
    write_text(writer, entry.who);
    write_text(writer, entry.doing);
    write_text(writer, entry.called);
    writer.boolean(entry.queued);
  }
  return {reinterpret_cast<const char*>(writer.data()), writer.size()};
}

Result<Probe> Probe::decode(ByteSpan bytes) {
  ValueReader reader(bytes);
  Probe probe;
  uint32_t fields, count;
  int64_t round;
  if (!reader.begin_tuple(fields) || fields != 2 || !reader.integer(round) || !reader.begin_list(count)) {
    return reader.error();
  }
  if (count == 0 || count > kPathMax) return Error{ErrorCode::kMalformed, "a probe of no length that there is"};
  probe.round = static_cast<uint32_t>(round);
  probe.path.resize(count);
  for (BlockedActor& entry : probe.path) {
    if (!read_entry(reader, entry)) return reader.error();
  }
  reader.end();
  reader.end();
  if (!reader.done()) return Error{ErrorCode::kMalformed, "something follows a probe"};
  return probe;
}

Deadlocks::Actions Deadlocks::search(int64_t now_ns, ActorIndex actor) {
  Actions actions;
  auto blocked = place_.blocked(actor);
  if (!blocked) {
    searches_.erase(actor);
    return actions;
  }
  Search& search = searches_[actor];
  if (search.token != blocked->token) search = {blocked->token, 0, {}};
  Probe probe;
  probe.round = ++search.round;
  probe.path.push_back({{self_, actor}, blocked->token, now_ns - blocked->since_ns, std::move(blocked->who),
                        std::move(blocked->doing), "", false});
  go_on(std::move(probe), blocked->owing, actions);
  return actions;
}

void Deadlocks::forget(ActorIndex actor, uint64_t token) {
  const auto found = searches_.find(actor);
  if (found != searches_.end() && found->second.token == token) searches_.erase(found);
}

Deadlocks::Actions Deadlocks::on_probe(int64_t now_ns, ActorIndex actor, Probe probe) {
  Actions actions;
  if (probe.path.empty()) return actions;
  const BlockedActor& first = probe.path.front();
  const BlockedActor& caller = probe.path.back();
  auto blocked = place_.blocked(actor);
  if (!blocked) return actions;
  auto asked = place_.awaits(caller.actor.node, caller.token, actor);
  if (!asked) return actions;
  const ActorId id{self_, actor};
  if (first.actor == id) {
    if (first.token != blocked->token) return actions;
    probe.path.front().called = std::move(asked->called);
    probe.path.front().queued = asked->queued;
    closed(probe, actions);
    return actions;
  }
  const bool passed = std::any_of(probe.path.begin(), probe.path.end(),
                                  [&id](const BlockedActor& entry) { return entry.actor == id; });
  if (passed || probe.path.size() >= Probe::kPathMax) return actions;  // that cycle is for those who are in it
  uint64_t key = mixed(mixed(first.actor.node, first.actor.index), mixed(first.token, probe.round));
  key = mixed(key, actor);
  if (passed_.contains(key)) return actions;
  passed_.put(key, true);
  probe.path.push_back({id, blocked->token, now_ns - blocked->since_ns, std::move(blocked->who),
                        std::move(blocked->doing), std::move(asked->called), asked->queued});
  go_on(std::move(probe), blocked->owing, actions);
  return actions;
}

void Deadlocks::go_on(Probe probe, const std::vector<ActorId>& owing, Actions& actions) {
  for (size_t i = 0; i < std::min(owing.size(), kOwingMax); ++i) actions.sends.push_back({owing[i], probe});
}

void Deadlocks::closed(const Probe& probe, Actions& actions) {
  const ActorIndex self = probe.path.front().actor.index;
  const auto found = searches_.find(self);
  if (found == searches_.end() || found->second.token != probe.path.front().token) return;
  Search& search = found->second;
  if (probe.round > search.round) return;  // nobody has sent that
  const auto known = search.cycles.find(signature(probe));
  if (known == search.cycles.end()) {
    if (search.cycles.size() >= kCyclesMax) search.cycles.clear();
    search.cycles.emplace(signature(probe), probe.round);
    actions.again.push_back(self);
    return;
  }
  if (known->second >= probe.round) return;
  if (!has_closed(probe.path)) return;
  actions.give_up.push_back({search.token, describe(probe.path)});
  searches_.erase(found);
}

}  // namespace monarch
