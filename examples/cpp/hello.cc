// The first program: NUM_ACTORS actors in as many processes of this machine, each says who it is. With --hosts: as many on
// each of the machines where these monarch-hostds run, where this program lies at the same path.
//
//   NUM_ACTORS=4 build/release/examples/hello
//   NUM_ACTORS=4 build/release/examples/hello --hosts tcp://10.0.0.7:4444 tcp://10.0.0.8:4444
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/monarch.h"

struct Greeter : monarch::Actor {
  std::string greet(std::string msg) {
    std::printf("Identity: %lld, msg=%s\n", static_cast<long long>(rank()), msg.c_str());
    std::fflush(stdout);
    return "hello from " + std::to_string(rank());
  }
};
MONARCH_ACTOR(Greeter, greet)

int main(int argc, char** argv) try {
  monarch::Runtime runtime(argc, argv);  // in the worker processes this line does not return
  auto hosts = monarch::this_host();
  if (argc > 2 && argv[1] == std::string_view("--hosts")) hosts = runtime.attach_to_workers({argv + 2, argv + argc});
  const char* wanted = std::getenv("NUM_ACTORS");
  auto procs = hosts.spawn_procs({{"gpus", wanted ? std::atoll(wanted) : 4}});
  auto greeters = procs.spawn<Greeter>("greeters");
  auto answers = greeters.call<&Greeter::greet>("Hello from C++!").get();
  for (const std::string& answer : answers) std::printf("%s\n", answer.c_str());
} catch (const std::exception& error) {  // a host that is not there, say
  std::fprintf(stderr, "hello: %s\n", error.what());
  return 1;
}
