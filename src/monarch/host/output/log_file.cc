#include "monarch/host/output/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "monarch/base/system.h"

namespace monarch {

Result<LogFile> LogFile::make(const std::string& path) {
  LogFile file;
  file.path_ = path;
  const std::string folder = path.substr(0, path.rfind('/'));
  mkdir(folder.c_str(), 0700);
  struct stat status;
  const bool ours = lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
  if (!ours) errno = EPERM;
  if (!ours || !file.open()) return Error{ErrorCode::kUnavailable, strerror(errno)};
  return file;
}

// By errno.
bool LogFile::open() {
  fd_ = sys::open_file(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0600);
  size_ = 0;
  return static_cast<bool>(fd_);
}

void LogFile::write(std::string_view lines) {
  const auto size = static_cast<int64_t>(lines.size());
  if (size_ > 0 && size_ + size > kLogFileMax) {
    UniqueFd full = std::move(fd_);
    if (rename(path_.c_str(), (path_ + ".1").c_str()) != 0 || !open()) {
      fd_ = std::move(full);  // on with it: that is better than nothing
      size_ = 0;
    }
  }
  const ssize_t count = ::write(fd_.get(), lines.data(), lines.size());
  if (count > 0) size_ += count;
}

}  // namespace monarch
