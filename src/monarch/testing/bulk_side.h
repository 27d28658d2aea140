// A process with buffers, as one object, so that a test can have several of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "monarch/actor/node.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/streams.h"
#include "monarch/net/inproc/inproc_link.h"
#include "monarch/testing/home.h"

namespace monarch::testing {

inline Identity some_identity() {
  SystemRandom random;
  Identity identity;
  identity.key = NodeKey::make(random);
  identity.node = identity.key.id();
  identity.token = {std::byte{7}};
  return identity;
}

struct BulkSide {
  // `dialled_at`: it has streams, to others of this host too, and they find it there.
  explicit BulkSide(Paths paths, std::optional<std::string> dialled_at = {}, bool tries_ucx = false)
      : identity(some_identity()),
        node(identity.node, *home.driver, home.reactor, {}),
        bulk(std::make_shared<Bulk>(node, home.reactor, paths)) {
    if (dialled_at) {
      StreamOptions options;
      options.identity = identity;
      options.dialled_at = *dialled_at;
      options.listens_at = "127.0.0.1";
      options.within_hosts = true;
      options.tries_ucx = tries_ucx;
      bulk->use_streams(home.reactor, std::move(options));
    }
    node.add_cell(Bulk::id_of(identity.node).index, bulk);
  }
  void link_to(BulkSide& other) {
    auto [a, b] = InprocLink::connect({node.id(), *home.driver, home.reactor, node},
                                      {other.node.id(), *other.home.driver, other.home.reactor, other.node});
    node.add_link(a);
    other.node.add_link(b);
  }
  void end() {
    bulk->stop();
    node.close_links();
    home.reactor.stop();
  }

  Home home;
  const Identity identity;
  Node node;
  std::shared_ptr<Bulk> bulk;
};

}  // namespace monarch::testing
