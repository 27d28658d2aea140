#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mesh_ref.h"
#include "monarch/actor/inflow.h"
#include "monarch/actor/room_wait.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

namespace {

// A wait for room of code on an event loop, which sleeps itself. As long as it is there the actor that waits so holds
// nobody back (FLOW-1).
class RoomLook {
 public:
  RoomLook(nb::handle mesh_ref, std::string receiver) : receiver_(std::move(receiver)), inflow_(current_inflow()) {
    AnyRuntime* runtime = require_runtime();
    members_ = runtime == nullptr ? nullptr : members_of(mesh_ref.ptr());
    if (members_ == nullptr) throw nb::python_error();
    node_ = &runtime->node();
    wait_.emplace(*node_, *members_, /*counts=*/calls_are_limited());
    if (inflow_) blocked_.emplace(inflow_.get());
  }
  // Seconds until to look again; 0: there is room.
  double look() {
    AnyRuntime* runtime = require_runtime();
    if (runtime == nullptr) throw nb::python_error();
    if (&runtime->node() != node_ || wait_->over()) return 0;
    const int64_t until_ns = wait_->next_look_ns();
    if (wait_->is_slow()) wait_->say_slow(receiver_);
    return static_cast<double>(std::max<int64_t>(1, until_ns - clock_ns())) / 1e9;
  }

 private:
  const std::string receiver_;
  const std::shared_ptr<Inflow> inflow_;  // shared: with the actor, which may end before the wait does
  std::shared_ptr<const Members> members_;
  Node* node_ = nullptr;
  std::optional<RoomWait> wait_;
  std::optional<InflowBlocked> blocked_;
};

}  // namespace

void bind_room(nb::module_& m) {
  nb::class_<RoomLook>(m, "RoomLook").def(nb::init<nb::handle, std::string>()).def("look", &RoomLook::look);
}

}  // namespace monarch
