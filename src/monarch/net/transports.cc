#include "monarch/net/transports.h"

#include "monarch/net/shm/shm_transport.h"
#include "monarch/net/unix/unix_transport.h"

namespace monarch {

namespace {
struct Entry {
  std::string_view name;
  std::unique_ptr<Transport> (*make)(const ShmContext& context, OwnBell& bell);
};

constexpr Entry kTransports[] = {
    {ShmTransport::kName, [](const ShmContext& context, OwnBell& bell) -> std::unique_ptr<Transport> {
       return std::make_unique<ShmTransport>(context, bell);
     }},
    {UnixTransport::kName, [](const ShmContext& context, OwnBell& bell) -> std::unique_ptr<Transport> {
       return std::make_unique<UnixTransport>(context.reactor, bell);
     }},
};
}  // namespace

std::vector<std::unique_ptr<Transport>> make_transports(const ShmContext& context, OwnBell& bell) {
  std::vector<std::unique_ptr<Transport>> made;
  for (const Entry& entry : kTransports) made.push_back(entry.make(context, bell));
  return made;
}

std::string transport_names() {
  std::string names;
  for (const Entry& entry : kTransports) names.append(names.empty() ? "" : ", ").append(entry.name);
  return names;
}

bool is_transport_name(std::string_view name) {
  for (const Entry& entry : kTransports) {
    if (entry.name == name) return true;
  }
  return false;
}

}  // namespace monarch
