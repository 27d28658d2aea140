#include "monarch/wire/last_words.h"

#include <string.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "monarch/base/demangle.h"

namespace monarch {

namespace {

constexpr size_t kNameMax = 80;
constexpr size_t kFramesMax = 10;  // of each kind
constexpr size_t kLineMax = 160;

// What another process has written, up to the first zero.
std::string_view written(const char* memory, size_t size) { return {memory, strnlen(memory, size)}; }

std::string printable(std::string_view text, size_t bytes_max) {
  std::string clean(text.substr(0, bytes_max));
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f) c = '?';
  }
  return clean;
}

// The name of an actor's endpoint; empty: there is none of that number.
std::string method_name(const LastWords& left, uint32_t at, int64_t number) {
  if (number == LastWords::kConstructor) return "__init__";
  if (number == LastWords::kCleanUp) return "__cleanup__";
  if (number == LastWords::kSupervise) return "__supervise__";
  if (number == LastWords::kUndeliverable) return "_handle_undeliverable_message";
  for (; number >= 0 && at < sizeof left.methods; --number) {
    const std::string_view name = written(left.methods + at, sizeof left.methods - at);
    if (name.empty()) break;
    if (number == 0) return printable(name, kNameMax);
    at += static_cast<uint32_t>(name.size()) + 1;
  }
  return "";
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// ---- Frames of Python: '  File "train.py", line 7 in step' ----

bool is_of_runtime(std::string_view frame) { return contains(frame, "/monarch/_"); }

// The user's code is above the first frame of the runtime's; between the two there may be the event loop's.
std::vector<std::string_view> language_frames(std::string_view text, bool with_runtime) {
  std::vector<std::string_view> frames;
  for (const std::string_view line : lines_of(text)) {
    if (!line.starts_with("  File \"")) {
      if (!frames.empty()) break;
      continue;
    }
    if (!with_runtime && is_of_runtime(line)) break;
    frames.push_back(line);
  }
  while (!with_runtime && !frames.empty() && contains(frames.back(), "/asyncio/")) frames.pop_back();
  return frames;
}

// ---- Native frames: "function+0x12 in /path/of/library" ----

std::string readable(std::string_view frame) {
  const size_t in = frame.rfind(" in "), plus = frame.rfind('+', in);
  if (in == frame.npos) return printable(frame, kLineMax);
  const std::string function = demangled(std::string(frame.substr(0, std::min(plus, in))));
  const std::string_view path = frame.substr(in + 4);
  const std::string_view offset = plus == frame.npos ? std::string_view() : frame.substr(plus, in - plus);
  return printable(printable(function, kNameMax) + std::string(offset) + " in " +
                       std::string(path.substr(path.rfind('/') + 1)), kLineMax);
}

std::vector<std::string_view> native_frames(std::string_view text, bool with_runtime) {
  std::vector<std::string_view> frames;
  for (const std::string_view line : lines_of(text)) {
    if (!with_runtime && is_base_frame(line)) break;
    frames.push_back(line);
  }
  return frames;
}

template <typename Show>
void add_frames(std::string& to, const char* title, const std::vector<std::string_view>& frames, size_t frames_max,
                Show show) {
  if (frames.empty()) return;
  if (!to.empty()) to += '\n';
  to += title;
  for (size_t i = 0; i < std::min(frames.size(), frames_max); ++i) to += "\n  " + show(frames[i]);
  if (frames.size() > frames_max) to += "\n  ... " + std::to_string(frames.size() - frames_max) + " more";
}

}  // namespace

// ---- Writing ----

void LastWords::Actor::begin_waiting(uint32_t method) {
  for (auto& each : waiting) {
    if (each.load(std::memory_order_relaxed) == 0) return each.store(method + 1, std::memory_order_relaxed);
  }
}

void LastWords::Actor::end_waiting(uint32_t method) {
  for (auto& each : waiting) {
    if (each.load(std::memory_order_relaxed) == method + 1) return each.store(0, std::memory_order_relaxed);
  }
}

LastWords::Actor* Activity::enter(std::string_view name, const std::vector<std::string>& methods) {
  if (!has_room()) return nullptr;
  std::lock_guard lock(mutex_);
  const uint32_t names = place_of(methods);
  const auto is_free = [](const LastWords::Actor& each) { return each.methods.load(std::memory_order_relaxed) == 0; };
  LastWords::Actor* const end = std::end(memory_->actors);
  LastWords::Actor* const place = std::find_if(std::begin(memory_->actors), end, is_free);
  if (names == 0 || place == end) return nullptr;
  entered_.fetch_add(1, std::memory_order_relaxed);
  place->doing.store(LastWords::kNothing, std::memory_order_relaxed);
  const size_t size = name.copy(place->name, sizeof place->name - 1);
  place->name[size] = '\0';
  place->methods.store(names, std::memory_order_release);
  return place;
}

void Activity::leave(LastWords::Actor* place) {
  if (place == nullptr) return;
  std::lock_guard lock(mutex_);
  for (auto& each : place->waiting) each.store(0, std::memory_order_relaxed);
  place->methods.store(0, std::memory_order_relaxed);
  entered_.fetch_sub(1, std::memory_order_relaxed);
}

uint32_t Activity::place_of(const std::vector<std::string>& methods) {
  std::string names;
  for (const std::string& method : methods) names.append(method) += '\0';
  names += '\0';
  const auto [found, is_new] = places_.emplace(std::move(names), used_);
  if (!is_new) return found->second;
  const std::string& wanted = found->first;
  if (wanted.size() > sizeof memory_->methods - used_) return places_.erase(found), 0;
  wanted.copy(memory_->methods + used_, wanted.size());
  used_ += static_cast<uint32_t>(wanted.size());
  return found->second;
}

// ---- Reading ----

std::vector<std::string> read_endpoints(const LastWords& left) {
  std::vector<std::string> found;
  const auto note = [&](const LastWords::Actor& actor, int64_t number) {
    const std::string method = method_name(left, actor.methods.load(std::memory_order_relaxed), number);
    if (method.empty()) return;
    std::string endpoint = printable(written(actor.name, sizeof actor.name), kNameMax) + "." + method;
    if (found.size() < LastWords::kActors && std::find(found.begin(), found.end(), endpoint) == found.end()) {
      found.push_back(std::move(endpoint));
    }
  };
  for (const LastWords::Actor& actor : left.actors) {
    if (actor.methods.load(std::memory_order_acquire) == 0) continue;
    note(actor, actor.doing.load(std::memory_order_relaxed));
    for (const auto& each : actor.waiting) note(actor, int64_t{each.load(std::memory_order_relaxed)} - 1);
  }
  std::sort(found.begin(), found.end());  // whoever began first has nothing to do with it
  return found;
}

bool is_base_frame(std::string_view frame) {
  const std::string_view file = frame.substr(frame.rfind('/') + 1);
  return frame.starts_with("_PyEval_") || frame.starts_with("PyEval_") || file.starts_with("_core.") ||
         file.starts_with("libmonarch") || file.starts_with("monarch-");
}

bool shows_runtime_frames() {
  const char* value = std::getenv("MONARCH_RUNTIME_FRAMES");
  return value != nullptr && *value != '\0';
}

std::string read_stack(const LastWords& left, bool with_runtime) {
  const size_t frames_max = with_runtime ? SIZE_MAX : kFramesMax;
  // Copies: who has written it may be writing still.
  const std::string language(written(left.language, sizeof left.language));
  const std::string native(written(left.native, sizeof left.native));
  std::string text;
  add_frames(text, "Python stack, innermost first:", language_frames(language, with_runtime), frames_max,
             [](std::string_view frame) { return printable(frame.substr(2), kLineMax); });
  add_frames(text, "C stack, innermost first:", native_frames(native, with_runtime), frames_max, readable);
  return text;
}

}  // namespace monarch
