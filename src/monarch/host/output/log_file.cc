#include "monarch/host/output/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

// Where the last whole lines begin, at most LogFile::kLastLines; of too many bytes, fewer.
size_t start_of_last(std::string_view text) {
  size_t begin = text.size();
  for (size_t count = 0; begin != 0 && count < LogFile::kLastLines; ++count) {
    const size_t before = begin < 2 ? text.npos : text.rfind('\n', begin - 2);
    const size_t start = before == text.npos ? 0 : before + 1;
    if (text.size() - start > LogFile::kLastBytesMax && count != 0) break;
    begin = start;
  }
  return begin;
}

// `lines` are the newest of a voice.
void note(std::string& last, std::string_view lines) {
  const size_t start = start_of_last(lines);
  if (start != 0) last.clear();  // there are enough that are newer, or large ones
  last.append(lines.substr(start));
  last.erase(0, start_of_last(last));
  if (last.size() <= LogFile::kLastBytesMax) return;
  last.resize(LogFile::kLastBytesMax - 1);  // a line by itself: its beginning says more than nothing
  last.push_back('\n');
}

}  // namespace

Result<LogFile> LogFile::make(const std::string& path) {
  LogFile file;
  file.path_ = path;
  if (!file.open()) return Error{ErrorCode::kUnavailable, strerror(errno)};
  return file;
}

// By errno.
bool LogFile::open() {
  const std::string folder = path_.substr(0, path_.rfind('/'));
  mkdir(folder.c_str(), 0700);
  struct stat of_folder;
  const bool ours = lstat(folder.c_str(), &of_folder) == 0 && S_ISDIR(of_folder.st_mode) && of_folder.st_uid == geteuid();
  if (!ours) return errno = EPERM, false;
  UniqueFd fd = sys::open_file(path_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_APPEND, 0600);
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) return false;
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) return errno = EPERM, false;
  fd_ = std::move(fd);
  size_ = status.st_size;
  return true;
}

LogFile::Voice& LogFile::add(const std::string& who) {
  voices_.push_back({" [" + who + "] ", "", number_});
  return voices_.back();
}

void LogFile::end(Voice& voice) {
  const auto found = std::find_if(voices_.begin(), voices_.end(), [&](const Voice& each) { return &each == &voice; });
  if (found == voices_.end()) return;
  ended_.splice(ended_.end(), voices_, found);
  if (ended_.size() > kEndedMax) ended_.pop_front();
}

void LogFile::write(Voice& voice, std::string_view lines) {
  struct stat status;
  if (fstat(fd_.get(), &status) == 0 && status.st_nlink == 0) {  // it was taken away
    if (!open()) return fail(errno);
    torn_ = false;
  }
  if (size_ > 0 && size_ + static_cast<int64_t>(lines.size()) > kLogFileMax) rotate();
  put(lines);
  note(voice.last, lines);
  voice.last_file = number_;
}

void LogFile::rotate() {
  UniqueFd full = std::move(fd_);
  // Somebody may have put it aside by himself.
  if ((rename(path_.c_str(), (path_ + ".1").c_str()) != 0 && errno != ENOENT) || !open()) {
    fd_ = std::move(full);  // on with it: that is better than nothing
    size_ = 0;
    return;
  }
  ++number_;
  keep_last_lines();
}

// Of those whose last lines were in what has just gone.
void LogFile::keep_last_lines() {
  std::vector<std::string_view> lines;
  for (std::list<Voice>* voices : {&ended_, &voices_}) {
    for (Voice& voice : *voices) {
      if (voice.last_file + 2 > number_) continue;
      voice.last_file = number_;
      for (std::string_view rest = voice.last; !rest.empty();) {
        const size_t size = rest.find('\n') + 1;
        lines.push_back(rest.substr(0, size));
        rest.remove_prefix(size);
      }
    }
  }
  const size_t time_size = utc_text(0).size();
  std::stable_sort(lines.begin(), lines.end(), [&](std::string_view one, std::string_view other) {
    return one.substr(0, time_size) < other.substr(0, time_size);
  });
  std::string text;
  for (const std::string_view line : lines) {
    if (line.size() < time_size) continue;
    text.append(line.substr(0, time_size)).append(" kept").append(line.substr(time_size));
  }
  put(text);
}

void LogFile::put(std::string_view lines) {
  if (torn_ && ::write(fd_.get(), "\n", 1) == 1) {
    torn_ = false;
    ++size_;
  }
  const ssize_t count = ::write(fd_.get(), lines.data(), lines.size());
  const bool is_whole = count == static_cast<ssize_t>(lines.size());
  if (is_whole) trouble_ = 0;
  if (!is_whole) fail(count < 0 ? errno : ENOSPC);
  if (count <= 0) return;
  size_ += count;
  torn_ = !is_whole;
}

void LogFile::fail(int error) {
  if (trouble_ != 0) return;
  trouble_ = error;
  is_news_ = true;
}

std::string LogFile::take_trouble() {
  return std::exchange(is_news_, false) ? strerror(trouble_) : "";
}

}  // namespace monarch
