#include "monarch/host/start/launch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

namespace monarch {

namespace {

// ---- Writing ----

void write(ValueWriter& writer, std::string_view text) { writer.bytes(as_byte_span(text.data(), text.size())); }

void write(ValueWriter& writer, const std::optional<std::string>& text) {
  text ? write(writer, std::string_view(*text)) : writer.none();
}

void write(ValueWriter& writer, const std::vector<std::string>& texts) {
  writer.begin_tuple(static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts) write(writer, std::string_view(text));
}

void write(ValueWriter& writer, const LaunchCommand& command) {
  writer.begin_tuple(5);
  write(writer, std::string_view(command.program));
  write(writer, command.arg0);
  write(writer, command.args);
  writer.begin_tuple(static_cast<uint32_t>(command.env.size()));
  for (const auto& [name, value] : command.env) {
    writer.begin_tuple(2);
    write(writer, std::string_view(name));
    write(writer, value);
  }
  writer.boolean(command.inherit_env);
}

void write(ValueWriter& writer, const LaunchRequest& request) {
  writer.begin_tuple(request.key ? 7 : 6);
  request.command ? write(writer, *request.command) : writer.none();
  write(writer, request.prefix);
  write(writer, std::string_view(request.label));
  writer.begin_tuple(4);
  write(writer, std::string_view(request.output.mesh));
  writer.integer(request.output.rank);
  writer.boolean(request.output.prefix);
  write(writer, std::string_view(request.output.log_file));
  writer.begin_tuple(static_cast<uint32_t>(request.coordinates.size()));
  for (const int64_t coordinate : request.coordinates) writer.integer(coordinate);
  writer.integer(request.tail_lines);
  if (request.key) writer.bytes(*request.key);
}

std::string text_of(const ValueWriter& writer) {
  return std::string(reinterpret_cast<const char*>(writer.data()), writer.size());
}

// ---- Reading ----

bool begin_tuple_of(ValueReader& reader, uint32_t expected) {
  uint32_t count;
  return reader.begin_tuple(count) && (count == expected || reader.refuse_count(expected, count));
}

// Of which more values may follow in a later version: they are skipped.
bool begin_record(ValueReader& reader, uint32_t known, uint32_t& more) {
  uint32_t count;
  if (!reader.begin_tuple(count)) return false;
  if (count < known) return reader.refuse_count(known, count);
  more = count - known;
  return true;
}

bool end_record(ValueReader& reader, uint32_t more) {
  for (; more > 0; --more) {
    if (!reader.skip()) return false;
  }
  reader.end();
  return true;
}

bool read(ValueReader& reader, std::string& out) {
  if (reader.peek() == ValueTag::kStr) {
    std::string_view text;
    if (!reader.str(text)) return false;
    out = text;
    return true;
  }
  ByteSpan raw;
  if (!reader.bytes(raw)) return false;
  out.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
  return true;
}

// For execve, which would take it to its first NUL only.
bool read_argument(ValueReader& reader, std::string& out) {
  if (!read(reader, out)) return false;
  return out.find('\0') == std::string::npos || reader.refuse("a text of a command contains a NUL character");
}

bool read_name(ValueReader& reader, std::string& out) {
  if (!read_argument(reader, out)) return false;
  const bool good = !out.empty() && out.find('=') == std::string::npos;
  return good || reader.refuse("not a name of an environment variable");
}

bool read_argument(ValueReader& reader, std::optional<std::string>& out) {
  out.reset();
  return reader.peek() == ValueTag::kNone ? reader.none() : read_argument(reader, out.emplace());
}

bool read(ValueReader& reader, std::vector<std::string>& out) {
  uint32_t count;
  if (!reader.begin_tuple(count)) return false;
  out.clear();
  for (; count > 0; --count) {
    if (!read_argument(reader, out.emplace_back())) return false;
  }
  reader.end();
  return true;
}

bool read(ValueReader& reader, LaunchCommand& out) {
  uint32_t count;
  if (!begin_tuple_of(reader, 5) || !read_argument(reader, out.program) || !read_argument(reader, out.arg0) ||
      !read(reader, out.args) || !reader.begin_tuple(count)) {
    return false;
  }
  for (; count > 0; --count) {
    auto& [name, value] = out.env.emplace_back();
    if (!begin_tuple_of(reader, 2) || !read_name(reader, name) || !read_argument(reader, value)) return false;
    reader.end();
  }
  reader.end();
  if (!reader.boolean(out.inherit_env)) return false;
  reader.end();
  return !out.program.empty() || reader.refuse("a command needs a program");
}

bool read(ValueReader& reader, OutputName& out) {
  if (!begin_tuple_of(reader, 4) || !read(reader, out.mesh) || !reader.integer(out.rank) ||
      !reader.boolean(out.prefix) || !read_argument(reader, out.log_file)) {
    return false;
  }
  reader.end();
  return true;
}

bool read(ValueReader& reader, NodeKey::Seed& out) {
  ByteSpan raw;
  if (!reader.bytes(raw)) return false;
  if (raw.size() != out.size()) return reader.refuse("not the key of a node");
  std::copy(raw.begin(), raw.end(), out.begin());
  return true;
}

bool read(ValueReader& reader, LaunchRequest& out) {
  uint32_t more, count;
  if (!begin_record(reader, 6, more)) return false;
  if (reader.peek() == ValueTag::kNone ? !reader.none() : !read(reader, out.command.emplace())) return false;
  if (!read(reader, out.prefix) || !read(reader, out.label) || !read(reader, out.output) || !reader.begin_tuple(count)) {
    return false;
  }
  for (; count > 0; --count) {
    if (!reader.integer(out.coordinates.emplace_back())) return false;
  }
  reader.end();
  int64_t lines;
  if (!reader.integer(lines)) return false;
  if (lines < 0 || lines > std::numeric_limits<uint32_t>::max()) return reader.refuse_integer("a number of lines", lines);
  out.tail_lines = static_cast<uint32_t>(lines);
  if (more > 0 && !read(reader, out.key.emplace())) return false;
  return end_record(reader, more - (more > 0));
}

bool read(ValueReader& reader, LaunchOrder& out) {
  uint32_t more, count;
  int64_t mesh;
  if (!begin_record(reader, 5, more) || !reader.integer(mesh)) return false;
  if (mesh < 0) return reader.refuse_integer("the id of a mesh", mesh);
  out.mesh = static_cast<uint64_t>(mesh);
  if (!reader.boolean(out.are_hosts) || !read_argument(reader, out.interpreter) || !read(reader, out.payload) ||
      !reader.begin_tuple(count)) {
    return false;
  }
  if (count > LaunchOrder::kLaunchesMax) return reader.refuse_integer("fewer processes", count);
  for (; count > 0; --count) {
    if (!read(reader, out.launches.emplace_back())) return false;
  }
  reader.end();
  if (more > 0 && (--more, !reader.boolean(out.are_awaited))) return false;
  return end_record(reader, more);
}

bool read(ValueReader& reader, LaunchDefaults& out) {
  uint32_t more;
  return begin_record(reader, 7, more) && read_argument(reader, out.interpreter) &&
         read_argument(reader, out.forkable) && read(reader, out.args) && read(reader, out.env) &&
         read(reader, out.new_only) && read(reader, out.fork_server) && read(reader, out.payload) &&
         end_record(reader, more);
}

bool read(ValueReader& reader, WorkerPayload& out) {
  if (!begin_tuple_of(reader, 3) || !read(reader, out.of_host) || !read(reader, out.of_order)) return false;
  if (reader.peek() == ValueTag::kNone ? !reader.none() : !read(reader, out.env.emplace())) return false;
  reader.end();
  return true;
}

template <typename T>
Result<T> decode_whole(ByteSpan bytes) {
  ValueReader reader(bytes);
  T out{};
  if (!read(reader, out) || !(reader.done() || reader.trailing())) return reader.error();
  return out;
}

// ---- Completing ----

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

std::vector<std::string> environment(const LaunchCommand& command, const std::vector<std::string>& of_host) {
  std::map<std::string_view, const std::optional<std::string>*> changed;
  for (const auto& [name, value] : command.env) changed[name] = &value;
  std::vector<std::string> env;
  if (command.inherit_env) {
    for (const std::string& variable : of_host) {
      if (!changed.contains(name_of(variable))) env.push_back(variable);
    }
  }
  for (const auto& [name, value] : changed) {
    if (*value) env.push_back(std::string(name) + "=" + **value);
  }
  return env;
}

// The variables among `env` that only a new interpreter takes up, in an order of their own.
std::vector<std::string_view> only_new(const std::vector<std::string>& env, const LaunchDefaults& host) {
  std::vector<std::string_view> found;
  for (const std::string& variable : env) {
    const bool is_one = std::any_of(host.new_only.begin(), host.new_only.end(), [&](const std::string& beginning) {
      return name_of(variable).starts_with(beginning);
    });
    if (is_one) found.emplace_back(variable);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Whether that is what a fork would give. Anything else may do what it likes with the environment before a worker is up.
bool is_forkable(const LaunchRequest& request, const LaunchOrder& order, const LaunchDefaults& host) {
  if (host.forkable.empty() || !request.prefix.empty()) return false;
  if (!request.command) return (order.interpreter.empty() ? host.interpreter : order.interpreter) == host.forkable;
  const LaunchCommand& command = *request.command;
  return command.program == host.forkable && command.args == host.args &&
         (!command.arg0 || *command.arg0 == command.program);
}

// All but who it is.
Launch start_of(const LaunchRequest& request, const LaunchOrder& order, const LaunchDefaults& host,
                const std::vector<std::string>& fork_env) {
  Launch launch;
  launch.is_host = order.are_hosts;
  std::vector<std::string> env = request.command ? environment(*request.command, host.env) : host.env;
  launch.is_awaited = order.are_awaited;
  const bool ours = !order.are_awaited && is_forkable(request, order, host);
  launch.use_fork_server = ours && !host.fork_server.empty() && only_new(env, host) == only_new(fork_env, host);
  launch.payload = encode(WorkerPayload{host.payload, order.payload, ours ? std::optional(env) : std::nullopt});
  if (launch.use_fork_server) return launch;
  const std::string& interpreter = order.interpreter.empty() ? host.interpreter : order.interpreter;
  const std::string& program = request.command ? request.command->program : interpreter;
  const std::vector<std::string>& args = request.command ? request.command->args : host.args;
  const bool renamed = request.prefix.empty() && request.command && request.command->arg0;
  launch.argv = request.prefix;
  launch.argv.push_back(renamed ? *request.command->arg0 : program);
  launch.argv.insert(launch.argv.end(), args.begin(), args.end());
  launch.program = request.prefix.empty() ? program : request.prefix[0];
  launch.env = std::move(env);
  return launch;
}

}  // namespace

std::string encode(const LaunchOrder& order) {
  ValueWriter writer;
  writer.begin_tuple(6);
  writer.integer(static_cast<int64_t>(order.mesh));
  writer.boolean(order.are_hosts);
  write(writer, std::string_view(order.interpreter));
  write(writer, std::string_view(order.payload));
  writer.begin_tuple(static_cast<uint32_t>(order.launches.size()));
  for (const LaunchRequest& request : order.launches) write(writer, request);
  writer.boolean(order.are_awaited);
  return text_of(writer);
}

std::string encode(const LaunchDefaults& defaults) {
  ValueWriter writer;
  writer.begin_tuple(7);
  write(writer, std::string_view(defaults.interpreter));
  write(writer, std::string_view(defaults.forkable));
  for (const auto* texts : {&defaults.args, &defaults.env, &defaults.new_only, &defaults.fork_server}) {
    write(writer, *texts);
  }
  write(writer, std::string_view(defaults.payload));
  return text_of(writer);
}

std::string encode(const WorkerPayload& payload) {
  ValueWriter writer;
  writer.begin_tuple(3);
  write(writer, std::string_view(payload.of_host));
  write(writer, std::string_view(payload.of_order));
  payload.env ? write(writer, *payload.env) : writer.none();
  return text_of(writer);
}

Result<LaunchOrder> decode_launch_order(ByteSpan bytes) { return decode_whole<LaunchOrder>(bytes); }
Result<LaunchDefaults> decode_launch_defaults(ByteSpan bytes) { return decode_whole<LaunchDefaults>(bytes); }
Result<WorkerPayload> decode_worker_payload(ByteSpan bytes) { return decode_whole<WorkerPayload>(bytes); }

bool wants_fork_server(const LaunchOrder& order, const LaunchDefaults& host) {
  return !host.fork_server.empty() && !order.are_awaited &&
         std::any_of(order.launches.begin(), order.launches.end(),
                     [&](const LaunchRequest& request) { return is_forkable(request, order, host); });
}

std::vector<Launch> complete(const LaunchOrder& order, const LaunchDefaults& host,
                             const std::vector<std::string>& fork_env) {
  std::optional<Launch> usual;  // most of a mesh are started alike
  std::vector<Launch> launches;
  for (const LaunchRequest& request : order.launches) {
    const bool is_usual = !request.command && request.prefix.empty();
    if (is_usual && !usual) usual = start_of(request, order, host, fork_env);
    Launch& launch = launches.emplace_back(is_usual ? *usual : start_of(request, order, host, fork_env));
    launch.label = request.label;
    launch.output = request.output;
    launch.coordinates = request.coordinates;
    launch.tail_lines = request.tail_lines;
    launch.key = request.key;
  }
  return launches;
}

}  // namespace monarch
