#include "monarch/host/membership/job_address.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <vector>

#include "monarch/base/hex.h"
#include "monarch/base/host_name.h"
#include "monarch/base/system.h"
#include "monarch/base/unique_fd.h"
#include "monarch/host/membership/token_file.h"

namespace monarch {

namespace {

constexpr std::string_view kFormat = "monarch-job-1";
// The format's name and seven fields, with one blank between two; the last one, the folder, may contain blanks.
constexpr size_t kFieldCount = 8;
constexpr size_t kTextSizeMax = 8192;

template <typename Number>
bool read_number(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<JobAddress> JobAddress::of_this_script(const JobId& job, NodeId node) {
  auto machine = machine_id();
  if (!machine) return machine.error();
  return JobAddress{job, node, getpid(), geteuid(), std::move(*machine), host_name(), runtime_folder()};
}

std::string JobAddress::to_text() const {
  std::string text(kFormat);
  for (const std::string& field : {to_hex(job.data(), job.size()), to_hex(&script, sizeof script),
                                   std::to_string(script_pid), std::to_string(user), machine, host, folder}) {
    text += ' ';
    text += field;
  }
  return text;
}

Result<JobAddress> JobAddress::parse(std::string_view text) {
  const Error bad{ErrorCode::kMalformed, "not the address of a job: the handle was made by another version of monarch, "
                                         "or is damaged"};
  if (text.size() > kTextSizeMax) return bad;
  std::vector<std::string_view> fields;
  while (fields.size() + 1 < kFieldCount) {
    const size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return bad;
    fields.push_back(text.substr(0, blank));
    text.remove_prefix(blank + 1);
  }
  fields.push_back(text);
  JobAddress address;
  if (fields[0] != kFormat || !from_hex(fields[1], address.job.data(), address.job.size()) ||
      !from_hex(fields[2], &address.script, sizeof address.script) || address.script == 0 ||
      !read_number(fields[3], &address.script_pid) || !read_number(fields[4], &address.user) || fields[5].empty() ||
      fields[6].empty() || !fields[7].starts_with('/') || fields[7].find('\0') != std::string_view::npos) {
    return bad;
  }
  address.machine = fields[5];
  address.host = fields[6];
  address.folder = fields[7];
  return address;
}

std::string JobAddress::token_path() const { return folder + "/" + to_hex(job.data(), job.size()); }

std::string JobAddress::name() const {
  return "job " + to_hex(job.data(), 4) + " (its script has pid " + std::to_string(script_pid) + ")";
}

Status JobAddress::check_here() const {
  auto here = machine_id();
  if (!here) return here.error();
  if (machine != *here) {
    return Error{ErrorCode::kUnsupported, "this handle belongs to " + name() + " on another machine or in another "
                                          "container, or from before a restart: on '" + host + "', and this is '" +
                                          host_name() + "'. Use it on the machine of its job, while that runs"};
  }
  if (user != geteuid()) {
    return Error{ErrorCode::kUnsupported, "this handle belongs to " + name() + " of the user with id " +
                                          std::to_string(user) + ", and this process runs as " +
                                          std::to_string(geteuid()) + ". Use it as the same user"};
  }
  return Ok{};
}

Result<std::string> machine_id() {
  char boot[37];
  const UniqueFd file = sys::open_file("/proc/sys/kernel/random/boot_id", O_RDONLY);
  // Not another name for want of a descriptor: each handle would seem to be of another machine.
  if (!file && (errno == EMFILE || errno == ENFILE)) return sys::shortage_error("find out which machine this is");
  const ssize_t size = file ? read(file.get(), boot, sizeof boot) : 0;
  std::string id = size >= 36 ? std::string(boot, 36) : host_name();
  struct stat space;
  if (stat("/proc/self/ns/net", &space) == 0) id += "/" + std::to_string(space.st_ino);
  return id;
}

}  // namespace monarch
