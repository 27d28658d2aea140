#include "monarch/host/membership/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "monarch/base/hex.h"
#include "monarch/base/random.h"
#include "monarch/base/system.h"
#include "monarch/base/unique_fd.h"

namespace monarch {

namespace {

// The folder may be taken away, by the end of another job, between our making it and our writing into it.
constexpr int kTriesMax = 100;

struct Path {
  std::string folder, name;
  explicit Path(const std::string& whole)
      : folder(whole.substr(0, std::max<size_t>(1, whole.rfind('/')))), name(whole.substr(whole.rfind('/') + 1)) {}
};

Error failed(const std::string& what, const std::string& path, int error) {
  if (error == ELOOP) return {ErrorCode::kUnsupported, path + " is a link: remove it, and start the job again"};
  if (error == EMFILE || error == ENFILE) {
    errno = error;
    return sys::shortage_error((what + " " + path).c_str());
  }
  const ErrorCode code = error == ENOENT ? ErrorCode::kClosed : ErrorCode::kUnavailable;
  return {code, "cannot " + what + " " + path + ": " + std::strerror(error)};
}

constexpr mode_t kPrivate = 077;     // nobody else may look at it
constexpr mode_t kUnwritable = 022;  // or change it: enough for a folder of the user's, such as the home directory

// What is open as `fd` belongs to this user, and others have none of these rights to it.
Status check_private(int fd, const std::string& path, mode_t type, mode_t rights = kPrivate) {
  struct stat info;
  if (fstat(fd, &info) != 0) return failed("look at", path, errno);
  if ((info.st_mode & S_IFMT) != type) {
    return Error{ErrorCode::kUnsupported, path + " is not what it should be: remove it, and start the job again"};
  }
  if (info.st_uid != geteuid()) {
    return Error{ErrorCode::kUnsupported,
                 path + " belongs to the user with id " + std::to_string(info.st_uid) +
                     ", not to this one: do not trust what made it. Have it removed, or set XDG_RUNTIME_DIR to a "
                     "folder of your own, and start the job again"};
  }
  if ((info.st_mode & rights) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    const bool is_folder = type == S_IFDIR;
    const std::string what = is_folder ? "put something else in the place of what it holds: name a file in a folder of "
                                         "your own, or close this one (chmod 700)"
                                       : "read or changed it: remove it, and start the job again";
    return Error{ErrorCode::kUnsupported,
                 path + " is open to other users (its mode is " + mode + "), who may have " + what};
  }
  return Ok{};
}

Result<UniqueFd> open_folder(const std::string& folder, mode_t rights = kPrivate) {
  UniqueFd fd = sys::open_file(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!fd && (errno == ENOTDIR || errno == ELOOP)) {
    return Error{ErrorCode::kUnsupported, folder + " is not a folder: remove it, and start the job again"};
  }
  if (!fd) return failed("open", folder, errno);
  if (auto checked = check_private(fd.get(), folder, S_IFDIR, rights); !checked) return checked.error();
  return fd;
}

}  // namespace

namespace {

Result<UniqueFd> make_folder(const std::string& folder, mode_t rights) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed("make", folder, errno);
  return open_folder(folder, rights);
}

}  // namespace

Status make_private_folder(const std::string& folder) {
  auto made = make_folder(folder, kPrivate);
  return made ? Status(Ok{}) : Status(made.error());
}

namespace {

Status write_once(const Path& path, const std::string& whole, const JobToken& token) {
  auto folder = make_folder(path.folder, kUnwritable);
  if (!folder) return folder.error();
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd file = sys::open_file_in(folder->get(), path.name.c_str(), kFlags, 0600);
  if (!file) return failed("write", whole, errno);
  if (auto checked = check_private(file.get(), whole, S_IFREG); !checked) return checked;
  if (pwrite(file.get(), token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return failed("write", whole, errno);
  }
  return Ok{};
}

}  // namespace

std::string runtime_folder() {
  const char* base = getenv("XDG_RUNTIME_DIR");
  struct stat info;
  // One of somebody else's is left over from before a change of user.
  if (base != nullptr && base[0] == '/' && stat(base, &info) == 0 && S_ISDIR(info.st_mode) &&
      info.st_uid == geteuid()) {
    return std::string(base) + "/monarch";
  }
  return "/tmp/monarch-" + std::to_string(geteuid());
}

std::string hosts_token_file() {
  const char* named = getenv("MONARCH_TOKEN_FILE");
  return named != nullptr && *named != '\0' ? named : runtime_folder() + "/hosts.token";
}

Status write_token_file(const std::string& path, const JobToken& token) {
  const Path parts(path);
  Status written = Ok{};
  for (int i = 0; i < kTriesMax; ++i) {
    written = write_once(parts, path, token);
    if (written || written.error().code != ErrorCode::kClosed) break;
  }
  return written;
}

Result<JobToken> read_token_file(const std::string& path) {
  const Path parts(path);
  auto folder = open_folder(parts.folder, kUnwritable);
  if (!folder) return folder.error();
  UniqueFd file = sys::open_file_in(folder->get(), parts.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file) return failed("read", path, errno);
  if (auto checked = check_private(file.get(), path, S_IFREG); !checked) return checked.error();
  JobToken token;
  std::byte more;
  if (read(file.get(), token.data(), token.size()) != static_cast<ssize_t>(token.size()) ||
      read(file.get(), &more, 1) != 0) {
    return Error{ErrorCode::kUnsupported, path + " holds no token: remove it, and start the job again"};
  }
  return token;
}

Result<JobToken> read_or_make_token_file(const std::string& path) {
  auto token = read_token_file(path);
  if (token || token.error().code != ErrorCode::kClosed) return token;
  JobToken made, number;
  fill_random(made.data(), made.size());
  fill_random(number.data(), number.size());
  const std::string draft = path + "." + to_hex(number.data(), number.size());
  if (auto written = write_token_file(draft, made); !written) {
    unlink(draft.c_str());
    return written.error();
  }
  const bool linked = link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int error = errno;
  unlink(draft.c_str());
  if (!linked) return failed("make", path, error);
  return read_token_file(path);
}

void remove_token_file(const std::string& path) {
  const std::string folder = Path(path).folder;
  if (!open_folder(folder)) return;  // not ours
  unlink(path.c_str());
  rmdir(folder.c_str());
}

}  // namespace monarch
