// The transports between processes of one machine, best first. That between machines (net/tcp) has whoever needs it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "monarch/net/shm/own_bell.h"
#include "monarch/net/transport.h"

namespace monarch {

// A process has one of each. `bell` and what `context` refers to outlive them.
std::vector<std::unique_ptr<Transport>> make_transports(const ShmContext& context, OwnBell& bell);

// Their names, as text for an error: "shm, unix".
std::string transport_names();
bool is_transport_name(std::string_view name);

}  // namespace monarch
