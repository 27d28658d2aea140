#include "monarch/wire/failure.h"

#include <string.h>

#include <algorithm>
#include <iterator>

namespace monarch {

namespace {

constexpr int64_t kKindMax = static_cast<int64_t>(Failure::Kind::kNotSent);
constexpr uint32_t kFields = 21;
constexpr uint32_t kFieldsMin = 15;  // of processes that know less
constexpr uint32_t kFieldsOfStatus = 19;
constexpr uint32_t kFieldsOfLauncher = 21;
constexpr uint32_t kEndpointsMax = 64;
constexpr size_t kEndpointsNamed = 3;
constexpr size_t kEndpointBytesMax = 1024;
constexpr uint32_t kFieldsMax = 64;
constexpr uint32_t kCoordinatesMax = 64;
constexpr size_t kDetailMax = size_t{256} << 10;
constexpr std::string_view kHostAt = "the host at ";

// "failed: Killed(sig=9)", as a continuation of "the process this actor was running on ".
std::string how_it_ended(const ExitStatus& status) {
  if (!status.because.empty()) return status.because;
  if (!status.known) return "ended, and its exit status is not known";
  if (status.signal != 0) {
    const std::string name = sigabbrev_np(status.signal) == nullptr ? "Signal" : strsignal(status.signal);
    return "failed: " + name + "(sig=" + std::to_string(status.signal) + ")";
  }
  if (status.code != 0) return "exited with non-zero code " + std::to_string(status.code);
  return "exited with code 0 without being asked to";
}

// What else is known of it, as a continuation of that.
std::string more_of(const ExitStatus& status) {
  std::string text;
  const std::vector<std::string>& in = status.endpoints;
  for (size_t i = 0; i < std::min(in.size(), kEndpointsNamed); ++i) {
    const bool last = i + 1 == in.size();
    text += (i == 0 ? ", while in " : last ? " and " : ", ") + in[i];
  }
  if (in.size() > kEndpointsNamed) text += " and " + std::to_string(in.size() - kEndpointsNamed) + " more";
  if (!status.launcher.empty()) text += "; its launcher says: " + status.launcher;
  switch (status.out_of_memory) {
    case OutOfMemory::kUnknown:
    case OutOfMemory::kNo:
      break;
    case OutOfMemory::kMachine:
      return text + "; perhaps out of memory: the kernel's OOM killer has killed on this machine";
    case OutOfMemory::kCgroup:
      return text + "; probably out of memory: the kernel's OOM killer has killed in its cgroup";
    case OutOfMemory::kCgroupLimit:
      return text + "; probably out of memory: the kernel's OOM killer has killed in its cgroup, which was at its limit";
  }
  return text;
}

void write_text(ValueWriter& writer, std::string_view text) { writer.bytes(as_byte_span(text.data(), text.size())); }

// The next place at or after `at` where a character of UTF-8 begins.
size_t next_character(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

std::string indented(std::string_view lines) {
  std::string text;
  for (const char c : lines) {
    text += c;
    if (c == '\n') text += "  ";
  }
  return text;
}

std::string shortened(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  const size_t head = next_character(text, bytes_max / 2), tail = next_character(text, text.size() - bytes_max / 2);
  return std::string(text.substr(0, head)) + " [... " + std::to_string(tail - head) + " bytes are left out ...] " +
         std::string(text.substr(tail));
}

std::string clipped_lines(std::string_view text, size_t lines_max, size_t bytes_max) {
  std::string clipped;
  for (; lines_max > 0 && !text.empty(); --lines_max) {
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == text.npos ? 0 : newline + 1;
    const std::string line = shortened(text.substr(begin), bytes_max);
    clipped = clipped.empty() ? line : line + "\n" + clipped;
    text = text.substr(0, begin == 0 ? 0 : newline);
  }
  return clipped;
}

std::string describe(const ExitStatus& status) {
  if (!status.because.empty()) return status.because;
  if (!status.known) return "ended, and its exit status is not known";
  if (status.signal != 0) {
    return "was killed by signal " + std::to_string(status.signal) + " (" + strsignal(status.signal) + ")";
  }
  return "exited with code " + std::to_string(status.code);
}

std::string not_attached(const std::string& address, const std::string& why) {
  return std::string(kHostAt) + address + " cannot be attached to: " + why;
}

bool Failure::is_death() const {
  return kind == Kind::kExited || kind == Kind::kNotStarted || kind == Kind::kStopped || kind == Kind::kLost ||
         kind == Kind::kOwnerEnded || kind == Kind::kForeign;
}

std::string Failure::headline() const {
  const std::string subject = of_host ? "the host of the process this actor was running on "
                                      : "the process this actor was running on ";
  switch (kind) {
    case Kind::kExited:
      return subject + how_it_ended(status) +
             (label.empty() ? "" : " (" + label + (pid > 0 ? ", pid " + std::to_string(pid) : "") + ")") +
             more_of(status) + (cut_off ? "; it had closed its connection and did not end" : "");
    case Kind::kNotStarted:
      if (detail.starts_with(kHostAt)) return detail + " (" + label + ")";  // nothing was to be started yet
      return (of_host ? "the host of the process this actor was to run on" : "the process this actor was to run on") +
             std::string(" could not be started (") + label + "): " + detail;
    case Kind::kStopped:
      return "stopped: " + detail;
    case Kind::kLost:
      return subject + "was lost" + (label.empty() ? "" : " (" + label + (host.empty() ? "" : ", on " + host) + ")") +
             ": " + detail;
    case Kind::kOwnerEnded:
      return detail + " has ended";
    case Kind::kUnreachable:
      return "the process this actor is running on cannot be reached from here: " + detail;
    case Kind::kEnding:
      return "this process is ending";
    case Kind::kNoActor:
      return detail.empty() ? "there is no such actor in this process" : detail;
    case Kind::kRefused:
    case Kind::kActor:
    case Kind::kForeign:
    case Kind::kActorStopped:
    case Kind::kNotSent:
      break;
  }
  return detail;
}

std::string Failure::text() const {
  std::string text = headline();
  if (!status.stack.empty()) text += "\n" + status.stack;
  const std::string& lines = last_lines.empty() ? status.launcher_tail : last_lines;
  if (!lines.empty()) text += "\nThe last that it printed to stderr:\n  " + indented(lines);
  return text;
}

void Failure::encode(ValueWriter& writer) const {
  writer.begin_tuple(kFields);
  writer.integer(static_cast<int64_t>(kind));
  writer.integer(int64_t{of_host} | int64_t{cut_off} << 1 | int64_t{status.known} << 2);
  writer.integer(static_cast<int64_t>(node));
  writer.integer(static_cast<int64_t>(actor));
  writer.integer(rank);
  const auto dims = static_cast<uint32_t>(std::min<size_t>(coordinates.size(), kCoordinatesMax));
  writer.begin_tuple(dims);
  for (uint32_t i = 0; i < dims; ++i) writer.integer(coordinates[i]);
  for (const std::string* text : {&mesh, &label, &host}) write_text(writer, shortened(*text));
  writer.integer(pid);
  writer.integer(status.code);
  writer.integer(status.signal);
  write_text(writer, shortened(detail, kDetailMax));
  write_text(writer, shortened(last_lines, kDetailMax));
  write_text(writer, shortened(status.because));
  write_text(writer, shortened(origin));
  writer.integer(static_cast<int64_t>(status.out_of_memory));
  const auto named = static_cast<uint32_t>(std::min<size_t>(status.endpoints.size(), kEndpointsMax));
  writer.begin_tuple(named);
  for (uint32_t i = 0; i < named; ++i) write_text(writer, shortened(status.endpoints[i], kEndpointBytesMax));
  write_text(writer, shortened(status.stack));
  write_text(writer, shortened(status.launcher));
  write_text(writer, shortened(status.launcher_tail));
}

std::string Failure::encoded() const {
  ValueWriter writer;
  encode(writer);
  return {reinterpret_cast<const char*>(writer.data()), writer.size()};
}

Result<Failure> Failure::decode(ByteSpan bytes) {
  const Error malformed{ErrorCode::kMalformed, "not the record of a failure"};
  ValueReader reader(bytes);
  Failure failure;
  uint32_t fields = 0, coordinate_count = 0;
  int64_t kind = 0, flags = 0, node = 0, actor = 0, code = 0, signal = 0;
  if (!reader.begin_tuple(fields) || fields < kFieldsMin || fields > kFieldsMax) return malformed;
  if (!reader.integer(kind) || kind < 1 || kind > kKindMax) return malformed;
  if (!reader.integer(flags) || !reader.integer(node) || !reader.integer(actor) || !reader.integer(failure.rank)) {
    return malformed;
  }
  if (!reader.begin_tuple(coordinate_count) || coordinate_count > kCoordinatesMax) return malformed;
  failure.coordinates.resize(coordinate_count);
  for (int64_t& coordinate : failure.coordinates) {
    if (!reader.integer(coordinate)) return malformed;
  }
  auto read_text = [&reader](std::string& into) {
    ByteSpan raw;
    if (!reader.bytes(raw)) return false;
    into.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
    return true;
  };
  if (!read_text(failure.mesh) || !read_text(failure.label) || !read_text(failure.host)) return malformed;
  if (!reader.integer(failure.pid) || !reader.integer(code) || !reader.integer(signal)) return malformed;
  if (!read_text(failure.detail) || !read_text(failure.last_lines) ||
      !read_text(failure.status.because)) {
    return malformed;
  }
  if (fields > kFieldsMin && !read_text(failure.origin)) return malformed;
  if (fields >= kFieldsOfStatus) {
    int64_t out_of_memory = 0;
    uint32_t endpoint_count = 0;
    if (!reader.integer(out_of_memory) || out_of_memory < 0 || out_of_memory > kOutOfMemoryMax) return malformed;
    if (!reader.begin_tuple(endpoint_count) || endpoint_count > kEndpointsMax) return malformed;
    failure.status.endpoints.resize(endpoint_count);
    for (std::string& endpoint : failure.status.endpoints) {
      if (!read_text(endpoint)) return malformed;
    }
    if (!read_text(failure.status.stack)) return malformed;
    failure.status.out_of_memory = static_cast<OutOfMemory>(out_of_memory);
  }
  if (fields >= kFieldsOfLauncher && (!read_text(failure.status.launcher) || !read_text(failure.status.launcher_tail))) {
    return malformed;
  }
  failure.kind = static_cast<Kind>(kind);
  failure.of_host = (flags & 1) != 0;
  failure.cut_off = (flags & 2) != 0;
  failure.status.known = (flags & 4) != 0;
  failure.status.code = static_cast<int>(code);
  failure.status.signal = static_cast<int>(signal);
  failure.node = static_cast<NodeId>(node);
  failure.actor = static_cast<ActorIndex>(actor);
  return failure;
}

}  // namespace monarch
