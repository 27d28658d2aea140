#include "monarch/net/link.h"

#include "monarch/base/log.h"

namespace monarch {

void log_malformed(const std::string& what) {
  static constexpr char kKind[] = "dropped the link to a peer that sent a malformed frame";
  log_line_limited(kKind, std::string(kKind) + ": " + what);
}

}  // namespace monarch
