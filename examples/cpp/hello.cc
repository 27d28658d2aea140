// The first program: NUM_ACTORS actors in as many processes of this machine, each says who it is.
//
//   NUM_ACTORS=4 build/release/examples/hello
#include <cstdio>
#include <cstdlib>
#include <string>

#include "monarch/monarch.h"

struct Greeter : monarch::Actor {
  std::string greet(std::string msg) {
    std::printf("Identity: %lld, msg=%s\n", static_cast<long long>(rank()), msg.c_str());
    std::fflush(stdout);
    return "hello from " + std::to_string(rank());
  }
};
MONARCH_ACTOR(Greeter, greet)

int main(int argc, char** argv) {
  monarch::Runtime runtime(argc, argv);  // in the worker processes this line does not return
  const char* wanted = std::getenv("NUM_ACTORS");
  auto procs = monarch::this_host().spawn_procs({{"gpus", wanted ? std::atoll(wanted) : 4}});
  auto greeters = procs.spawn<Greeter>("greeters");
  auto answers = greeters.call<&Greeter::greet>("Hello from C++!").get();
  for (const std::string& answer : answers) std::printf("%s\n", answer.c_str());
}
