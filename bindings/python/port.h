// PortBase and PortReceiverBase: what a program sends through and receives from (monarch/actor/port.h), and the port
// that an endpoint with an explicit response port answers through.
#pragma once

#include "actor_cell.h"

namespace monarch {

// A new reference, or null with an exception: answers the call of `ticket`.
PyObject* new_reply_port(const PyCell::Ticket& ticket, ActorIndex sender);

// If `object` is a port without a rank: what is sent through it from now on comes from this rank.
void set_port_rank(PyObject* object, uint32_t rank);

// The address behind a port of Channel.open(); false with TypeError: it is none.
bool port_address(PyObject* object, ActorId* address);

bool add_port_types(PyObject* module);

}  // namespace monarch
