// What a message that goes to several carries along, from one link to the next: what has been made of its large parts, so
// that it is made once. Lives on the stack of who sends; what it holds goes back with it.
#pragma once

#include <memory>

namespace monarch {

class CastParts {
 public:
  class Placed {
   public:
    virtual ~Placed() = default;
  };
  std::unique_ptr<Placed> placed;  // by the first link that can lend parts; all such of a process are of one kind
};

}  // namespace monarch
