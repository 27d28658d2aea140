#include "monarch/actor/actor.h"

#include <stdexcept>

#include "monarch/actor/turn.h"

namespace monarch {

namespace internal {

std::string ActorSelf::describe() const {
  return "the C++ actor " + class_name + " '" + name + "' (rank " + std::to_string(rank) + ")";
}

namespace {
ActorSelf* constructing_self() {
  static ActorSelf alone;  // read only, but for stop(), which means nothing then
  Turn* turn = Turn::current();
  return turn != nullptr ? &turn->self() : &alone;
}
}  // namespace

}  // namespace internal

Actor::Actor() : self_(internal::constructing_self()) {}

int64_t Actor::size() const {
  int64_t count = 1;
  for (int64_t size : self_->sizes) count *= size;
  return count;
}

int64_t Actor::coordinate(std::string_view label) const {
  int64_t stride = 1;
  for (size_t i = self_->labels.size(); i-- > 0;) {
    if (self_->labels[i] == label) return self_->rank / stride % self_->sizes[i];
    stride *= self_->sizes[i];
  }
  throw std::invalid_argument("the mesh '" + self_->name + "' has no dimension '" + std::string(label) + "'");
}

void Actor::stop(std::string reason) {
  self_->stop_wanted = true;
  self_->stop_reason = std::move(reason);
}

bool Actor::on_undeliverable(std::string_view) { return false; }
bool Actor::supervise(const MeshFailure&, bool told) { return told; }

}  // namespace monarch
