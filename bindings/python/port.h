// PortBase and PortReceiverBase: what a program sends through and receives from (monarch/actor/port.h), and the port
// that an endpoint with an explicit response port answers through.
#pragma once

#include "actor_cell.h"

namespace monarch {

// A new reference, or null with an exception: answers the call of `ticket`, which `cell` is handling.
PyObject* new_reply_port(const PyCell::Ticket& ticket, PyCell& cell);

// If `object` is a port without a rank: what is sent through it from now on comes from this rank.
void set_port_rank(PyObject* object, uint32_t rank);

// False with TypeError: `object` is no port.
bool check_port(PyObject* object);

// Sends the answers of `call` on through a port, with ranks counted from `first_rank`.
void relay_to_port(PyObject* port, const std::shared_ptr<PendingCall>& call, uint32_t first_rank);

bool add_port_types(PyObject* module);

}  // namespace monarch
