// Robust futexes that a process holds for as long as it lives, in a page that it shares with whoever has started it. The
// kernel gives them back as the first thing of a process's end, in a tenth of a millisecond however large that is. Its
// pidfd and its sockets tell of its end when its memory is gone, which takes 0.1 s for 1 GiB.
//
// The page is the first one of its bootstrap record; its last words (wire/last_words.h) are behind it. The futex is that of
// a mutex of the C library, in whose list of a thread's robust mutexes it stands: a thread has one list, which must stay
// whole.
//
// That it is given back is a question, not an answer: a process that becomes another program (exec) gives it back too, and
// so does one whose main thread ends. What is the case /proc knows (process.h: read_ending).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "monarch/net/shm/shared_memory.h"
#include "monarch/wire/last_words.h"

namespace monarch {

inline constexpr size_t kLifeBytes = 4096;
inline constexpr size_t kLifeFutexes = 2;  // the kernel wakes one thread for each: life_watch.cc says why there are two
inline constexpr size_t kLifeFutexStride = 64;
inline constexpr size_t kLastWordsEnd = kLifeBytes + sizeof(LastWords);  // and the beginning of the record

// In the new process, on a thread that lives to its end: its main thread. Never undone. Where it cannot be done, the end of
// this process is seen a little later.
void hold_life(int record);

// In the new process: where it leaves its last words, for as long as it lives. Null: there is no memory for it.
LastWords* map_own_last_words(int record);

// At whoever starts it: the page, to be read. Empty: there is no memory for it.
Mapping map_life(int record);

// The same of its last words; null: there are none. A mapping of its own, since lives are watched elsewhere.
Mapping map_last_words(int record);
const LastWords* last_words_of(const Mapping& mapping);

// Of its futexes, all of which it holds, one. 0: nobody holds it yet, and who does will wake those who wait. It is not
// to be trusted.
inline std::atomic<uint32_t>& life_word(const Mapping& life, size_t number = 0) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(static_cast<char*>(life.get()) + number * kLifeFutexStride);
}

}  // namespace monarch
