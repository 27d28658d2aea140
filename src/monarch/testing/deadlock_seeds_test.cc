// Cycles of calls over seeds: actors of several nodes call each other without limits, and whatever they come to wait for,
// all of it ends. What finds the cycles is the product's (actor/deadlocks.h); who searches when is as in
// host/call_watch.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "monarch/actor/deadlocks.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kBlockedNs = 300 * kMs, kFirstAgainNs = 250 * kMs, kLastAgainNs = 8000 * kMs;

class Callers {
 public:
  explicit Callers(uint64_t seed) : sim_(seed) {
    const uint64_t nodes = 1 + sim_.random(4), actors = 2 + sim_.random(7);
    for (NodeId node = 1; node <= nodes; ++node) nodes_.try_emplace(node, node, *this);
    for (ActorIndex index = 1; index <= actors; ++index) actors_[index].id = {1 + sim_.random(nodes), index};
  }

  void run() {
    for (uint64_t i = 5 + sim_.random(40); i > 0; --i) {
      sim_.after(static_cast<int64_t>(sim_.random(200 * kMs)), [this] { arrive(any_actor(), {{}, ++last_token_}); });
    }
    if (sim_.chance(30)) {
      sim_.after(static_cast<int64_t>(sim_.random(1500 * kMs)), [this] { kill(1 + sim_.random(nodes_.size())); });
    }
    ASSERT_TRUE(sim_.run(200'000)) << "somebody searches for ever";
    for (const auto& [index, actor] : actors_) {
      if (dead_.contains(actor.id.node)) continue;
      EXPECT_FALSE(actor.wait) << "a call waits for ever";
      EXPECT_TRUE(!actor.handled && actor.mailbox.empty());
    }
  }
  uint64_t given_up() const { return given_up_; }

 private:
  struct Request {
    ActorId caller;  // none: a client
    uint64_t token;
  };
  struct Wait {
    uint64_t token;
    int64_t since_ns;
    std::vector<ActorId> owing;
  };
  struct Actor {
    ActorId id;
    std::deque<Request> mailbox;
    std::optional<Request> handled;
    std::optional<Wait> wait;
  };
  struct Place final : Deadlocks::Place {
    Place(NodeId id, Callers& c) : callers(c), deadlocks(id, *this) {}
    std::optional<Deadlocks::Blocked> blocked(ActorIndex index) override {
      const Actor& actor = callers.actors_.at(index);
      if (!actor.wait) return std::nullopt;
      return Deadlocks::Blocked{actor.wait->token, actor.wait->since_ns, actor.wait->owing, std::to_string(index), "do"};
    }
    std::optional<Asked> awaits(NodeId, uint64_t token, ActorIndex index) override {
      const Actor& actor = callers.actors_.at(index);
      if (actor.handled && actor.handled->token == token) return Asked{"do", false};
      const auto of = [token](const Request& request) { return request.token == token; };
      if (std::ranges::none_of(actor.mailbox, of)) return std::nullopt;
      return Asked{"do", true};
    }
    Callers& callers;
    Deadlocks deadlocks;
  };

  Actor& any_actor() { return actors_.at(1 + sim_.random(actors_.size())); }

  void arrive(Actor& actor, Request request) {
    if (dead_.contains(actor.id.node)) return answered(request, actor.id);
    actor.mailbox.push_back(request);
    next(actor);
  }

  void next(Actor& actor) {
    if (actor.handled || actor.mailbox.empty()) return;
    actor.handled = actor.mailbox.front();
    actor.mailbox.pop_front();
    later(actor, [this, &actor] { sim_.chance(60) ? call(actor) : done(actor); });
  }

  // What it does then, if its process lives.
  void later(const Actor& actor, std::function<void()> task) {
    sim_.after(sim_.delay_ns(), [this, node = actor.id.node, task = std::move(task)] {
      if (!dead_.contains(node)) task();
    });
  }

  void call(Actor& actor) {
    Wait wait{++last_token_, sim_.now_ns(), {}};
    for (uint64_t i = sim_.chance(20) ? 2 : 1; i > 0; --i) {
      const ActorId target = any_actor().id;
      if (std::ranges::find(wait.owing, target) == wait.owing.end()) wait.owing.push_back(target);
    }
    actor.wait = wait;
    for (const ActorId& target : wait.owing) {
      sim_.after(sim_.delay_ns(), [this, target, request = Request{actor.id, wait.token}] {
        arrive(actors_.at(target.index), request);
      });
    }
    sim_.after(kBlockedNs, [this, &actor, token = wait.token] { search(actor, token, kFirstAgainNs); });
  }

  void done(Actor& actor) {
    answered(*std::exchange(actor.handled, std::nullopt), actor.id);
    next(actor);
  }

  void answered(const Request& request, const ActorId& by) {
    if (request.caller.node == 0) return;
    sim_.after(sim_.delay_ns(), [this, request, by] {
      Actor& caller = actors_.at(request.caller.index);
      if (dead_.contains(caller.id.node) || !caller.wait || caller.wait->token != request.token) return;
      std::erase(caller.wait->owing, by);
      if (caller.wait->owing.empty()) go_on(caller);
    });
  }

  void go_on(Actor& caller) {
    caller.wait.reset();
    later(caller, [this, &caller] { done(caller); });
  }

  // Whoever waits for an answer of it is told.
  void kill(NodeId node) {
    note_cycles();
    dead_.insert(node);
    for (auto& [index, actor] : actors_) {
      if (actor.id.node != node) continue;
      for (const Request& request : actor.mailbox) answered(request, actor.id);
      if (actor.handled) answered(*actor.handled, actor.id);
      actor.mailbox.clear();
      actor.handled.reset();
      actor.wait.reset();
    }
  }

  // ---- Who searches ----

  bool waits(const Actor& actor, uint64_t token) const { return actor.wait && actor.wait->token == token; }

  void search(Actor& actor, uint64_t token, int64_t next_ns) {
    Place& place = nodes_.at(actor.id.node);
    if (!waits(actor, token)) return place.deadlocks.forget(actor.id.index, token);
    perform(place, place.deadlocks.search(sim_.now_ns(), actor.id.index));
    sim_.after(next_ns, [this, &actor, token, next_ns] { search(actor, token, std::min(2 * next_ns, kLastAgainNs)); });
  }

  void perform(Place& place, Deadlocks::Actions actions) {
    for (const Deadlocks::Send& send : actions.sends) {
      sim_.after(sim_.delay_ns(), [this, send] {
        if (dead_.contains(send.to.node)) return;
        Place& there = nodes_.at(send.to.node);
        perform(there, there.deadlocks.on_probe(sim_.now_ns(), send.to.index, send.probe));
      });
    }
    for (const ActorIndex index : actions.again) {
      sim_.after(Deadlocks::kConfirmNs, [this, &place, index] {
        if (!dead_.contains(actors_.at(index).id.node)) perform(place, place.deadlocks.search(sim_.now_ns(), index));
      });
    }
    for (const Deadlocks::GiveUp& given_up : actions.give_up) give_up(given_up.token);
  }

  // A cycle ends by this or a death only; what has seen it may be under way then.
  void note_cycles() {
    for (const auto& [index, actor] : actors_) {
      if (actor.wait && leads_to(actor, index, {})) in_cycles_.insert(actor.wait->token);
    }
  }

  void give_up(uint64_t token) {
    note_cycles();
    for (auto& [index, actor] : actors_) {
      if (!waits(actor, token)) continue;
      EXPECT_TRUE(in_cycles_.contains(token)) << "given up, and would have ended by itself";
      ++given_up_;
      go_on(actor);
    }
  }

  // Whether it waits, in the end, for that one.
  bool leads_to(const Actor& from, ActorIndex to, std::set<ActorIndex> passed) const {
    if (!from.wait || dead_.contains(from.id.node)) return false;
    return std::ranges::any_of(from.wait->owing, [&](const ActorId& id) {
      return id.index == to || (passed.insert(id.index).second && leads_to(actors_.at(id.index), to, passed));
    });
  }

  SimWorld sim_;
  std::map<NodeId, Place> nodes_;
  std::map<ActorIndex, Actor> actors_;
  std::set<NodeId> dead_;
  std::set<uint64_t> in_cycles_;  // calls
  uint64_t last_token_ = 0;
  uint64_t given_up_ = 0;
};

// WAIT-1: whatever waits in a cycle is raised at one of those who wait; what can end by itself never is.
TEST(Deadlock, CyclesEndAndNothingElseDoesForEverySeed) {
  uint64_t given_up = 0;
  const auto seeds = sim_seeds(1000, 50);
  for (const uint64_t seed : seeds) {
    Callers callers(seed);
    callers.run();
    given_up += callers.given_up();
    if (HasFailure()) FAIL() << reproduction(seed, "testing_test", "Deadlock.CyclesEndAndNothingElseDoesForEverySeed");
  }
  if (seeds.size() > 1) {
    EXPECT_GT(given_up, seeds.size() / 2);
  }
}

}  // namespace
}  // namespace monarch::testing
