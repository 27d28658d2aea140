// Threads that run Python actors.
#pragma once

#include <functional>

namespace monarch {

// Starts a detached thread that runs `work`, with all signals blocked. Any thread. `work` must never return: the
// interpreter cannot join the thread, and its stack is not used again. Throws std::system_error if there can be none.
void start_actor_thread(std::function<void()> work);

}  // namespace monarch
