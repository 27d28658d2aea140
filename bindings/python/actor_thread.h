// Threads that run Python actors.
#pragma once

#include <functional>

namespace monarch {

// Starts a thread that runs `work`, with all signals blocked. Any thread. Nobody joins it: when `work` returns, the next
// one that ends, or starts, gives its memory back. False: there is none to be had; errno says why.
bool start_actor_thread(std::function<void()> work);

}  // namespace monarch
