#include "patience.h"

#include <signal.h>

#include <chrono>
#include <string>
#include <utility>

#include "gil.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {
// It looks so often, and counts looks: a process that was stopped meanwhile has not waited all that time.
constexpr int64_t kLookNs = 50'000'000;
// So long after the signal it is said that the script does not come back.
constexpr int64_t kSaidAfterNs = 2'000'000'000;
// So long it waits for the GIL, to say where.
constexpr auto kGilLimit = std::chrono::seconds(2);
}  // namespace

// Shared with the thread that asks for the GIL, and may get it late or never.
struct PatienceWatch::Line {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_wanted = true;
  bool is_there = false;
  std::string text;
  PyObject* where = nullptr;
};

PatienceWatch::PatienceWatch(testing::SimStage& stage, int64_t patience_ns, int signal, PyObject* where)
    : stage_(stage), patience_ns_(patience_ns), signal_(signal), where_(Ref::borrow(where)) {
  has_thread_ = sys::start_thread(&thread_, run, this);
}

void PatienceWatch::end() {
  if (!std::exchange(has_thread_, false)) return;
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  GilRelease release;
  pthread_join(thread_, nullptr);
}

bool PatienceWatch::gives_up() {
  if (stage_.progress() != stuck_at_) return false;
  stage_.give_up_script();
  return true;
}

void* PatienceWatch::run(void* self) {
  pthread_setname_np(pthread_self(), "monarch-patience");
  static_cast<PatienceWatch*>(self)->watch();
  return nullptr;
}

void PatienceWatch::watch() {
  uint64_t seen = stage_.progress();
  int64_t still_ns = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(kLookNs), [this] { return ended_; })) {
    if (const uint64_t now = stage_.progress(); now != std::exchange(seen, now)) still_ns = -kLookNs;
    const int64_t before_ns = std::exchange(still_ns, still_ns + kLookNs);
    const auto passes = [&](int64_t limit_ns) { return before_ns < limit_ns && still_ns >= limit_ns; };
    if (passes(patience_ns_) && signal_ != 0 && stage_.script_has_turn()) {
      stuck_at_ = seen;
      pthread_kill(main_, signal_);
    }
    if (!passes(patience_ns_ + kSaidAfterNs) || stage_.broken() != testing::SimStage::Broken::kNo) continue;
    lock.unlock();
    say();
    lock.lock();
  }
}

void PatienceWatch::say() {
  auto line = std::make_shared<Line>();  // shared: see there
  line->where = where_.get();
  auto* const given = new std::shared_ptr<Line>(line);
  pthread_t thread;
  const auto ask = [](void* context) -> void* {
    const std::unique_ptr<std::shared_ptr<Line>> its(static_cast<std::shared_ptr<Line>*>(context));
    Line& wanted = **its;
    GilThread python;
    std::unique_lock lock(wanted.mutex);
    if (!wanted.is_wanted) return nullptr;
    lock.unlock();
    Ref text = Ref::steal(PyObject_CallNoArgs(wanted.where));
    const char* bytes = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    std::string found = bytes == nullptr ? "a place that cannot be said" : bytes;
    PyErr_Clear();
    lock.lock();
    wanted.text = std::move(found);
    wanted.is_there = true;
    wanted.changed.notify_one();
    return nullptr;
  };
  const bool asks = sys::start_thread(&thread, ask, given);
  if (asks) {
    pthread_detach(thread);
  } else {
    delete given;
  }
  std::unique_lock lock(line->mutex);
  if (asks) line->changed.wait_for(lock, kGilLimit, [&] { return line->is_there; });
  line->is_wanted = false;
  std::string text = "the simulation stands still for longer than its `patience` lasts: ";
  text += stage_.script_has_turn() ? "the script" : "a thread of it";
  if (line->is_there) {
    text += stage_.script_has_turn() ? " waits in " + line->text : " does not come back; the script waits in " + line->text;
  } else {
    text += " is in C code that holds the GIL";
  }
  log_line(text);
  flush_log();
}

}  // namespace monarch
