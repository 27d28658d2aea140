#include "monarch/host/start/bootstrap.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "monarch/base/system.h"
#include "monarch/host/start/life.h"

namespace monarch {

namespace {

struct Fixed {
  uint32_t version;
  uint32_t number_count;
  NodeKey::Seed seed;
  NodeId parent;
  NodeId owner;
  int64_t parent_pid;
  uint32_t is_host;
  HostNumber host;
  int64_t host_lease_ns;
  JobId job;
  JobToken token;
  int32_t numbers[kFdCount];
  uint32_t transport_size;
  uint32_t address_size;
  uint32_t payload_size;
  uint32_t dialled_size;
  uint32_t listens_size;
};

bool write_all(int fd, const void* data, size_t size, off_t& offset) {
  const char* at = static_cast<const char*>(data);
  while (size != 0) {
    const ssize_t count = pwrite(fd, at, size, offset);
    if (count <= 0) return false;
    at += count;
    offset += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool read_all(int fd, void* data, size_t size, off_t offset) {
  char* at = static_cast<char*>(data);
  while (size != 0) {
    const ssize_t count = pread(fd, at, size, offset);
    if (count <= 0) return false;
    at += count;
    offset += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

Result<UniqueFd> write_bootstrap(const Bootstrap& bootstrap, const std::vector<int>& numbers) {
  Fixed fixed{};
  fixed.version = kBootstrapVersion;
  fixed.number_count = static_cast<uint32_t>(numbers.size());
  fixed.seed = bootstrap.key.seed();
  fixed.parent = bootstrap.parent;
  fixed.owner = bootstrap.owner;
  fixed.parent_pid = bootstrap.parent_pid;
  fixed.is_host = bootstrap.is_host;
  fixed.host = host_number(bootstrap.key.id());
  fixed.host_lease_ns = bootstrap.host_lease_ns;
  fixed.job = bootstrap.job;
  fixed.token = bootstrap.token;
  for (size_t i = 0; i < numbers.size() && i < kFdCount; ++i) fixed.numbers[i] = numbers[i];
  fixed.transport_size = static_cast<uint32_t>(bootstrap.transport.size());
  fixed.address_size = static_cast<uint32_t>(bootstrap.address.size());
  fixed.payload_size = static_cast<uint32_t>(bootstrap.payload.size());
  fixed.dialled_size = static_cast<uint32_t>(bootstrap.place.dialled_at.size());
  fixed.listens_size = static_cast<uint32_t>(bootstrap.place.listens_at.size());
  const std::string* texts[] = {&bootstrap.transport, &bootstrap.address, &bootstrap.payload, &bootstrap.place.dialled_at,
                                &bootstrap.place.listens_at};
  size_t size = kLastWordsEnd + sizeof fixed;
  for (const std::string* text : texts) size += text->size();
  auto fd = make_shared_memory("monarch-bootstrap", size);
  if (!fd) return fd.error();
  off_t offset = kLastWordsEnd;
  bool written = write_all(fd->get(), &fixed, sizeof fixed, offset);
  for (const std::string* text : texts) written = written && write_all(fd->get(), text->data(), text->size(), offset);
  if (!written) return sys::shortage_error("write a bootstrap record");
  return fd;
}

Result<Bootstrap> read_bootstrap(int fd, std::vector<int>* numbers) {
  Fixed fixed;
  if (!read_all(fd, &fixed, sizeof fixed, kLastWordsEnd)) return Error{ErrorCode::kMalformed, "no bootstrap record"};
  if (fixed.version != kBootstrapVersion) {
    return Error{ErrorCode::kUnsupported, "the script's monarch speaks bootstrap version " +
                                              std::to_string(fixed.version) + ", this one " +
                                              std::to_string(kBootstrapVersion)};
  }
  if (fixed.number_count > kFdCount) return Error{ErrorCode::kMalformed, "bad bootstrap record"};
  Bootstrap bootstrap;
  if (fixed.host > kHostMax) return Error{ErrorCode::kMalformed, "bad bootstrap record"};
  bootstrap.key = NodeKey(fixed.seed, fixed.host);
  bootstrap.host_lease_ns = fixed.host_lease_ns;
  bootstrap.parent = fixed.parent;
  bootstrap.owner = fixed.owner;
  bootstrap.parent_pid = fixed.parent_pid;
  bootstrap.is_host = fixed.is_host != 0;
  bootstrap.job = fixed.job;
  bootstrap.token = fixed.token;
  size_t offset = kLastWordsEnd + sizeof fixed;
  auto read_text = [&](std::string& into, uint32_t size) {
    into.resize(size);
    const bool whole = read_all(fd, into.data(), size, static_cast<off_t>(offset));
    offset += size;
    return whole;
  };
  if (!read_text(bootstrap.transport, fixed.transport_size) || !read_text(bootstrap.address, fixed.address_size) ||
      !read_text(bootstrap.payload, fixed.payload_size) || !read_text(bootstrap.place.dialled_at, fixed.dialled_size) ||
      !read_text(bootstrap.place.listens_at, fixed.listens_size)) {
    return Error{ErrorCode::kMalformed, "short bootstrap record"};
  }
  // Nobody reads it again, and the pages before it keep the file.
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kLastWordsEnd, static_cast<off_t>(offset - kLastWordsEnd));
  numbers->assign(fixed.numbers, fixed.numbers + fixed.number_count);
  return bootstrap;
}

namespace {
constexpr std::pair<BootstrapFd, UniqueFd ChildEnds::*> kEnds[] = {
    {kFdSocket, &ChildEnds::socket},           {kFdData, &ChildEnds::data},
    {kFdBell, &ChildEnds::bell},               {kFdEvent, &ChildEnds::event},
    {kFdParentBell, &ChildEnds::parent_bell},  {kFdParentEvent, &ChildEnds::parent_event},
    {kFdListener, &ChildEnds::listener},
};
}  // namespace

void put_ends(BootstrapFds& fds, ChildEnds ends) {
  for (const auto& [number, end] : kEnds) fds[number] = std::move(ends.*end);
}

ChildEnds take_ends(BootstrapFds& fds) {
  ChildEnds ends;
  for (const auto& [number, end] : kEnds) ends.*end = std::move(fds[number]);
  return ends;
}

void take_up_output(BootstrapFds& fds) {
  for (const auto& [from, to] : {std::pair{kFdStdout, STDOUT_FILENO}, std::pair{kFdStderr, STDERR_FILENO}}) {
    if (fds[from]) dup2(fds[from].get(), to);
    fds[from].reset();
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace monarch
